"""Devices: where an arena's bytes live and how work on them is ordered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bandscope.allocator.errors import DeviceError

if TYPE_CHECKING:
    from bandscope.allocator.device.protocol import Device

DEVICE_NAMES = ("auto", "cpu", "cuda", "none")


def open_device(name: str) -> Device:
    """The device called `name`: `cpu`, `cuda`, `none`, or `auto` (CUDA where there is one).

    Raises `DeviceError` for an unknown name, or a GPU that is not there. torch is imported only by
    the devices that need it.
    """
    if name == "none":
        from bandscope.allocator.device.none import NoDevice

        return NoDevice()
    if name not in DEVICE_NAMES:
        raise DeviceError(
            f"device {name!r} was asked for, but the devices are {', '.join(DEVICE_NAMES)}"
        )
    if name == "auto":
        import torch

        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        from bandscope.allocator.device.cuda import CudaDevice

        return CudaDevice()
    from bandscope.allocator.device.cpu import CpuDevice

    return CpuDevice()
