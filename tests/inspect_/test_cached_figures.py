"""What counters, metrics, tables and exports say of a prefix cache is what happened."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.allocator.operations import Outcome
from bandscope.inspect.counters import Counters
from bandscope.inspect.decode import read_events
from bandscope.inspect.exports import export
from bandscope.inspect.exports.rows import EVENTS, EventRows
from bandscope.inspect.exports.window import Window
from bandscope.inspect.instant import instant_of
from bandscope.inspect.lifetimes import page_life
from bandscope.inspect.operation_stats import operation_stats
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder
from bandscope.inspect.selection import Selection, select
from bandscope.inspect.spelling import event_to_json, spell_event
from bandscope.inspect.summary import summarize
from bandscope.inspect.timeline import Timeline
from tests.allocator.arenas import P2W, P3, small_arena
from tests.inspect_.cached import LAYOUTS, record_cached
from tests.inspect_.grafts import grafted
from tests.inspect_.test_metrics import of, parsed
from tests.inspect_.traces import Recorded, record


@pytest.fixture(scope="module", params=LAYOUTS)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("figures")
    run: Recorded = record_cached(
        folder / "run", request.param, seed=3, operations=900, keyframe_every=500
    )
    return run


def truth(trace: Trace) -> Counter[str]:
    """Counted event by event."""
    found: Counter[str] = Counter()
    asked: Any = None
    for event in read_events(trace):
        body = event.body
        match body:
            case ops.Operation():
                asked = body
            case Outcome(ok=True, value=int(value)) if isinstance(asked, ops.Admit):
                found["admissions"] += 1
                found["asked"] += bool(asked.key or asked.limit_tokens is not None)
                found["matches"] += value > 0
                found["hit_tokens"] += value
            case Outcome(ok=True, value=int(value)) if isinstance(asked, ops.Checkpoint):
                found["checkpoints" if value else "stalls"] += 1
            case events.Share():
                found["shared"] += body.virtual.size
            case events.Graft():
                found["grafted"] += body.into.size
            case events.Eviction():
                found["evictions"] += 1
                for index, pages in enumerate(body.counts):
                    found[trace.header["bands"][index]["name"]] += pages
    return found


def retold(recorded: Recorded) -> Counters:
    """Counters that saw the same run, through a replay of its operations."""
    from bandscope.inspect.replay import operations_of, restored_arena

    trace = Trace(recorded.path)
    arena = restored_arena(trace)
    counters = Counters()
    arena.books.observer = counters
    for step in operations_of(trace, trace.start, trace.stop):
        arena.apply(step.operation)
    return counters


def test_counters_and_metrics_say_what_happened(recorded: Recorded) -> None:
    expected, counters = truth(Trace(recorded.path)), retold(recorded)
    cache = counters.cache
    for name in (
        "admissions", "matches", "hit_tokens", "checkpoints", "stalls", "shared", "grafted", "evictions"
    ):  # fmt: skip
        assert getattr(cache, name) == expected[name], name
    assert cache.evictions and cache.hit_tokens
    assert {band: pages for band, pages in cache.evicted.items() if pages} == {
        band: expected[band] for band in counters.bands if expected[band]
    }
    assert counters.to_json()["prefix_cache"]["hit_tokens"] == expected["hit_tokens"]
    values = parsed(recorded.arena, counters)
    assert of(values, "cache_hit_tokens_total") == expected["hit_tokens"]
    assert of(values, "cache_checkpoint_stalls_total") == expected["stalls"]
    assert of(values, "cache_grafted_pages_total") == expected["grafted"]
    assert (expected["grafted"] > 0) == (len(recorded.arena.books.windows) > 0)
    for fact in recorded.arena.facts():
        assert of(values, "band_cached_pages", band=fact.name) == fact.cached
        assert of(values, "band_evictable_pages", band=fact.name) == fact.evictable
        assert of(values, "cache_evicted_pages_total", band=fact.name) == expected[fact.name]


def test_a_state_of_a_trace_has_the_same_gauges(recorded: Recorded) -> None:
    state = Timeline(Trace(recorded.path)).seek(Trace(recorded.path).stop)
    values = parsed(state)
    for fact in recorded.arena.facts():
        assert of(values, "band_cached_pages", band=fact.name) == fact.cached
    assert not any("evictable" in name for name, _ in values)


def test_without_a_cache_nothing_is_counted_of_one(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", P3, operations=100)
    counters = retold(recorded)
    assert "prefix_cache" not in counters.to_json()
    assert not any("evict" in name or "_cache_" in name for name, _ in parsed(recorded.arena, counters))
    assert operation_stats(Trace(recorded.path)).cache is None
    trace = Trace(recorded.path)
    told = instant_of(Timeline(trace).seek(trace.stop)).to_json()
    assert all("cached" not in band for band in told["bands"])


def test_tables_say_what_happened(recorded: Recorded) -> None:
    trace = Trace(recorded.path)
    expected, stats = truth(trace), operation_stats(trace)
    assert stats.cache is not None
    for name in (
        "asked", "matches", "hit_tokens", "checkpoints", "stalls", "shared", "grafted", "evictions"
    ):  # fmt: skip
        assert getattr(stats.cache, name) == expected[name], name
    assert stats.cache.evicted == {band.band: expected[band.band] for band in stats.bands}
    kinds = {one.kind for one in stats.operations}
    assert {"Admit", "Release", "PublishPrefix", "Evict"} <= kinds
    assert not any("Prefix" in kind for kind in kinds - {"PublishPrefix"})
    assert {"Share", "Eviction", "PublishPrefix", "Admit"} <= summarize(trace).kinds.keys()


def test_an_instant_counts_cached_and_shared_pages(recorded: Recorded) -> None:
    trace = Trace(recorded.path)
    found = instant_of(Timeline(trace).seek(trace.stop))
    assert found.has_cache
    assert [band.cached for band in found.bands] == [fact.cached for fact in recorded.arena.facts()]
    sharing = recorded.arena.books.cache.sharing  # type: ignore[union-attr]
    assert {one.request: one.shared for one in found.requests} == {
        request: one.pages for request, one in sharing.items()
    }


# --- words ----------------------------------------------------------------------------------------


def test_no_words_take_the_cache_for_a_request(recorded: Recorded) -> None:
    trace = Trace(recorded.path)
    spelled = [(event.kind, spell_event(event.body)) for event in read_events(trace)]
    assert not any("-2" in text and "full" in text for kind, text in spelled if "Lease" in kind)
    assert any(text.startswith("full: the cache drops") for kind, text in spelled if kind == "LeaseEnd")
    keyed = [text for kind, text in spelled if kind == "Admit" and "key" in text]
    assert keyed and "key of " in keyed[0]
    plain = event_to_json(next(e for e in read_events(trace) if isinstance(e.body, ops.Evict)))
    assert plain["fields"].keys() == {"pages"}


def test_plain_operations_are_told_as_ever(tmp_path: Path) -> None:
    trace = Trace(record(tmp_path / "run", P3, operations=60).path)
    told = [event_to_json(e)["fields"] for e in read_events(trace) if isinstance(e.body, ops.Admit)]
    assert all(fields.keys() == {"request", "state_slots"} for fields in told) and told


def test_choosing_events_of_the_cache(recorded: Recorded) -> None:
    trace = Trace(recorded.path)
    everything = list(read_events(trace))
    for name in ("Share", "Eviction", "PublishPrefix", "Admit", "Release", "Publish"):
        found = [e.sequence for e in select(trace, Selection(kinds=(name,)))]
        assert found == [e.sequence for e in everything if e.kind == name], name
        assert found, name
    shares = next(e for e in everything if isinstance(e.body, events.Share))
    request = shares.body.request  # type: ignore[union-attr]
    named = {e.sequence for e in select(trace, Selection(request=request))}
    assert shares.sequence in named
    for event in everything:
        if isinstance(event.body, ops.Publish | ops.Checkpoint | ops.Admit | ops.Release):
            assert (event.sequence in named) == (event.body.request == request)


def test_the_life_of_a_shared_page(recorded: Recorded) -> None:
    trace = Trace(recorded.path)
    share = next(e for e in read_events(trace) if isinstance(e.body, events.Share))
    virtual = int(share.body.virtual[0])  # type: ignore[union-attr]
    life = page_life(trace, "full", virtual)
    told = {one.sequence: one for one in life.events}
    assert told[share.sequence].what == "shared"
    assert told[share.sequence].detail.startswith(f"by request {share.body.request}")  # type: ignore[union-attr]
    assert not any("request -2" in one.detail for one in life.events)


def test_the_life_of_a_state_slot(recorded: Recorded) -> None:
    trace = Trace(recorded.path)
    copies = [e for e in read_events(trace) if isinstance(e.body, events.StateCopy)]
    for copy in copies[:3]:
        for slot, what in ((copy.body.source, "copied"), (copy.body.destination, "written")):  # type: ignore[union-attr]
            life = page_life(trace, "mamba", slot)
            assert any(e.sequence == copy.sequence and e.what == what for e in life.events)


# --- exports --------------------------------------------------------------------------------------


def _columns(trace: Trace) -> Iterator[tuple[Any, dict[str, Any]]]:
    names = [name for name, _ in EVENTS]
    rows = EventRows(Window(trace, trace.start, trace.stop).bands)
    for event in read_events(trace):
        yield event.body, dict(zip(names, rows.row(event), strict=True))


def test_rows_name_the_cache_as_a_holder(recorded: Recorded) -> None:
    seen: Counter[str] = Counter()
    for body, row in _columns(Trace(recorded.path)):
        assert row["request"] is None or row["request"] >= 0 or row["ok"] is not None or row["detail"]
        if isinstance(body, events.LeaseEnd) and np.array_equal(body.holder, events.CACHE):
            assert row["holder"] == "cache" and row["request"] is None
            seen["end"] += 1
        elif isinstance(body, events.Share):
            told = (row["request"], row["holder"], row["pages"], row["value"])
            assert told == (body.request, "cache", body.virtual.size, body.first_page)
            seen["share"] += 1
        elif isinstance(body, events.Graft):
            assert (row["request"], row["holder"], row["band"]) == (body.request, "cache", body.band)
            assert row["pages"] == body.into.size and row["bytes"]
        elif isinstance(body, events.Eviction):
            assert (row["holder"], row["pages"]) == ("cache", sum(body.counts))
            seen["eviction"] += 1
    assert min(seen["end"], seen["share"], seen["eviction"]) > 0


def test_perfetto_counts_pages_that_only_change_hands(tmp_path: Path) -> None:
    arena = small_arena(P2W, prefix_cache=True)
    with Recorder(tmp_path / "run", arena):
        arena.apply(ops.Admit(0, 0, (7, 8)))
        assert arena.extend(0, 8)
        arena.complete(arena.launch([0]))
        assert arena.apply(ops.Publish(0)).value == 8
    export(Trace(tmp_path / "run.trace"), "perfetto", tmp_path / "trace.json")
    told = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    last = {e["name"]: e["args"] for e in told if e["ph"] == "C"}
    assert (last["full pages"]["cached"], last["full pages"]["live"]) == (2, 0)
    assert last["window_8 pages"]["cached"] == 2


def test_perfetto_shows_a_graft(tmp_path: Path) -> None:
    export(Trace(grafted(tmp_path / "run")), "perfetto", tmp_path / "trace.json")
    told = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    (one,) = [event for event in told if event["name"] == "2 pages grafted"]
    tracks = {e["tid"]: e["args"]["name"] for e in told if e["name"] == "thread_name" and e["pid"] == 1}
    assert tracks[one["tid"]] == "window_8" and one["args"]["into"] == "1-2"
    assert (one["args"]["request"], one["args"]["virtual"]) == (1, "4-5")
    last = {e["name"]: e["args"] for e in told if e["ph"] == "C"}
    assert last["window_8 pages"]["cached"] == 2


def test_perfetto_counts_cached_pages(recorded: Recorded, tmp_path: Path) -> None:
    trace = Trace(recorded.path)
    export(trace, "perfetto", tmp_path / "trace.json")
    told = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    last = {e["name"]: e["args"] for e in told if e["ph"] == "C" and e["name"].endswith(" pages")}
    for band, fact in zip(recorded.arena.books.bands, recorded.arena.facts(), strict=True):
        args = last[f"{band.name} pages"]
        assert (args["cached"], args["live"]) == (fact.cached, fact.live - fact.cached)
    names = " ".join(e["name"] for e in told if e["ph"] == "i")
    assert "are the cache's" in names and "eviction: " in names
