"""Invariants from the trace alone: sound runs are sound, and each rule sees the trace that breaks it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bandscope.allocator import operations as ops
from bandscope.inspect import format as form
from bandscope.inspect import keyframe
from bandscope.inspect.checks.invariants import Finding, check_trace
from bandscope.inspect.format import Kind, pack_list
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder
from tests.allocator.arenas import LAYOUTS, P3, RandomEngine, small_arena
from tests.inspect_.rewrite import Row, of_kind, rewrite, rows, without
from tests.inspect_.traces import record


@pytest.mark.parametrize("drained", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_sound_run_breaks_nothing_but_for_its_leaks(
    tmp_path: Path, name: str, drained: bool
) -> None:
    arena = small_arena(LAYOUTS[name])
    with Recorder(tmp_path / "run", arena, keyframe_every=100) as recorder:
        engine = RandomEngine(random.Random(11))
        for _ in range(400):
            engine.step(arena)
        if drained:
            engine.drain(arena)
    found = check_trace(Trace(recorder.directory))
    if drained:
        assert found == []
    else:
        assert found and all(one.name == "ownership" and "leak" in one.detail for one in found)


def test_a_run_that_has_not_ended_does_not_leak(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", P3, seed=4, operations=200, close=False)
    assert check_trace(Trace(recorded.path)) == []
    recorded.recorder.close()


def test_damage_is_skipped(tmp_path: Path) -> None:
    recorded = record(
        tmp_path / "run", P3, seed=3, operations=800, keyframe_every=200, segment_records=600
    )
    path = recorded.path / "000000.events"
    data = bytearray(path.read_bytes())
    data[form.RECORDS_START + 300 * form.RECORD_BYTES + 9] ^= 0xFF
    path.write_bytes(bytes(data))
    assert [one for one in check_trace(Trace(recorded.path)) if "leak" not in one.detail] == []


# --- one altered trace per rule ----------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A short run with a bit of everything, that ends with nothing held."""
    arena = small_arena(P3, page_size=1, units=140, compact_hole_share=0.0)
    with Recorder(tmp_path / "run", arena, keyframe_every=10**9) as recorder:
        for request in range(4):
            arena.admit(request)
            arena.extend(request, 3)
        arena.decode([0, 1, 2])
        arena.apply(ops.Launch((0, 1, 2, 3)))
        arena.release(0)
        arena.complete(1)
        assert arena.compact(max_moves=8)
        number = arena.apply(ops.Lease(1, "full", 0, 2, holder="backup")).value
        arena.set_gate(closed=True)
        assert not arena.extend(2, 400)
        arena.set_gate(closed=False)
        arena.release(1)
        arena.end_lease(number)
        arena.apply(ops.Launch((2, 3)))
        arena.trim_window([2, 3])
        arena.release(2)
        arena.complete(2)
        arena.release(3)
    assert check_trace(Trace(recorder.directory)) == []
    return recorder.directory


def broken(small: Path, tmp_path: Path, change: Callable[[Row], list[Row]]) -> list[Finding]:
    """What is found in the altered trace."""
    rewrite(small, tmp_path / "altered", change)
    found = check_trace(Trace(tmp_path / "altered"))
    assert all(str(one).startswith(one.name) and one.to_json()["detail"] for one in found)
    return found


def at(row: Row, **fields: object) -> Callable[[Row], list[Row]]:
    """Only this record is altered."""
    return lambda one: [replace(one, **fields)] if one.sequence == row.sequence else [one]  # type: ignore[arg-type]


def names(found: list[Finding]) -> set[str]:
    return {one.name for one in found}


def owned(small: Path, kind: Kind) -> list[Row]:
    return [row for row in of_kind(small, kind) if not row.flags & form.PIN]


def lists(row: Row) -> list[np.ndarray]:
    return form.unpack_lists(row.payload)


def packed(*parts: np.ndarray) -> bytes:
    return b"".join(pack_list(np.asarray(part, np.int64)) for part in parts)


def test_conservation_a_pending_page_becomes_a_hole_twice(small: Path, tmp_path: Path) -> None:
    row = of_kind(small, Kind.RECLAIM)[0]
    found = broken(small, tmp_path, lambda one: [one, one] if one == row else [one])
    assert any(one.name == "conservation" and "not pending" in one.detail for one in found)


def test_conservation_an_extent_gives_up_live_pages(small: Path, tmp_path: Path) -> None:
    grown = [row for row in of_kind(small, Kind.BAND_MOVE) if row.band == 2]
    low, high = grown[1].b >> 32, grown[1].b & 0xFFFFFFFF
    found = broken(small, tmp_path, at(grown[1], b=(low + 2) << 32 | high))
    assert "conservation" in names(found)
    assert any("handed out outside of the extent" in one.detail for one in found)


def test_order_an_extent_reaches_into_its_neighbour(small: Path, tmp_path: Path) -> None:
    grown = [row for row in of_kind(small, Kind.BAND_MOVE) if row.band == 1][1]
    low = grown.b >> 32
    found = broken(small, tmp_path, at(grown, b=low << 32 | 10**4))
    assert any(one.name == "order" and "reach into full" in one.detail for one in found)
    assert any(one.name == "order" and "its extent was told as" in one.detail for one in found)


def test_order_a_page_of_the_sink_is_handed_out(small: Path, tmp_path: Path) -> None:
    row = next(row for row in owned(small, Kind.LEASE_BEGIN) if row.band == 2)
    virtual, physical = lists(row)
    found = broken(small, tmp_path, at(row, payload=packed(virtual, physical - physical)))
    assert any(one.name == "order" and "sink" in one.detail for one in found)


def test_tables_a_move_names_a_page_that_lies_elsewhere(small: Path, tmp_path: Path) -> None:
    row = of_kind(small, Kind.PAGE_MOVE)[0]
    virtual, sources, destinations = lists(row)
    found = broken(small, tmp_path, at(row, payload=packed(virtual, sources - 1, destinations)))
    assert any(one.name == "tables" and "lies elsewhere" in one.detail for one in found)


def test_tables_too_few_rows_are_published(small: Path, tmp_path: Path) -> None:
    row = of_kind(small, Kind.PUBLISH)[0]
    (one,) = broken(small, tmp_path, at(row, a=row.a - 1))
    assert one.name == "tables" and "rows were published" in one.detail


def test_ids_one_id_is_bound_twice(small: Path, tmp_path: Path) -> None:
    first, second = [row for row in owned(small, Kind.LEASE_BEGIN) if row.band == 2][:2]
    virtual, physical = lists(second)
    found = broken(small, tmp_path, at(second, payload=packed(lists(first)[0], physical)))
    assert any(one.name == "ids" and "holds it" in one.detail for one in found)


def test_ownership_one_page_has_two_owners(small: Path, tmp_path: Path) -> None:
    first, second = [row for row in owned(small, Kind.LEASE_BEGIN) if row.band == 2][:2]
    virtual, physical = lists(second)
    found = broken(small, tmp_path, at(second, payload=packed(virtual, lists(first)[1])))
    one = next(one for one in found if one.name == "ownership")
    assert "handed out to request 1 while request 0 holds it" in one.detail


def test_ownership_a_page_is_given_back_by_another(small: Path, tmp_path: Path) -> None:
    row = owned(small, Kind.LEASE_END)[0]
    found = broken(small, tmp_path, at(row, b=3))
    assert any(one.name == "ownership" and "by another than" in one.detail for one in found)


def test_ownership_what_is_never_given_back_leaks(small: Path, tmp_path: Path) -> None:
    everything = rows(small)
    last = [row.sequence for row in everything if row.kind == Kind.RELEASE][-1]
    end = next(r.sequence for r in everything if r.kind == Kind.OUTCOME and r.sequence > last)
    found = broken(small, tmp_path, without(*range(last, end + 1)))
    assert found and all(one.name == "ownership" and "leak" in one.detail for one in found)
    assert {one.band for one in found} == {"mamba", "window_8", "full"}
    assert all("request" in one.detail and one.detail.endswith(" 3") for one in found)


def test_ownership_a_lease_that_never_ends_leaks(small: Path, tmp_path: Path) -> None:
    everything = rows(small)
    ended = [r for r in everything if r.kind == Kind.LEASE_END and r.flags & form.PIN][0]
    before = [row for row in everything if row.sequence < ended.sequence]
    asked = max(row.sequence for row in before if row.kind == Kind.OPERATION)
    end = next(r.sequence for r in everything if r.kind == Kind.OUTCOME and r.sequence > asked)
    found = broken(small, tmp_path, without(*range(asked, end + 1)))
    assert any("of backup never ended (leak)" in one.detail for one in found)


def test_pins_a_pinned_page_is_reused(small: Path, tmp_path: Path) -> None:
    """The pages of a freed, pinned request are told to be holes before the lease ends."""
    freed = next(
        row for row in owned(small, Kind.LEASE_END) if row.band == 2 and row.b == 1
    )
    pinned = next(r for r in of_kind(small, Kind.LEASE_BEGIN) if r.flags & form.PIN)
    page = lists(pinned)[1]
    early = Row(-1, Kind.RECLAIM, 0, 2, page.size, 0, 0, packed(page))
    found = broken(small, tmp_path, lambda one: [one, early] if one == freed else [one])
    assert any(one.name == "pins" and "became a hole" in one.detail for one in found)


def test_pins_a_pinned_page_is_moved(small: Path, tmp_path: Path) -> None:
    move = of_kind(small, Kind.PAGE_MOVE)[-1]
    virtual, sources, _ = lists(move)
    pin = Row(
        -1, Kind.LEASE_BEGIN, form.PIN, move.band, virtual.size, 0, 99, packed(virtual, sources)
    )
    found = broken(small, tmp_path, lambda one: [pin, one] if one == move else [one])
    assert any(one.name == "pins" and "pinned page was moved" in one.detail for one in found)


def test_pins_nothing_moves_while_the_gate_is_closed(small: Path, tmp_path: Path) -> None:
    compact = of_kind(small, Kind.COMPACT)[0]
    closed = Row(-1, Kind.SET_GATE, form.CLOSED, 0, compact.a, 0, 0)
    done = Row(-1, Kind.OUTCOME, form.OK, 0, compact.a, form.NO_VALUE, 0)
    found = broken(
        small, tmp_path, lambda one: [closed, done, one] if one == compact else [one]
    )
    assert any(one.name == "pins" and "while the gate is closed" in one.detail for one in found)


def test_caps_an_opportunistic_pass_keeps_its_cap(small: Path, tmp_path: Path) -> None:
    compact = of_kind(small, Kind.COMPACT)[0]
    assert max(row.a for row in of_kind(small, Kind.PAGE_MOVE)) > 1
    found = broken(small, tmp_path, at(compact, b=1))
    assert found and names(found) == {"caps"}
    (tmp_path / "urgent").mkdir()
    urgent = broken(small, tmp_path / "urgent", at(compact, b=-1, flags=form.URGENT))
    assert urgent == []


def test_atomic_a_refused_operation_has_no_effects(small: Path, tmp_path: Path) -> None:
    everything = rows(small)
    effect = next(row for row in everything if row.kind == Kind.PAGE_MOVE)
    outcome = next(
        r for r in everything if r.kind == Kind.OUTCOME and r.sequence > effect.sequence
    )
    found = broken(small, tmp_path, at(outcome, flags=0, band=1))
    assert "atomic" in names(found)


def test_happens_before_pages_are_reused_before_their_ticket(small: Path, tmp_path: Path) -> None:
    done = of_kind(small, Kind.DONE)[0]
    found = broken(small, tmp_path, without(done.sequence))
    assert any(one.name == "happens_before" and "became holes" in one.detail for one in found)


def test_a_keyframe_that_tells_another_state_is_seen(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", P3, seed=6, operations=200, keyframe_every=80)
    row = of_kind(recorded.path, Kind.KEYFRAME)[1]
    snapshot = keyframe.decode(row.payload)
    snapshot["gate_closed"] = not snapshot["gate_closed"]
    payload = keyframe.encode(snapshot)
    target = tmp_path / "altered"
    rewrite(recorded.path, target, at(row, payload=payload, c=form.crc32(payload)))
    found = [one for one in check_trace(Trace(target)) if one.name == "keyframe"]
    assert len(found) == 1 and found[0].detail.endswith("gate_closed")


def test_no_altered_record_raises(small: Path, tmp_path: Path) -> None:
    """Every record dropped once, and every field of every effect changed: findings, never errors."""
    everything = rows(small)
    changes: list[Callable[[Row], list[Row]]] = [
        without(row.sequence)
        for row in everything
        if row.kind not in (Kind.HEADER, Kind.TEXT) and row.kind != Kind.KEYFRAME
        and not (row.kind in (Kind.LAUNCH, Kind.DECODE) and not row.flags & form.SAME_BATCH)
    ]
    rng = random.Random(0)
    for row in everything:
        if row.kind >= form.FIRST_EFFECT:
            for name in ("a", "b", "c"):
                value = rng.choice([-1, 0, 1 << 31, getattr(row, name) + 1])
                changes.append(at(row, **{name: value & 0xFFFFFFFF if name == "c" else value}))
    for number, change in enumerate(changes):
        target = tmp_path / f"altered{number}"
        rewrite(small, target, change)
        check_trace(Trace(target))
