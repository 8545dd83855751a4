"""Many records applied at once lead where one record after the other leads."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.operations import Operation
from bandscope.inspect import bulk
from bandscope.inspect.bulk import BulkTimeline
from bandscope.inspect.format import Kind, pack_list, pack_numbers, unpack_lists
from bandscope.inspect.page_lists import find_lists, flatten
from bandscope.inspect.reader import Trace
from bandscope.inspect.state import ArenaState
from bandscope.inspect.timeline import Timeline
from tests.allocator.arenas import P3, P5
from tests.inspect_.cached import RUNS, record_any
from tests.inspect_.traces import record

OF_BAND = ("extent", "state", "virtual", "owner", "pins", "ticket", "page_of", "leased_at")
OF_ARENA = (
    "sequence", "time_ns", "issued", "ordered_through", "in_flight", "gate_closed", "requests",
)  # fmt: skip


def same(one: ArenaState, other: ArenaState) -> None:
    """Two states agree in everything there is."""
    for mine, theirs in zip(one.bands, other.bands, strict=True):
        for name in OF_BAND:
            assert np.array_equal(getattr(mine, name), getattr(theirs, name)), (mine.name, name)
        assert np.array_equal(mine.unpublished_rows(), theirs.unpublished_rows())
    for name in OF_ARENA:
        assert getattr(one, name) == getattr(other, name), name
    assert one.pins.keys() == other.pins.keys()
    assert {n: p.tolist() for n, p in one.shared.items()} == {
        n: p.tolist() for n, p in other.shared.items()
    }
    assert np.array_equal(one.users, other.users)
    for mine_ids, their_ids in ((one.ids, other.ids), (one.state_ids, other.state_ids)):
        assert (mine_ids.fresh, mine_ids.released) == (their_ids.fresh, their_ids.released)
        assert np.array_equal(mine_ids.generation, their_ids.generation)


@pytest.mark.parametrize("name", ["P3", "P5", *(name for name in RUNS if name.endswith("cached"))])
@pytest.mark.parametrize("seed", range(4))
def test_any_pieces_lead_to_the_same_state(tmp_path: Path, name: str, seed: int) -> None:
    run = record_any(
        tmp_path / "run", name, seed=seed, operations=700, keyframe_every=300 + 3000 * (seed % 2)
    )
    trace = Trace(run.path)
    many, each = BulkTimeline(trace), Timeline(trace)
    draw = random.Random(seed)
    at = 1
    while at < trace.stop:
        at = min(trace.stop, at + draw.choice((1, 2, 7, 40, 300, 2000)))
        same(many.advance(at), each.advance(at))


def test_what_is_odd_is_left_to_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most records are not odd, and those that are lead to the same state."""
    run = record(tmp_path / "run", P5, seed=3, operations=500)
    trace = Trace(run.path)
    alone = []
    each = BulkTimeline._apply_each

    def counted(self: BulkTimeline, segment: Any, first: int, last: int) -> None:
        alone.append(last - first)
        each(self, segment, first, last)

    monkeypatch.setattr(BulkTimeline, "_apply_each", counted)
    BulkTimeline(trace).advance(trace.stop)
    kinds = trace.segment(0).records["kind"]
    assert (kinds == Kind.PAGE_MOVE).any() and (kinds == Kind.BAND_MOVE).any()
    assert sum(alone) < 0.05 * trace.stop

    def refuse(*_: Any) -> None:
        raise bulk.Odd

    monkeypatch.setattr(bulk, "plan_band", refuse)
    same(BulkTimeline(trace).advance(trace.stop), Timeline(trace).advance(trace.stop))


def test_a_request_that_comes_again_begins_anew(tmp_path: Path) -> None:
    """What happened to a number before it was admitted is not its own."""
    run = record(tmp_path / "run", P3, operations=0, close=False)
    asked: list[Operation] = []
    for tokens in (9, 3):
        asked += [
            ops.Admit(7), ops.Admit(8), ops.Extend(7, tokens), ops.Extend(8, 1), ops.Launch((7, 8)),
            ops.Decode((7,)), ops.Launch((7,)), ops.Decode((7, 8)),
            ops.Release(8, "done"),
        ]  # fmt: skip
        asked += [ops.Release(7, "done")] if tokens == 9 else [ops.Extend(7, 2)]
    assert all(run.arena.apply(operation).ok for operation in asked)
    run.recorder.close()
    trace = Trace(run.path)
    many = BulkTimeline(trace).advance(trace.stop)
    same(many, Timeline(trace).advance(trace.stop))
    assert list(many.requests) == [7] and many.requests[7].length == 7
    assert many.requests[7].launched == 4


def test_a_damaged_tail_is_applied_as_ever(tmp_path: Path) -> None:
    """Records that no checksum covers may name pages that do not exist."""
    run = record(tmp_path / "run", P3, seed=1, operations=120, close=False)
    records = Trace(run.path).segment(0).records
    last = int(np.flatnonzero(records["kind"] == Kind.LEASE_BEGIN)[-1])
    copy = tmp_path / "copy.trace"
    shutil.copytree(run.path, copy)
    with open(copy / "000000.events", "r+b") as file:
        file.seek(64 + last * 32 + 8)
        file.write((1 << 40 | 1 << 31).to_bytes(8, "little"))
    trace = Trace(copy)
    many, each = BulkTimeline(trace), Timeline(trace)
    same(many.advance(trace.stop), each.advance(trace.stop))
    assert [str(found) for found in many.damages] == [str(found) for found in each.damages]
    run.recorder.close()


def test_touched_blocks_are_told(tmp_path: Path) -> None:
    run = record(tmp_path / "run", P3, seed=2, operations=300)
    trace = Trace(run.path)
    timeline = BulkTimeline(trace)
    for at in range(100, trace.stop, 37):
        before = [band.state.copy() for band in timeline.state.bands]
        for dirty in timeline.dirty:
            dirty[:] = False
        timeline.advance(at)
        for band, old, dirty in zip(timeline.state.bands, before, timeline.dirty, strict=True):
            assert dirty[np.flatnonzero(band.state != old) >> 8].all()


# --- page lists -----------------------------------------------------------------------------------


def _payloads(draw: random.Random, count: int) -> list[bytes]:
    payloads = []
    for _ in range(count):
        parts = []
        for _ in range(3):
            size = draw.choice((0, 1, 3, 15, 16, 40, 300))
            if draw.random() < 0.3:
                wide = draw.random() < 0.5
                parts.append(pack_numbers([draw.randrange(1 << (60 if wide else 30))] * size))
            elif draw.random() < 0.5:
                start = draw.randrange(1 << 20)
                parts.append(pack_list(np.arange(start, start + size)))
            else:
                numbers = [draw.randrange(1 << 30) for _ in range(size)]
                parts.append(pack_list(np.array(numbers, np.int64)))
        payloads.append(b"".join(parts))
    return payloads


@pytest.mark.parametrize("seed", range(20))
def test_lists_of_many_payloads_at_once(seed: int) -> None:
    payloads = _payloads(random.Random(seed), 40)
    data, at = b"", []
    for payload in payloads:
        at.append(len(data) // 4)
        data += payload + bytes(-len(payload) % 8)
    words = np.frombuffer(data, "<i4")
    none = np.zeros(len(payloads), bool)
    unpacked = [unpack_lists(payload) for payload in payloads]
    where = np.array(at)
    for place in range(3):
        lists = find_lists(words, where, none, np.zeros(len(payloads), np.int64))
        expected = np.concatenate([each[place] for each in unpacked])
        assert np.array_equal(flatten(words, lists), expected)
        where = lists.after


def test_a_number_in_the_record_itself() -> None:
    words = np.frombuffer(pack_list(np.array([5, 9])) + bytes(4), "<i4")
    inline = np.array([True, False, True])
    lists = find_lists(words, np.array([99, 0, 99]), inline, np.array([7, 0, 8]))
    assert flatten(words, lists).tolist() == [7, 5, 9, 8]


@pytest.mark.parametrize("data", [
    pack_list(np.array([5, 9, 3]))[:8],
    (1 << 30 | 5).to_bytes(4, "little") + (1).to_bytes(4, "little") + bytes(8),
    (1 << 30 | 5).to_bytes(4, "little") + (0xFFFFFFFF).to_bytes(4, "little"),
    (1 << 30 | 5).to_bytes(4, "little") + (0).to_bytes(4, "little"),
    (1 << 30 | 5).to_bytes(4, "little") + (9).to_bytes(4, "little"),
])  # fmt: skip
def test_lists_that_are_none(data: bytes) -> None:
    words = np.frombuffer(data, "<i4")
    with pytest.raises((ValueError, IndexError)):
        flatten(words, find_lists(words, np.array([0]), np.array([False]), np.array([0])))
