"""The figures of the arena's device from NVML, asked for beside everything else.

NVML may be missing, hang, or lose a device: whoever asks here never waits, and gets what was last
known, or None.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from bandscope.tui.probes import Gpu, Probes, read_nvml
from bandscope.tui.top.snapshot import Device

PERIOD_SECONDS = 2.0
REST_SECONDS = 60.0  # after NVML did not answer


class DeviceFigures:
    """`start` asks NVML about the device of a trace's header, in a thread that ends with the
    program; `latest` is what it said last."""

    def __init__(
        self,
        header: Mapping[str, Any],
        probes: Probes | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        gpu = header.get("gpu") or {}
        self.uuid = str(gpu.get("uuid") or "")
        self.latest = Device(name=str(gpu.get("name") or ""))
        self._probes = probes or Probes()
        self._sleep = sleep
        if self.uuid and header.get("host") != platform.node():
            self.uuid = ""
            self.latest = replace(self.latest, problem="another machine")

    def __call__(self) -> Device:
        """What was said last."""
        return self.latest

    def start(self) -> None:
        """Ask every now and then."""
        if self.uuid:
            threading.Thread(target=self._run, daemon=True, name="nvml").start()

    def _run(self) -> None:
        while True:
            self.ask()
            self._sleep(REST_SECONDS if self.latest.problem else PERIOD_SECONDS)

    def ask(self) -> None:
        """Ask once; waits as long as the probes allow."""
        told = read_nvml(self._probes, [Gpu(0, uuid=self.uuid)])
        figures = told.fields.get(self.uuid, {})
        self.latest = Device(
            self.latest.name,
            figures.get("memory_used_bytes"),
            figures.get("utilization_percent"),
            figures.get("temperature_celsius"),
            figures.get("power_watts"),
            told.problem or "",
        )
