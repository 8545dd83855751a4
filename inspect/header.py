"""The header of a trace: what was recorded, where, by which versions, under which policies."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
import zlib
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from bandscope.allocator.arena import Arena
from bandscope.allocator.errors import TraceError
from bandscope.inspect import registry
from bandscope.inspect.format import FORMAT_VERSION, HEADER_NAME, PREFIX_CACHE

_PACKAGES = ("bandscope", "numpy", "torch", "triton", "zstandard")


def make_header(
    arena: Arena, *, trace_id: int, rank: int | None, wall_ns: int, recorder: dict[str, Any]
) -> dict[str, Any]:
    """Everything about a run that a reader needs before the first record, as plain data. `wall_ns`: the
    wall clock when the trace's own clock was 0."""
    books = arena.books
    return {
        "format": FORMAT_VERSION,
        "trace_id": f"{trace_id:016x}",
        "rank": rank,
        "pid": os.getpid(),
        "birth": registry.birth(os.getpid()),
        "command": sys.argv,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall_ns / 1e9)),
        "wall_ns": wall_ns,
        "recorder": recorder,
        "arena": {
            "total_bytes": arena.total_bytes,
            "sink_bytes": arena.plan.sink_bytes,
            "config": asdict(books.config),
            "device": arena.device.name,
        },
        "model": arena.plan.model,
        "family": arena.plan.family,
        "page_size": arena.plan.page_size,
        "context_length": arena.plan.context_length,
        "tensor_parallel": arena.plan.tensor_parallel,
        "bands": [
            {
                "name": band.name,
                "kind": band.plan.kind,
                "end": band.plan.end,
                "window_length": band.plan.window_length,
                "entry_bytes": band.plan.entry_bytes,
                "page_bytes": band.page_bytes,
                "layers": list(band.plan.layers),
                "first_page": band.first_page,
                "direction": band.direction,
                "capacity": band.capacity,
                "virtual_capacity": band.virtual_capacity,
            }
            for band in books.bands
        ],
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "gpu": _gpu(arena),
        "revision": revision(),
        **({"features": [PREFIX_CACHE]} if books.config.prefix_cache else {}),
    }


def seal_header(header: dict[str, Any]) -> bytes:
    """The header as the bytes of `trace.json`: one line of JSON, then its CRC-32 in hexadecimal."""
    body = json.dumps(header, sort_keys=True).encode()
    return body + b"\n" + f"{zlib.crc32(body):08x}\n".encode()


def open_header(data: bytes) -> dict[str, Any]:
    """The inverse of `seal_header`; `ValueError` when the bytes are damaged."""
    body, newline, rest = data.partition(b"\n")
    if not newline or rest != f"{zlib.crc32(body):08x}\n".encode():
        raise ValueError("its checksum does not match")
    header = json.loads(body)
    if not isinstance(header, dict):
        raise ValueError("it holds no header")
    return header


def write_header(directory: Path, header: dict[str, Any]) -> None:
    """Write `trace.json`, whole or not at all."""
    draft = directory / f"{HEADER_NAME}.new"
    try:
        draft.write_bytes(seal_header(header))
        os.replace(draft, directory / HEADER_NAME)
    except OSError as error:
        raise TraceError(
            f"{directory / HEADER_NAME} could not be written ({error.strerror}); free space, or record "
            "to another folder"
        ) from error


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gpu(arena: Arena) -> dict[str, Any] | None:
    if arena.device.name != "cuda":
        return None
    import torch

    device = arena.buffer.device
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "uuid": str(getattr(properties, "uuid", "")) or None,
        "total_memory_bytes": properties.total_memory,
        "compute_capability": [properties.major, properties.minor],
        "cuda": torch.version.cuda,
    }


def revision() -> str | None:
    """The git revision of the code that allocates, where it runs from a checkout."""
    try:
        found = subprocess.run(
            ["git", "-C", str(Path(__file__).resolve().parent), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
