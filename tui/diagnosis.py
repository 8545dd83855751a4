"""What this machine offers to Bandscope, as plain data; nothing here prints.

`probes` asks the questions; here the answers are put together and judged. Whatever is missing or
in the way becomes a `Finding`, which says what it costs and how to get it.
"""

from __future__ import annotations

import platform
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import bandscope
from bandscope.tui.probes import (
    NVML_FIELDS,
    Gpu,
    Nvml,
    Probes,
    Torch,
    attempt,
    read_nvml,
    read_system,
    read_torch,
    within,
)

Level = Literal["essential", "warning", "note"]

# As Triton itself reads a variable that switches something on.
_TRUE = ("1", "true", "on", "y", "yes")
_SHARED_MEMORY_BYTES_MIN = 1 << 30
_LOCKED_MEMORY_BYTES_MIN = 64 << 20
# Distributions by name, and the oldest release that Bandscope declares.
_PACKAGES = {
    "numpy": (2, 0),
    "torch": (2, 9),
    "triton": (3, 5),
    "textual": (8, 2),
    "rich": (14,),
    "typer": (0, 16),
    "nvidia-ml-py": (12,),
}
_DEVELOPMENT = ("hypothesis", "import-linter", "mypy", "pytest", "pytest-xdist", "ruff")


@dataclass(frozen=True)
class Finding:
    """Something missing or in the way: what it is, what that costs, how to get it."""

    level: Level
    what: str
    cost: str
    remedy: str


@dataclass(frozen=True)
class Diagnosis:
    """All facts and findings; `healthy` unless something essential is missing.

    None is an answer that could not be had; a `locked_memory_bytes` of -1 is no limit.
    """

    versions: dict[str, str | None]
    system: dict[str, Any]
    torch_cuda: str | None
    driver: dict[str, Any]
    gpus: tuple[Gpu, ...]
    triton_mode: str
    limits: dict[str, int | None]
    optional: dict[str, str | None]
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether Bandscope can work here at all."""
        return all(finding.level != "essential" for finding in self.findings)


def diagnose(probes: Probes | None = None) -> Diagnosis:
    """Ask `probes` (this machine when None) everything. Never raises, never waits without end."""
    probes = Probes() if probes is None else probes
    versions = {name: attempt(probes.distribution_version, name) for name in _PACKAGES}
    findings: list[Finding] = []
    numpy_problem = within(probes.torch_seconds, lambda: probes.import_module("numpy"))[1]
    torch = read_torch(probes)
    nvml = read_nvml(probes, torch.gpus)
    versions["torch"] = torch.version or versions["torch"]
    gpus = tuple(
        replace(gpu, driver=nvml.fields.get(gpu.uuid or "", dict.fromkeys(NVML_FIELDS)))
        for gpu in torch.gpus
    )
    triton_mode = _triton_mode(probes, torch, findings)
    limits = {
        "shared_memory_bytes": attempt(lambda: probes.file_system_bytes("/dev/shm")),
        "locked_memory_bytes": attempt(probes.locked_memory_bytes),
    }
    optional = _optional(probes)

    findings += _package_findings(versions, numpy_problem, torch)
    findings += _gpu_findings(torch, nvml, gpus)
    findings += _trap_findings(versions, triton_mode)
    findings += _limit_findings(limits, optional, bool(gpus))
    order: dict[Level, int] = {"essential": 0, "warning": 1, "note": 2}
    return Diagnosis(
        versions={
            "python": platform.python_version(), "bandscope": bandscope.__version__, **versions
        },
        system=read_system(probes),
        torch_cuda=torch.cuda,
        driver={
            "version": nvml.driver_version,
            "cuda_version": nvml.cuda_version,
            "device_count": nvml.device_count,
            "problem": nvml.problem,
        },
        gpus=gpus,
        triton_mode=triton_mode,
        limits=limits,
        optional=optional,
        findings=tuple(sorted(findings, key=lambda finding: order[finding.level])),
    )


def _triton_mode(probes: Probes, torch: Torch, findings: list[Finding]) -> str:
    triton, problem = within(probes.torch_seconds, lambda: probes.import_module("triton"))
    asked = probes.environment.get("TRITON_INTERPRET", "").lower() in _TRUE
    if triton is None:
        findings.append(
            Finding(
                "warning" if torch.gpus else "note",
                f"Triton cannot be imported ({problem})",
                "page moves use torch copies, which are slower for small pages",
                "pip install 'triton>=3.5' (Linux only)",
            )
        )
        return "unavailable"
    if asked:
        return "interpreter (TRITON_INTERPRET is set)"
    if torch.gpus:
        architecture = (torch.gpus[0].capability or "").replace(".", "")
        return f"compiled for sm_{architecture}" if architecture else "compiled"
    findings.append(
        Finding(
            "note",
            "Triton has no GPU to compile for, and TRITON_INTERPRET is not set",
            "Triton kernels do not run; arenas in host memory do not need them",
            "set TRITON_INTERPRET=1 to run kernels in the interpreter, for tests only",
        )
    )
    return "unavailable"


def _package_findings(
    versions: Mapping[str, str | None], numpy_problem: str | None, torch: Torch
) -> list[Finding]:
    found = []
    if numpy_problem is not None:
        found.append(
            Finding(
                "essential", f"numpy cannot be imported ({numpy_problem})",
                "no arena can be made and no trace can be read", "pip install 'numpy>=2.0'",
            )
        )
    if torch.version is None:
        found.append(
            Finding(
                "essential", f"torch cannot be imported ({torch.problem})",
                "no arena can be made", "pip install 'torch>=2.9'",
            )
        )
    for name, minimum in _PACKAGES.items():
        version = versions[name]
        if version is not None and _numbers(version) < minimum:
            wanted = ".".join(map(str, minimum))
            found.append(
                Finding(
                    "warning", f"{name} {version} is older than {wanted}",
                    "Bandscope is not tested with it", f"pip install -U '{name}>={wanted}'",
                )
            )
    if versions["textual"] is None:
        found.append(
            Finding("warning", "textual is not installed", "there is no live screen",
                    "pip install 'textual>=8.2,<9'")
        )
    return found


def _gpu_findings(torch: Torch, nvml: Nvml, gpus: Sequence[Gpu]) -> list[Finding]:
    cpu_only = "arenas live in host memory (--device cpu) and their speed says nothing of a GPU"
    seen = nvml.device_count or 0
    if torch.version is None:
        return []
    if torch.problem is not None:
        return [
            Finding("warning", f"CUDA fails to start ({torch.problem})", cpu_only,
                    "see `dmesg` for Xid errors; restart the container or the driver")
        ]
    if not gpus and seen and torch.cuda is None:
        return [
            Finding("warning", f"torch {torch.version} is built without CUDA, yet the driver has "
                    f"{seen} GPU(s)", cpu_only, "install a CUDA build of torch: see pytorch.org")
        ]
    if not gpus and seen:
        return [
            Finding("warning", f"torch sees none of the driver's {seen} GPU(s)", cpu_only,
                    "check CUDA_VISIBLE_DEVICES, and that the driver serves CUDA "
                    f"{torch.cuda} (it serves {nvml.cuda_version or 'n/a'})")
        ]
    if not gpus:
        return [
            Finding("note", "no CUDA GPU", cpu_only,
                    "use a machine with an NVIDIA GPU, its driver, and a CUDA build of torch")
        ]
    found = [
        Finding("warning", f"cuda:{gpu.index} does not answer: its free memory cannot be read",
                "no arena can be made on it",
                "see `dmesg` for Xid errors; restart the container or the driver")
        for gpu in gpus if gpu.memory_free_bytes is None
    ]
    if nvml.problem is not None:
        found.append(
            Finding("note", f"NVML is not available ({nvml.problem})",
                    "driver version, power, clocks and temperature are not shown",
                    "pip install nvidia-ml-py; in a container, allow the `utility` capability")
        )
    return found


def _trap_findings(versions: Mapping[str, str | None], triton_mode: str) -> list[Finding]:
    triton, numpy = versions["triton"], versions["numpy"]
    if triton is None or numpy is None:
        return []
    if _numbers(triton)[:2] not in ((3, 5), (3, 6)) or _numbers(numpy) < (2, 4):
        return []
    return [
        Finding(
            "warning" if triton_mode.startswith("interpreter") else "note",
            f"the interpreter of triton {triton} fails beside numpy {numpy}",
            "kernels that loop over a runtime range raise TypeError when interpreted",
            "pip install 'numpy<2.4' or 'triton>=3.7' where kernels are interpreted",
        )
    ]


def _limit_findings(
    limits: Mapping[str, int | None], optional: Mapping[str, str | None], has_gpu: bool
) -> list[Finding]:
    found = []
    shared, locked = limits["shared_memory_bytes"], limits["locked_memory_bytes"]
    if shared is not None and shared < _SHARED_MEMORY_BYTES_MIN:
        found.append(
            Finding("warning", f"/dev/shm holds only {shared >> 20} MiB",
                    "processes that share memory through it may die of a bus error",
                    "docker run --shm-size=8g, or mount -o remount,size=8g /dev/shm")
        )
    if locked is not None and 0 <= locked < _LOCKED_MEMORY_BYTES_MIN:
        found.append(
            Finding("note", f"only {locked >> 10} KiB of memory may be locked",
                    "large pinned buffers for host copies may be refused",
                    "ulimit -l unlimited, or docker run --ulimit memlock=-1")
        )
    if has_gpu and (optional["C compiler"] is None or optional["Python headers"] is None):
        found.append(
            Finding("warning", "no C compiler, or no Python headers",
                    "Triton cannot build its launcher, so its kernels do not start",
                    "install gcc and the headers of this Python (python3-dev)")
        )
    if optional["development tools"] is None:
        found.append(
            Finding("note", "the development tools are not all installed",
                    "tests and checks of Bandscope itself cannot be run",
                    "pip install 'bandscope[dev]'")
        )
    return found


def _optional(probes: Probes) -> dict[str, str | None]:
    compilers = [probes.environment.get("CC", ""), "gcc", "clang", "cc"]
    headers = f"{sysconfig.get_paths()['include']}/Python.h"
    tools = [attempt(probes.distribution_version, name) for name in _DEVELOPMENT]
    found = (name for name in compilers if name and attempt(probes.find_program, name))
    return {
        "C compiler": next(found, None),
        "Python headers": "installed" if attempt(probes.file_exists, headers) else None,
        "development tools": "installed" if all(tools) else None,
    }


def _numbers(version: str) -> tuple[int, ...]:
    # The release of a version, without what follows it: 2.13.0+cpu, 3.6.0.post1, 2.15.0a0.
    numbers: list[int] = []
    for part in version.split("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
