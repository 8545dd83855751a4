"""The instant that is shown compared with another one, of this trace or of another trace."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bandscope.inspect.differences import BandDifference, Difference, compare
from bandscope.inspect.reader import open_trace
from bandscope.inspect.selection import first_timeline
from bandscope.inspect.spelling import spell_runs
from bandscope.inspect.state import ArenaState
from bandscope.inspect.timeline import Timeline
from bandscope.tui.top.snapshot import ArenaMap, BandChange, Compared, Row, ZoomMap
from bandscope.tui.units import spell_bytes

# Kinds of differences, the letter of each on the zoomed map, and in words.
LETTERS = {
    "came": "n", "moved": "m", "reused": "r", "changed_owner": "o", "pinned": "p", "unpinned": "u",
    "gone": "g",
}  # fmt: skip
WORDS = {
    "came": "new", "moved": "moved", "reused": "given back and held again",
    "changed_owner": "of another owner", "pinned": "pinned since", "unpinned": "no longer pinned",
    "gone": "given back",
}  # fmt: skip
_ROWS = 2_000


class Comparison:
    """`base`: the state that is compared with. With a `timeline` of another trace it follows the
    position, event number by event number."""

    def __init__(self, state: ArenaState, other: Timeline | None = None) -> None:
        self.base = state
        self.timeline = other
        self.start = state.sequence
        self.made: Difference | None = None  # the last one

    @staticmethod
    def with_instant(state: ArenaState) -> Comparison:
        """With an instant of this trace, whose state is kept."""
        return Comparison(copy.deepcopy(state))

    @staticmethod
    def with_trace(path: str) -> Comparison:
        """With another trace, aligned by event number; `TraceError` when it cannot be read."""
        timeline: Timeline = first_timeline(open_trace(Path(path)))
        return Comparison(timeline.state, timeline)

    @property
    def other(self) -> str:
        """The path of the other trace; empty where there is none."""
        return "" if self.timeline is None else str(self.timeline.trace.path)

    def difference(self, state: ArenaState) -> Difference:
        """What differs; `TraceError` when it cannot be told."""
        if self.timeline is not None:
            trace = self.timeline.trace
            wanted = min(max(state.sequence, self.start, trace.start), trace.stop)
            if self.timeline.state.sequence != wanted:
                self.timeline.seek(wanted)
            self.base = self.timeline.state
        made = self.made
        if made is None or (made.before, made.after) != (self.base.sequence, state.sequence):
            made = self.made = compare(self.base, state)
        return made


def compared(found: Difference, other: str) -> Compared:
    """The numbers of a comparison."""
    return Compared(
        found.before,
        other,
        tuple(
            BandChange(
                band.band,
                {kind: int(getattr(band, kind).size) for kind in LETTERS},
                band.extent_before,
                band.extent_after,
                band.counts_before,
                band.counts_after,
            )
            for band in found.bands
        ),
        tuple(found.requests_came),
        tuple(found.requests_gone),
        tuple(found.grown),
        tuple(found.launched),
        tuple(found.completed),
        tuple(found.leases_begun),
        tuple(found.leases_ended),
        found.same,
    )


def places(
    band: BandDifference, before: ArenaState, after: ArenaState, index: int, kind: str
) -> np.ndarray:
    """Physical pages of a kind of difference: where they are now, or where pages that are gone
    were."""
    state = before if kind == "gone" else after
    pages = state.bands[index].page_of[getattr(band, kind)]
    return np.sort(pages[pages >= 0])


def marked_map(
    shown: ArenaMap, found: Difference, before: ArenaState, after: ArenaState
) -> ArenaMap:
    """The map with the characters that hold pages which differ."""
    marked: set[int] = set()
    for span in shown.spans:
        count, width = span.page_stop - span.page_first, span.stop - span.first
        for kind in LETTERS:
            pages = places(found.bands[span.band], before, after, span.band, kind)
            inside = pages[(pages >= span.page_first) & (pages < span.page_stop)]
            spots = np.minimum(((inside - span.page_first + 1) * width - 1) // count, width - 1)
            marked.update((span.first + np.unique(spots)).tolist())
    return replace(shown, differing=tuple(sorted(marked)))


def marked_zoom(
    shown: ZoomMap, found: Difference, before: ArenaState, after: ArenaState
) -> ZoomMap:
    """The zoomed pages with a letter on each that differs."""
    letters: dict[int, str] = {}
    count = sum(run.length for run in shown.runs)
    for kind, letter in reversed(LETTERS.items()):  # the first of them stays on top
        pages = places(found.bands[shown.band], before, after, shown.band, kind) - shown.page_first
        letters.update(dict.fromkeys(pages[(pages >= 0) & (pages < count)].tolist(), letter))
    return replace(shown, differing=tuple(sorted(letters.items())))


def compare_rows(found: Difference, before: ArenaState, after: ArenaState) -> list[Row]:
    """Numbers per band, then requests, forwards and leases, then every run of pages that differs."""
    rows = [_band_row(index, band) for index, band in enumerate(found.bands)]
    for kind, text in _others(found):
        rows.append(Row(-1, -1, kind, text))
    for index, band in enumerate(found.bands):
        for kind in LETTERS:
            pages = places(band, before, after, index, kind)
            if pages.size:
                rows += _run_rows(index, band.band, kind, pages)
            if len(rows) > _ROWS:
                rows.append(Row(-1, -1, "", "… and more"))
                return rows
    return rows


def _band_row(index: int, band: BandDifference) -> Row:
    if band.same:
        return Row(-1, -1, band.band, "the same", band=index)
    told = [
        f"{getattr(band, kind).size:,} {WORDS[kind]}"
        for kind in LETTERS
        if getattr(band, kind).size
    ]
    for state, before in band.counts_before.items():
        after = band.counts_after[state]
        if before != after:
            told.append(f"{state} {before:,} → {after:,}")
    if band.extent_before != band.extent_after:
        sizes = [spell_bytes(high - low) for low, high in (band.extent_before, band.extent_after)]
        told.append(f"extent {sizes[0]} → {sizes[1]}")
    return Row(-1, -1, band.band, "; ".join(told), band=index)


def _others(found: Difference) -> list[tuple[str, str]]:
    told = []
    lists: tuple[tuple[str, str, list[Any]], ...] = (
        ("Requests", "came", found.requests_came), ("Requests", "gone", found.requests_gone),
        ("Requests", "grew", [number for number, _, _ in found.grown]),
        ("Forwards", "in flight now", found.launched),
        ("Forwards", "no longer in flight", found.completed),
        ("Leases", "begun", found.leases_begun), ("Leases", "ended", found.leases_ended),
    )  # fmt: skip
    for kind, what, numbers in lists:
        if numbers:
            told.append((kind, f"{len(numbers):,} {what}: {spell_runs(numbers)}"))
    if found.gate[0] != found.gate[1]:
        told.append(("Gate", "closed since" if found.gate[1] else "open since"))
    return told


def _run_rows(index: int, name: str, kind: str, pages: np.ndarray) -> list[Row]:
    edges = np.flatnonzero(np.diff(pages) != 1) + 1
    starts = np.concatenate(([0], edges))[:_ROWS]
    stops = np.concatenate((edges, [pages.size]))[:_ROWS]
    rows = []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        first, last = int(pages[start]), int(pages[stop - 1])
        where = f"page {first:,}" if first == last else f"pages {first:,} to {last:,}"
        text = f"{name}: {where} {WORDS[kind]}"
        opens = ("cursor", (index, first))
        rows.append(Row(-1, -1, f"  {LETTERS[kind]}", text, band=index, opens=opens))
    return rows
