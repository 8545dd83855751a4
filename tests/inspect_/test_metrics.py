"""Metrics: the text parses, and its figures are the arena's own, live and from a trace."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

from bandscope.allocator.arena import Arena
from bandscope.allocator.errors import TraceError
from bandscope.inspect.counters import Counters
from bandscope.inspect.metrics import Metrics, Source, render
from bandscope.inspect.reader import Trace
from bandscope.inspect.timeline import Timeline
from tests.allocator.arenas import LAYOUTS, RandomEngine, small_arena
from tests.inspect_.traces import record

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(source: Source, counters: Counters | None = None) -> Values:
    """The values of the text by name and labels."""
    parser = pytest.importorskip(
        "prometheus_client.parser", reason="prometheus-client is not installed"
    )
    values: Values = {}
    for family in parser.text_string_to_metric_families(render(source, counters)):
        assert family.documentation
        for sample in family.samples:
            values[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return values


def of(values: Values, name: str, **labels: str) -> float:
    """One value."""
    return values[f"bandscope_{name}", tuple(sorted(labels.items()))]


def run(layout: Any, operations: int, seed: int = 4) -> tuple[Arena, Counters]:
    arena = small_arena(layout)
    counters = Counters()
    arena.books.observer = counters
    engine = RandomEngine(random.Random(seed))
    for _ in range(operations):
        operation = engine.choose(arena)
        engine.note(operation, arena.apply(operation))
    return arena, counters


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_figures_are_the_arenas(name: str) -> None:
    arena, counters = run(LAYOUTS[name], 400)
    values = parsed(arena, counters)
    extents = 0
    for fact in arena.facts():
        for what, pages in (
            ("held", fact.live), ("holes", fact.holes), ("pending", fact.pending),
            ("pinned", fact.pinned), ("cached", 0),
        ):  # fmt: skip
            assert of(values, f"band_{what}_pages", band=fact.name) == pages
            assert of(values, f"band_{what}_bytes", band=fact.name) == pages * fact.page_bytes
        estimate = of(values, "band_available_pages_estimate", band=fact.name)
        assert estimate == fact.available_estimate
        extent = fact.stop_byte - fact.start_byte
        assert of(values, "band_extent_bytes", band=fact.name) == extent
        extents += extent
        counted = counters.band(fact.name)
        assert of(values, "allocated_pages_total", band=fact.name) == counted.allocated
        assert counted.held == fact.live
        for urgency in ("urgent", "opportunistic"):
            moved = of(values, "moved_pages_total", band=fact.name, urgency=urgency)
            assert moved == getattr(counted, f"moves_{urgency}")
    # conservation: sink + extents + gaps = arena
    gap = of(values, "arena_gap_bytes")
    assert gap + extents + arena.plan.sink_bytes == arena.total_bytes == of(values, "arena_bytes")
    for reason, times in counters.refusals.items():
        assert of(values, "refusals_total", reason=reason) == times
    barriers = sum(v for (n, _), v in values.items() if n == "bandscope_barriers_total")
    assert barriers == sum(counters.barriers.values()) > 0
    operations = sum(v for (n, _), v in values.items() if n == "bandscope_operations_total")
    assert operations == 400
    assert not any(n.startswith("bandscope_band_available") and not n.endswith("_estimate")
                   for n, _ in values)  # fmt: skip


def test_gaps_lie_between_neighbours() -> None:
    arena = small_arena(LAYOUTS["P2m"])
    total = arena.total_bytes - arena.plan.sink_bytes
    values = parsed(arena)
    assert of(values, "band_gap_bytes", band="mamba") == total
    assert of(values, "band_gap_bytes", band="full") == total
    arena.admit(1)
    arena.extend(1, 4)
    low, high = arena.facts()
    values = parsed(arena)
    free = high.start_byte - low.stop_byte
    at_top = arena.total_bytes - high.stop_byte
    at_bottom = low.start_byte - arena.plan.sink_bytes
    assert of(values, "band_gap_bytes", band="mamba") == free + at_bottom
    assert of(values, "band_gap_bytes", band="full") == free + at_top
    assert of(values, "band_gap_pages", band="mamba") == free // low.page_bytes


def test_a_state_of_a_trace_has_the_same_figures(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", LAYOUTS["P3"], seed=7, operations=300)
    trace = Trace(recorded.path)
    timeline = Timeline(trace)
    told = parsed(timeline.seek(trace.stop))
    live = parsed(recorded.arena)
    assert told == {key: v for key, v in live.items() if not key[0].endswith("_estimate")}


def test_facts_alone_tell_what_they_know() -> None:
    arena, _ = run(LAYOUTS["P3"], 50)
    values = parsed(arena.facts())
    live = parsed(arena)
    assert values == {k: v for k, v in live.items() if "gap" not in k[0] and "arena" not in k[0]}


def test_a_collector_asks_again_at_every_scrape() -> None:
    client = pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
    arena = small_arena(LAYOUTS["P2m"])
    registry = client.CollectorRegistry()
    registry.register(Metrics(arena))
    held = "bandscope_band_held_pages"
    assert registry.get_sample_value(held, {"band": "mamba"}) == 0
    arena.admit(1)
    assert registry.get_sample_value(held, {"band": "mamba"}) == 1


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(TraceError, match=r"install bandscope\[metrics\]"):
        render(small_arena(LAYOUTS["P2m"]))
