"""Memory of common GPUs, for sizing an arena without the machine at hand.

The figures are what the driver reports as total (NVML, `nvidia-smi`), in MiB; with error correction on,
where it can be turned off. A process sees some hundred MiB less. `bandscope doctor` shows the figure of
the machine it runs on; give that with `--arena-bytes` where it matters.
"""

from __future__ import annotations

import difflib

from bandscope.allocator.errors import SizingError

GPU_MEBIBYTES = {
    "t4": 15_360,
    "a10": 23_028,
    "l4": 23_034,
    "l40s": 46_068,
    "a100-40gb": 40_960,
    "a100-80gb": 81_920,
    "h100": 81_559,
    "h200": 143_771,
}


def gpu_bytes(name: str) -> int:
    """Total memory of the GPU called `name`, in bytes; `SizingError` lists the known ones."""
    mebibytes = GPU_MEBIBYTES.get(name.lower())
    if mebibytes is None:
        close = difflib.get_close_matches(name.lower(), GPU_MEBIBYTES, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(GPU_MEBIBYTES)}"
        raise SizingError(
            f"GPU {name!r} is not in the table; {hint} (or give the arena's size with --arena-bytes)"
        )
    return mebibytes << 20
