"""The diagnosis against machines that are described here, and the command that prints it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from rich.console import Console

from bandscope.tui.commands import doctor as doctor_command
from bandscope.tui.diagnosis import Diagnosis, Finding, diagnose
from bandscope.tui.probes import NVML_FIELDS, Probes
from tests.conftest import CHECKOUT

UUID = "11111111-2222-3333-4444-555555555555"
VERSIONS = {
    "numpy": "2.3.5", "torch": "2.11.0", "triton": "3.6.0", "textual": "8.2.8", "rich": "15.0.0",
    "typer": "0.29.2", "nvidia-ml-py": "13.6", "hypothesis": "6", "import-linter": "2",
    "mypy": "2", "pytest": "8", "pytest-xdist": "3", "ruff": "0",
}  # fmt: skip


class NotSupported(Exception):
    """What NVML raises for a field that a device does not have."""


class FakeNvml:
    """NVML with one device; `broken` names the functions that raise."""

    NVML_CLOCK_SM = 1

    def __init__(self, *broken: str, uuid: str = f"GPU-{UUID}", count: int = 1) -> None:
        self.broken, self.uuid, self.count = broken, uuid, count
        self.open = False
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answers: dict[str, Callable[..., Any]] = {
            "nvmlSystemGetDriverVersion": lambda: b"580.65",
            "nvmlSystemGetCudaDriverVersion": lambda: 13010,
            "nvmlDeviceGetCount": lambda: self.count,
            "nvmlDeviceGetHandleByUUID": self._handle,
            "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(used=5),
            "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=17),
            "nvmlDeviceGetTemperature": lambda gpu, sensor: 40,
            "nvmlDeviceGetPowerUsage": lambda gpu: 70500,
            "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: 700000,
            "nvmlDeviceGetClockInfo": lambda gpu, clock: 1980,
            "nvmlDeviceGetCurrPcieLinkGeneration": lambda gpu: 5,
            "nvmlDeviceGetCurrPcieLinkWidth": lambda gpu: 16,
            "nvmlDeviceGetEccMode": lambda gpu: [1, 1],
            "nvmlDeviceGetMigMode": lambda gpu: [0, 0],
        }

        def answer(*about: Any) -> Any:
            self.asked.append(name)
            if name in self.broken:
                raise NotSupported(name)
            if name in ("nvmlInit", "nvmlShutdown"):
                self.open = name == "nvmlInit"
                return None
            return answers[name](*about)

        return answer

    def _handle(self, uuid: str) -> str:
        if uuid != self.uuid:
            raise NotSupported(f"no device {uuid}")
        return uuid


class FakeTorch:
    """torch with `count` devices; `lost` ones do not answer."""

    def __init__(self, count: int = 1, *, cuda: str | None = "13.0", lost: bool = False) -> None:
        self.__version__ = "2.11.0+cu130" if cuda else "2.11.0+cpu"
        self.version = SimpleNamespace(cuda=cuda)
        self.lost = lost
        properties = SimpleNamespace(
            name="NVIDIA [H200]", uuid=UUID, major=9, minor=0, total_memory=150 << 30,
            shared_memory_per_block_optin=232448,
        )  # fmt: skip
        self.cuda = SimpleNamespace(
            is_available=lambda: count > 0, device_count=lambda: count,
            get_device_properties=lambda index: properties, mem_get_info=self._memory,
        )  # fmt: skip

    def _memory(self, index: int) -> tuple[int, int]:
        if self.lost:
            raise RuntimeError("CUDA error: device lost")
        return 140 << 30, 150 << 30


def machine(
    torch: Any = None, nvml: Any = None, *, versions: dict[str, str | None] | None = None,
    **changes: Any,
) -> Probes:  # fmt: skip
    """A healthy machine with one GPU, but for what is given; an exception as a module is raised."""
    installed = VERSIONS | (versions or {})
    modules = {
        "numpy": object(), "triton": object(), "torch": torch or FakeTorch(),
        "pynvml": nvml or FakeNvml(),
    } | changes.pop("modules", {})  # fmt: skip

    def import_module(name: str) -> Any:
        if isinstance(modules[name], BaseException):
            raise modules[name]
        return modules[name]

    def distribution_version(name: str) -> str:
        version = installed[name]
        if version is None:
            raise PackageNotFoundError(name)
        return version

    probes = Probes(
        import_module, distribution_version, environment={},
        read_text=lambda path: "MemTotal: 1024 kB\nMemAvailable: 512 kB\n",
        file_exists=lambda path: True, file_system_bytes=lambda path: 8 << 30,
        find_program=lambda name: f"bin/{name}", locked_memory_bytes=lambda: -1,
    )  # fmt: skip
    return replace(probes, **changes)


def finding(diagnosis: Diagnosis, words: str) -> Finding:
    found = [each for each in diagnosis.findings if words in each.what]
    assert len(found) == 1, diagnosis.findings
    return found[0]


# --- a healthy machine ----------------------------------------------------------------------------


def test_a_healthy_machine_has_no_findings() -> None:
    diagnosis = diagnose(machine())
    assert diagnosis.findings == ()
    assert diagnosis.healthy
    assert diagnosis.versions["torch"] == "2.11.0+cu130"
    assert diagnosis.triton_mode == "compiled for sm_90"
    assert diagnosis.system["memory_total_bytes"] == 1 << 20
    assert diagnosis.driver == {
        "version": "580.65", "cuda_version": "13.1", "device_count": 1, "problem": None,
    }  # fmt: skip


def test_a_gpu_joins_what_torch_and_the_driver_say() -> None:
    gpu = diagnose(machine()).gpus[0]
    assert (gpu.name, gpu.capability, gpu.uuid) == ("NVIDIA [H200]", "9.0", UUID)
    assert (gpu.memory_total_bytes, gpu.memory_free_bytes) == (150 << 30, 140 << 30)
    assert gpu.shared_memory_block_bytes == 232448
    assert gpu.driver == {
        "memory_used_bytes": 5, "utilization_percent": 17, "temperature_celsius": 40,
        "power_watts": 70.5, "power_limit_watts": 700, "clock_sm_mhz": 1980, "pcie_generation": 5,
        "pcie_width": 16, "ecc_enabled": True, "mig_enabled": False,
    }  # fmt: skip


# --- NVML -----------------------------------------------------------------------------------------


NVML_FUNCTIONS = {
    "nvmlDeviceGetMemoryInfo": "memory_used_bytes",
    "nvmlDeviceGetUtilizationRates": "utilization_percent",
    "nvmlDeviceGetTemperature": "temperature_celsius",
    "nvmlDeviceGetPowerUsage": "power_watts",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_watts",
    "nvmlDeviceGetClockInfo": "clock_sm_mhz",
    "nvmlDeviceGetCurrPcieLinkGeneration": "pcie_generation",
    "nvmlDeviceGetCurrPcieLinkWidth": "pcie_width",
    "nvmlDeviceGetEccMode": "ecc_enabled",
    "nvmlDeviceGetMigMode": "mig_enabled",
}


@pytest.mark.parametrize("function", NVML_FUNCTIONS)
def test_a_field_that_is_not_supported_costs_only_itself(function: str) -> None:
    driver = diagnose(machine(nvml=FakeNvml(function))).gpus[0].driver
    missing = [name for name, value in driver.items() if value is None]
    assert missing == [NVML_FUNCTIONS[function]]


def test_every_nvml_field_is_covered_above() -> None:
    assert set(NVML_FUNCTIONS.values()) == set(NVML_FIELDS)


@pytest.mark.parametrize(
    "function", ["nvmlSystemGetDriverVersion", "nvmlDeviceGetCount", "nvmlShutdown"]
)
def test_a_failing_call_leaves_the_fields(function: str) -> None:
    diagnosis = diagnose(machine(nvml=FakeNvml(function)))
    assert diagnosis.gpus[0].driver["temperature_celsius"] == 40
    assert diagnosis.driver["problem"] is None


@pytest.mark.parametrize(
    "probes",
    [
        machine(nvml=FakeNvml("nvmlInit")),
        machine(modules={"pynvml": ImportError("no module named pynvml")}),
        machine(modules={"pynvml": SystemExit(1)}),
    ],
)
def test_a_gpu_without_nvml_is_only_a_note(probes: Probes) -> None:
    diagnosis = diagnose(probes)
    assert finding(diagnosis, "NVML is not available").level == "note"
    assert set(diagnosis.gpus[0].driver.values()) == {None}
    assert diagnosis.gpus[0].memory_free_bytes == 140 << 30
    assert diagnosis.healthy


def test_nvml_is_closed_after_use() -> None:
    nvml = FakeNvml("nvmlDeviceGetMemoryInfo")
    diagnose(machine(nvml=nvml))
    assert nvml.asked[-1] == "nvmlShutdown"
    assert not nvml.open


def test_another_device_of_the_driver_is_not_taken_for_this_one() -> None:
    nvml = FakeNvml(uuid="GPU-99999999-0000-0000-0000-000000000000", count=8)
    assert set(diagnose(machine(nvml=nvml)).gpus[0].driver.values()) == {None}


def test_a_slice_of_a_gpu_is_found_by_its_own_prefix() -> None:
    nvml = FakeNvml(uuid=f"MIG-{UUID}")
    assert diagnose(machine(nvml=nvml)).gpus[0].driver["temperature_celsius"] == 40


@pytest.mark.parametrize("module", ["pynvml", "torch", "triton", "numpy"])
def test_a_hanging_module_does_not_hang_the_diagnosis(module: str) -> None:
    released = threading.Event()
    healthy = machine()

    def import_module(name: str) -> Any:
        if name == module:
            released.wait(60)
        return healthy.import_module(name)

    started = time.monotonic()
    try:
        diagnosis = diagnose(
            replace(healthy, import_module=import_module, nvml_seconds=0.05, torch_seconds=0.05)
        )
    finally:
        released.set()
    assert time.monotonic() - started < 10
    assert any("no answer within 0.05 s" in each.what for each in diagnosis.findings)


# --- torch and GPUs -------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["torch", "numpy"])
def test_without_an_essential_package_it_is_not_healthy(module: str) -> None:
    diagnosis = diagnose(machine(modules={module: ImportError("libfoo.so is missing\nmore")}))
    assert not diagnosis.healthy
    found = finding(diagnosis, f"{module} cannot be imported")
    assert found.level == "essential"
    assert "libfoo.so is missing" in found.what and "more" not in found.what
    assert diagnosis.findings[0] == found


def test_a_lost_device_is_named_and_the_rest_stands() -> None:
    diagnosis = diagnose(machine(FakeTorch(lost=True)))
    assert finding(diagnosis, "cuda:0 does not answer").level == "warning"
    assert diagnosis.gpus[0].memory_total_bytes == 150 << 30
    assert diagnosis.gpus[0].memory_free_bytes is None


def test_a_failing_start_of_cuda_is_told() -> None:
    torch = FakeTorch()

    def fail() -> bool:
        raise RuntimeError("driver mismatch")

    torch.cuda.is_available = fail
    diagnosis = diagnose(machine(torch))
    assert "driver mismatch" in finding(diagnosis, "CUDA fails to start").what
    assert diagnosis.versions["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("torch", "nvml", "words", "level"),
    [
        (FakeTorch(0, cuda=None), FakeNvml(count=2), "built without CUDA", "warning"),
        (FakeTorch(0), FakeNvml(count=2), "none of the driver's 2 GPU(s)", "warning"),
        (FakeTorch(0, cuda=None), FakeNvml("nvmlInit"), "no CUDA GPU", "note"),
    ],
)
def test_why_there_is_no_gpu(torch: FakeTorch, nvml: FakeNvml, words: str, level: str) -> None:
    diagnosis = diagnose(machine(torch, nvml))
    assert finding(diagnosis, words).level == level
    assert diagnosis.healthy
    assert not [each for each in diagnosis.findings if "NVML" in each.what]


# --- Triton ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["1", "true", "ON", "yes"])
def test_the_interpreter_is_named_when_it_is_on(value: str) -> None:
    mode = diagnose(machine(environment={"TRITON_INTERPRET": value})).triton_mode
    assert mode == "interpreter (TRITON_INTERPRET is set)"


def test_zero_does_not_turn_the_interpreter_on() -> None:
    mode = diagnose(machine(environment={"TRITON_INTERPRET": "0"})).triton_mode
    assert mode == "compiled for sm_90"


def test_triton_is_unavailable_without_a_gpu_or_without_the_package() -> None:
    no_gpu = diagnose(machine(FakeTorch(0)))
    assert no_gpu.triton_mode == "unavailable"
    assert "TRITON_INTERPRET=1" in finding(no_gpu, "no GPU to compile for").remedy
    missing = diagnose(machine(modules={"triton": ImportError("none")}))
    assert missing.triton_mode == "unavailable"
    assert finding(missing, "Triton cannot be imported").level == "warning"


@pytest.mark.parametrize(
    ("triton", "numpy", "interpret", "level"),
    [
        ("3.6.0", "2.5.2", "1", "warning"),
        ("3.5.1", "2.4.0", "1", "warning"),
        ("3.6.0", "2.4.6", "", "note"),
        ("3.7.1", "2.4.6", "1", None),
        ("3.6.0", "2.3.5", "1", None),
    ],
)
def test_the_pair_that_cannot_interpret_is_told(
    triton: str, numpy: str, interpret: str, level: str | None
) -> None:
    diagnosis = diagnose(
        machine(
            versions={"triton": triton, "numpy": numpy}, environment={"TRITON_INTERPRET": interpret}
        )
    )
    told = [each.level for each in diagnosis.findings if "interpreter of triton" in each.what]
    assert told == ([] if level is None else [level])


# --- the rest -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"file_system_bytes": lambda path: 64 << 20}, "/dev/shm holds only 64 MiB"),
        ({"locked_memory_bytes": lambda: 8 << 20}, "only 8192 KiB of memory may be locked"),
        ({"find_program": lambda name: None}, "no C compiler"),
        ({"file_exists": lambda path: False}, "no Python headers"),
        ({"versions": {"ruff": None}}, "development tools"),
        ({"versions": {"textual": None}}, "textual is not installed"),
        ({"versions": {"rich": "13.9.4"}}, "rich 13.9.4 is older than 14"),
    ],
)
def test_each_missing_thing_is_one_finding_with_cost_and_remedy(
    changes: dict[str, Any], words: str
) -> None:
    diagnosis = diagnose(machine(**changes))
    found = finding(diagnosis, words)
    assert len(diagnosis.findings) == 1
    assert found.cost and found.remedy and found.level != "essential"


def test_a_machine_that_answers_nothing_is_still_diagnosed() -> None:
    def refuse(*about: Any) -> Any:
        raise OSError("refused")

    diagnosis = diagnose(
        Probes(refuse, refuse, {}, refuse, refuse, refuse, refuse, refuse)
    )
    assert not diagnosis.healthy
    assert diagnosis.limits == {"shared_memory_bytes": None, "locked_memory_bytes": None}
    json.dumps(doctor_command.to_json(diagnosis))


# --- the command ----------------------------------------------------------------------------------


def printed(diagnosis: Diagnosis, width: int = 100) -> str:
    console = Console(width=width, record=True, file=open(os.devnull, "w"), highlight=False)
    doctor_command.print_diagnosis(console, diagnosis)
    return console.export_text()


def test_the_table_shows_facts_and_marks_what_is_missing() -> None:
    text = printed(diagnose(machine(nvml=FakeNvml("nvmlDeviceGetPowerUsage"))))
    rows = {
        cells[0].strip(): cells[1].strip()
        for line in text.splitlines()
        if len(cells := line.strip("│").split("│")) == 2
    }
    assert rows["cuda:0 name"] == "NVIDIA [H200]"
    assert rows["cuda:0 memory free"] == "140.0 GiB"
    assert rows["cuda:0 power watts"] == "n/a"
    assert rows["cuda:0 mig enabled"] == "no"
    assert rows["locked memory"] == "unlimited"
    assert "nothing essential is missing" in text


def test_findings_follow_the_table_worst_first() -> None:
    probes = machine(
        versions={"textual": None, "ruff": None}, modules={"numpy": ImportError("broken")}
    )
    text = printed(diagnose(probes))
    places = [text.index(word) for word in ("└", "essential: ", "warning: ", "note: ")]
    assert places == sorted(places)
    assert "Bandscope cannot work here" in text


@pytest.mark.parametrize("broken", [False, True])
def test_the_exit_status_and_the_json(
    broken: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    probes = machine(modules={"torch": ImportError("none")} if broken else {})
    monkeypatch.setattr(doctor_command, "diagnose", lambda: diagnose(probes))
    if broken:
        with pytest.raises(typer.Exit) as exited:
            doctor_command.doctor(as_json=True)
        assert exited.value.exit_code == 1
    else:
        doctor_command.doctor(as_json=True)
    data = json.loads(capsys.readouterr().out)
    assert data["healthy"] is not broken
    assert bool(data["findings"]) is broken
    assert set(data) >= {"versions", "system", "driver", "gpus", "triton_mode", "limits"}


def test_this_machine_is_diagnosed() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "bandscope.tui.main", "doctor", "--json"],
        env=os.environ | {"PYTHONPATH": str(CHECKOUT / ".src")},
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    versions = json.loads(found.stdout)["versions"]
    assert versions["python"] and versions["numpy"] and versions["torch"]
