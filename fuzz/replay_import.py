"""Captures of other allocators as traces: PyTorch memory snapshots and RMM logs, as far as they map.

Both are lists of allocations and frees of so many bytes at an address. An allocation becomes a request
that holds as many pages of one band (`full`) as its bytes need; a free its release. What does not map is
counted and named: streams, segments, failures, times. The trace can be looked at with `bandscope top`
and `bandscope inspect`, and replays. Nothing in a file is executed, also not in a pickle.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.errors import TraceError
from bandscope.allocator.plan import plan_from_sizes
from bandscope.inspect.recorder import Recorder

# What PyTorch rounds small allocations to; larger where an arena would have too many pages.
_PAGE_BYTES_MIN = 512
_PAGES_MAX = 1 << 20
_STATE = ("mamba", _PAGE_BYTES_MIN)  # an arena has two bands or more; this one stays empty
_RMM_COLUMNS = ("Action", "Pointer", "Size")


class Change(NamedTuple):
    """An allocation (`size` > 0 bytes) or a free (`size` 0) of an address."""

    address: int
    size: int


@dataclass
class Captured:
    """What a file holds. `held`: address and bytes of what was live before the first change;
    `unsupported`: what does not map, by name."""

    held: dict[int, int] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    unsupported: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class ImportReport:
    """What became of it. `rounded_bytes`: what whole pages take beyond the bytes asked for, at the
    peak."""

    trace: str
    allocations: int
    frees: int
    held_at_start: int
    held_at_end: int
    peak_bytes: int
    rounded_bytes: int
    page_bytes: int
    unsupported: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return dict(self.__dict__)


def import_capture(path: Path, form: str, out: Path) -> ImportReport:
    """Read a capture of a form of `FORMS` and record it as a trace.

    Raises `TraceError` for another form, a file that is none of it, and where the trace cannot be
    written.
    """
    if form not in FORMS:
        raise TraceError(
            f"captures of {form!r} were to be read, but the forms are {', '.join(FORMS)}"
        )
    try:
        captured = FORMS[form](_read(path))
    except (OSError, ValueError, KeyError, TypeError, IndexError, EOFError, AttributeError,
            RecursionError, pickle.UnpicklingError) as error:  # fmt: skip
        raise TraceError(
            f"{path} holds no capture of {form} ({type(error).__name__}: {error}); give what "
            f"{_HINTS[form]}"
        ) from error
    if not captured.changes:
        raise TraceError(f"{path} holds no allocation, so there is nothing to record")
    return _record(captured, out)


def _read(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


# --- forms ------------------------------------------------------------------------------------------


def _torch(data: bytes) -> Captured:
    """`torch.cuda.memory._snapshot()`, pickled or as JSON; or rows of one device
    (`torch-alloc-trace/1`)."""
    told = _Harmless(io.BytesIO(data)).load() if data[:1] == b"\x80" else json.loads(data)
    captured = Captured()
    if "device_traces" in told:
        devices = [device for device in told["device_traces"] if device]
        if len(devices) > 1:
            captured.unsupported["events of other devices"] += sum(map(len, devices[1:]))
        rows = [
            (each["action"], each.get("addr", 0), each["size"], each.get("stream", 0))
            for each in (devices[0] if devices else [])
        ]
    else:
        rows = [tuple(row[:4]) for row in told["events"]]
    streams = set()
    for action, address, size, stream in rows:
        if action == "alloc":
            streams.add(stream)
            _allocate(captured, address, size)
        elif action == "free_completed":  # the address may be reused only then
            captured.changes.append(Change(address, 0))
        elif action != "free_requested":
            captured.unsupported[f"{action} events"] += 1
        else:
            captured.unsupported["free_requested events (a release comes with free_completed)"] += 1
    _one_stream(captured, streams)
    captured.unsupported["times of events"] += len(rows)
    sizes = _freed_before_allocated(rows)
    captured.held = {**_live_blocks(told.get("segments", []), captured.changes), **sizes}
    return captured


def _freed_before_allocated(rows: Iterable[tuple[Any, ...]]) -> dict[int, int]:
    """Address and size of what is freed before anything is allocated there."""
    seen: set[int] = set()
    held: dict[int, int] = {}
    for action, address, size, _ in rows:
        if action == "free_completed" and address not in seen:
            held[address] = max(1, size)
        if action in ("alloc", "free_completed"):
            seen.add(address)
    return held


def _live_blocks(segments: list[Any], changes: list[Change]) -> dict[int, int]:
    """What lives at the end and was not touched by any event, so it lived at the start as well."""
    touched = {change.address for change in changes}
    held: dict[int, int] = {}
    for segment in segments:
        at: int = segment["address"]
        for block in segment["blocks"]:
            size: int
            asked: int
            if isinstance(block, dict):
                address, size = block.get("address", at), block["size"]
                asked, state = block.get("requested_size", size), block["state"]
            else:
                address, size, asked, state = block
            at = address + size
            if state.startswith("active") and address not in touched:
                held[address] = max(1, asked)
    return held


def _rmm(data: bytes) -> Captured:
    """The CSV of RMM's logging adaptor: `Thread,Time,Action,Pointer,Size,Stream`."""
    captured = Captured()
    rows = csv.DictReader(io.StringIO(data.decode()))
    missing = [name for name in _RMM_COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise ValueError(f"its columns lack {', '.join(missing)}")
    live: set[int] = set()
    streams, threads = set(), set()
    for row in rows:
        action, size = row["Action"].strip(), int(row["Size"])
        captured.unsupported["times of events"] += 1
        if action == "allocate failure":
            captured.unsupported["allocate failure rows (nothing was given)"] += 1
            continue
        address = int(row["Pointer"], 16)
        streams.add(row.get("Stream") or "0")
        threads.add(row.get("Thread") or "0")
        if action == "allocate":
            _allocate(captured, address, size)
            live.add(address)
        elif action == "free" and address in live:
            live.discard(address)
            captured.changes.append(Change(address, 0))
        elif action == "free":
            captured.unsupported["frees of what was not allocated in the log"] += 1
        else:
            captured.unsupported[f"{action} rows"] += 1
    _one_stream(captured, streams)
    if len(threads) > 1:
        captured.unsupported["threads beyond the first (taken in the order of the log)"] += (
            len(threads) - 1
        )
    return captured


def _allocate(captured: Captured, address: int, size: int) -> None:
    if size <= 0:
        captured.unsupported["allocations of no bytes (one page each)"] += 1
    captured.changes.append(Change(address, max(1, size)))


def _one_stream(captured: Captured, streams: set[Any]) -> None:
    if len(streams) > 1:
        captured.unsupported["streams beyond the first (all on one)"] += len(streams) - 1


class _Harmless(pickle.Unpickler):
    """Reads plain data only: a pickle that names any class or function is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it wants {module}.{name}, which a snapshot does not hold")


FORMS: dict[str, Callable[[bytes], Captured]] = {"torch": _torch, "rmm": _rmm}
_HINTS = {
    "torch": "`torch.cuda.memory._dump_snapshot()` wrote, or its snapshot as JSON",
    "rmm": "RMM's logging adaptor wrote (a CSV with the columns Action, Pointer and Size)",
}


# --- recording --------------------------------------------------------------------------------------


def _record(captured: Captured, out: Path) -> ImportReport:
    peak = max(bytes_ for bytes_ in _live(captured, 1))
    page = _PAGE_BYTES_MIN
    while peak // page > _PAGES_MAX:
        page *= 2
    pages = max(_live(captured, page)) // page
    plan = plan_from_sizes([_STATE, ("full", page)], page_size=1, model="imported")
    total = plan.sink_bytes + (pages + 1) * page + _STATE[1]
    # Nothing lies in the way of a request: the band is one run of pages, whatever was freed.
    arena = Arena(plan, total + -total % 4096, device="none", config=ArenaConfig(hand_out="none"))
    requests: dict[int, int] = {}
    counts = Counter[str]()
    with Recorder(out, arena) as recorder:
        recorder.annotate("held before the first event")
        for address, size in sorted(captured.held.items()):
            _admit(arena, requests, address, -(-size // page))
        recorder.annotate("events")
        number = len(captured.held)
        for address, size in captured.changes:
            if not size:
                request = requests.pop(address, None)
                if request is None:
                    captured.unsupported["frees of what nobody holds"] += 1
                    continue
                arena.release(request)
                counts["frees"] += 1
                continue
            if address in requests:
                captured.unsupported["allocations of an address that is held (the older one ends)"] += 1
                arena.release(requests.pop(address))
            arena.admit(number, state_slots=0)
            arena.extend(number, -(-size // page))
            requests[address] = number
            number += 1
            counts["allocations"] += 1
        for what, count in sorted(captured.unsupported.items()):
            recorder.annotate(f"not in this trace: {count} {what}")
    return ImportReport(
        str(recorder.directory),
        counts["allocations"],
        counts["frees"],
        len(captured.held),
        len(requests),
        peak,
        pages * page - peak,
        page,
        dict(sorted(captured.unsupported.items())),
    )


def _admit(arena: Arena, requests: dict[int, int], address: int, pages: int) -> None:
    number = len(requests)
    arena.admit(number, state_slots=0)
    arena.extend(number, pages)
    requests[address] = number


def _live(captured: Captured, page: int) -> Iterator[int]:
    """The bytes held, rounded up to whole pages, before and after every change."""
    held = dict(captured.held)
    total = sum(-(-size // page) * page for size in held.values())
    yield total
    for address, size in captured.changes:
        total -= -(-held.pop(address, 0) // page) * page
        if size:
            held[address] = size
            total += -(-size // page) * page
        yield total
