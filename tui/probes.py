"""How a diagnosis reaches the machine: torch, NVML, files, limits.

Everything is asked through `Probes`, so that tests can describe a machine they do not have. Every
question is asked apart: one that fails or is not supported leaves its answer empty (None), and the
others stand.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import queue
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

Answer = TypeVar("Answer")

# What is asked of NVML about one device, each apart: many GPUs and containers support only some.
NVML_FIELDS: dict[str, Callable[[Any, Any], Any]] = {
    "memory_used_bytes": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    "utilization_percent": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "temperature_celsius": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, 0),
    "power_watts": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "power_limit_watts": lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
    "clock_sm_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "pcie_generation": lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu),
    "pcie_width": lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),
    "ecc_enabled": lambda nvml, gpu: bool(nvml.nvmlDeviceGetEccMode(gpu)[0]),
    "mig_enabled": lambda nvml, gpu: bool(nvml.nvmlDeviceGetMigMode(gpu)[0]),
}


@dataclass(frozen=True)
class Gpu:
    """One CUDA device as torch sees it, and `driver`: what NVML says of the same UUID."""

    index: int
    name: str | None = None
    uuid: str | None = None
    capability: str | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    shared_memory_block_bytes: int | None = None
    driver: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Torch:
    """The torch build: its CUDA version (None for a CPU build), its devices, why it failed."""

    version: str | None = None
    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class Nvml:
    """The NVIDIA driver's own account; `problem` says why there is none."""

    driver_version: str | None = None
    cuda_version: str | None = None
    device_count: int | None = None
    fields: dict[str, dict[str, Any]] = field(default_factory=dict)
    problem: str | None = None


def _locked_memory_bytes() -> int:
    import resource  # not on every system

    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return -1 if limit == resource.RLIM_INFINITY else limit


@dataclass(frozen=True)
class Probes:
    """Every way in which a diagnosis reaches the machine. Each may raise: that is an answer too."""

    import_module: Callable[[str], Any] = importlib.import_module
    distribution_version: Callable[[str], str] = importlib.metadata.version
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    read_text: Callable[[str], str] = lambda path: Path(path).read_text()
    file_exists: Callable[[str], bool] = lambda path: Path(path).exists()
    file_system_bytes: Callable[[str], int] = lambda path: shutil.disk_usage(path).total
    find_program: Callable[[str], str | None] = shutil.which
    locked_memory_bytes: Callable[[], int] = _locked_memory_bytes
    torch_seconds: float = 60.0
    nvml_seconds: float = 5.0


def attempt(question: Callable[..., Answer | None], *about: Any) -> Answer | None:
    """The answer of `question(*about)`, or None when asking fails in whatever way."""
    try:
        return question(*about)
    except Exception:
        return None


def within(seconds: float, question: Callable[[], Answer]) -> tuple[Answer | None, str | None]:
    """The answer, and why there is none: what was raised, or that `seconds` went by.

    The question is asked in a daemon thread, which is left behind when it hangs: a call into a
    driver cannot be interrupted, and the process must be able to end without it.
    """
    answers: queue.SimpleQueue[tuple[Answer | None, str | None]] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put((question(), None))
        except BaseException as error:
            answers.put((None, f"{type(error).__name__}: {error}".splitlines()[0]))

    threading.Thread(target=ask, daemon=True).start()
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        return None, f"no answer within {seconds:g} s"


def read_torch(probes: Probes) -> Torch:
    """The torch build and its devices; without a version where torch cannot be imported."""
    torch, problem = within(probes.torch_seconds, lambda: probes.import_module("torch"))
    if torch is None:
        return Torch(problem=problem)
    gpus, problem = within(probes.torch_seconds, lambda: _read_gpus(torch))
    return Torch(str(torch.__version__), attempt(lambda: torch.version.cuda), gpus or (), problem)


def _read_gpus(torch: Any) -> tuple[Gpu, ...]:
    if not torch.cuda.is_available():
        return ()
    return tuple(_read_gpu(torch, index) for index in range(torch.cuda.device_count()))


def _read_gpu(torch: Any, index: int) -> Gpu:
    properties: Any = attempt(torch.cuda.get_device_properties, index)
    # A lost device still has its properties; only a call that reaches it fails.
    memory = attempt(torch.cuda.mem_get_info, index)
    return Gpu(
        index,
        attempt(lambda: str(properties.name)),
        attempt(lambda: str(properties.uuid)),
        attempt(lambda: f"{properties.major}.{properties.minor}"),
        memory[1] if memory else attempt(lambda: int(properties.total_memory)),
        memory[0] if memory else None,
        attempt(lambda: int(properties.shared_memory_per_block_optin)),
    )


def read_nvml(probes: Probes, gpus: Sequence[Gpu]) -> Nvml:
    """The driver's account of `gpus`; with a `problem` where NVML is missing or does not answer."""
    found, problem = within(probes.nvml_seconds, lambda: _read_nvml(probes, gpus))
    return found or Nvml(problem=problem)


def _read_nvml(probes: Probes, gpus: Sequence[Gpu]) -> Nvml:
    nvml = probes.import_module("pynvml")
    nvml.nvmlInit()
    try:
        return Nvml(
            attempt(lambda: _text(nvml.nvmlSystemGetDriverVersion())),
            attempt(lambda: _cuda_version(nvml.nvmlSystemGetCudaDriverVersion())),
            attempt(nvml.nvmlDeviceGetCount),
            {gpu.uuid: _read_nvml_fields(nvml, gpu.uuid) for gpu in gpus if gpu.uuid},
        )
    finally:
        attempt(nvml.nvmlShutdown)


def _read_nvml_fields(nvml: Any, uuid: str) -> dict[str, Any]:
    # By UUID, since CUDA_VISIBLE_DEVICES renumbers what torch sees and not what NVML sees. torch
    # leaves the prefix out, which differs for a slice of a GPU.
    names = [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]
    handles = (attempt(nvml.nvmlDeviceGetHandleByUUID, name) for name in names)
    handle = next((found for found in handles if found is not None), None)
    if handle is None:
        return dict.fromkeys(NVML_FIELDS)
    return {name: attempt(read, nvml, handle) for name, read in NVML_FIELDS.items()}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def read_system(probes: Probes) -> dict[str, Any]:
    """Operating system, cores and memory that this process may use."""
    memory = attempt(lambda: _memory_table(probes.read_text("/proc/meminfo"))) or {}
    limit = attempt(lambda: int(probes.read_text("/sys/fs/cgroup/memory.max")))
    return {
        "os": attempt(lambda: platform.freedesktop_os_release()["PRETTY_NAME"])
        or platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        # Those this process may use: fewer than the machine has, in a container.
        "cores": attempt(lambda: len(os.sched_getaffinity(0))) or os.cpu_count(),
        "memory_total_bytes": memory.get("MemTotal"),
        "memory_available_bytes": memory.get("MemAvailable"),
        "memory_limit_bytes": limit,
    }


def _memory_table(text: str) -> dict[str, int]:
    lines = (line.split() for line in text.splitlines())
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if len(words) > 1}
