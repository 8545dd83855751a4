"""Numbers from the host to a device, without the host waiting for it."""

from __future__ import annotations

import numpy as np
import torch

# Rows start on 64 bytes or more, so that no kernel is compiled anew for another alignment.
_COUNT_MULTIPLE = 16


def upload(numbers: np.ndarray, where: torch.device) -> torch.Tensor:
    """The same numbers on `where`: same shape and type, the last axis contiguous.

    On a GPU through pinned memory, in order on the current stream; torch keeps the pinned block
    until that stream is past the copy. `numbers` may be changed as soon as this returns.
    """
    count = numbers.shape[-1]
    staged = torch.empty(
        (*numbers.shape[:-1], count + -count % _COUNT_MULTIPLE),
        dtype=torch.from_numpy(np.empty(0, numbers.dtype)).dtype,
        pin_memory=where.type != "cpu",
    )
    staged.numpy()[..., :count] = numbers
    return staged.to(where, non_blocking=True)[..., :count]
