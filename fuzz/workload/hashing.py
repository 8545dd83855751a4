"""A 64-bit hash in torch, for content that can be made again anywhere: stamps, keys, values."""

from __future__ import annotations

import torch

MIX = (-7046029254386353131, -4417276706812531889, -2960836687055557781)


def mix(values: torch.Tensor) -> torch.Tensor:
    """A 64-bit mix; torch's int64 products wrap, on the CPU and on a GPU alike."""
    values = values * MIX[0]
    values = (values ^ (values >> 29)) * MIX[2]
    return values ^ (values >> 32)
