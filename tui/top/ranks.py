"""The ranks of one run side by side: each one's bands at the same time on the wall."""

from __future__ import annotations

import re
from pathlib import Path

from bandscope.allocator.errors import TraceError
from bandscope.inspect.reader import Trace
from bandscope.inspect.selection import first_timeline
from bandscope.inspect.timeline import Timeline
from bandscope.tui.band_picture import letters_of
from bandscope.tui.top.placing import place, sink_columns
from bandscope.tui.top.snapshot import Row
from bandscope.tui.units import spell_share

RANKS_MAX = 64
_FAR = 100_000
_RANK = re.compile(r"(?P<run>.*)\.rank(?P<rank>\d+)\.trace")


def run_and_rank(path: Path) -> tuple[str, int]:
    """The name of a run, without its rank, and the rank (−1: there is none)."""
    found = _RANK.fullmatch(path.name)
    if found is None:
        return path.name.removesuffix(".trace"), -1
    return found["run"], int(found["rank"])


def ranks_of(path: Path) -> list[Path]:
    """The traces of all ranks of the run that a trace belongs to, by rank; itself alone where it is
    not one of several."""
    run, rank = run_and_rank(path)
    if rank < 0:
        return [path]
    try:
        beside = [other for other in path.parent.iterdir() if run_and_rank(other)[0] == run]
    except OSError:
        return [path]
    found = sorted((run_and_rank(other)[1], other) for other in beside)
    return [other for number, other in found if number >= 0][:RANKS_MAX]


class Ranks:
    """Follows the ranks of a run; those that cannot be read say why."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: dict[Path, tuple[Timeline, int]] = {}  # and the first event with a state

    def rows(self, wall_ns: int | None, columns: int) -> list[Row]:
        """One row per rank; its bands `columns` wide. `wall_ns`: the time, None: the newest."""
        return [self._row(path, wall_ns, columns) for path in ranks_of(self._path)]

    def _row(self, path: Path, wall_ns: int | None, columns: int) -> Row:
        number = run_and_rank(path)[1]
        name = f"rank {number}" if number >= 0 else "this one"
        try:
            timeline = self._at(path, wall_ns)
        except (TraceError, OSError) as error:
            return Row(-1, -1, name, str(error))
        state = timeline.state
        held = sum(band.page_bytes * int((band.virtual >= 0).sum()) for band in state.bands)
        share = spell_share(held, state.total_bytes - state.sink_bytes)
        text = f"{timeline.trace.ending:<8.8} {share:>6} "
        pieces = [(text, "")]
        width = max(10, columns - len(text))
        at = sink_columns(state.sink_bytes, 0, state.total_bytes, width)
        pieces.append(("#" * at, "dim"))
        letters = letters_of([band.kind for band in state.bands])
        extents = [band.byte_range() for band in state.bands]
        for index, first, stop in place(extents, 0, state.total_bytes, width, at):
            if first > at:
                pieces.append(("·" * (first - at), "faint"))
            pieces.append((letters[index] * (stop - max(first, at)), f"band{index} bold"))
            at = stop
        pieces.append(("·" * (width - at), "faint"))
        told = "".join(piece for piece, _ in pieces)
        return Row(
            state.sequence, state.time_ns, name, told, opens=("trace", str(path)),
            pieces=tuple(pieces),
        )  # fmt: skip

    def _at(self, path: Path, wall_ns: int | None) -> Timeline:
        if path not in self._open:
            made: Timeline = first_timeline(Trace(path))
            self._open[path] = made, made.state.sequence
        timeline, earliest = self._open[path]
        trace = timeline.trace
        if trace.ending == "running":
            trace.refresh()
        sequence = trace.stop
        if wall_ns is not None:
            sequence = trace.sequence_at(max(0, wall_ns - int(trace.header["wall_ns"])))
        segment = trace.segment_of(trace.stop - 1)
        if not segment.good[-1]:  # the last one is being written
            sequence = min(sequence, segment.first_sequence + int(segment.good.argmin()))
        sequence, here = max(sequence, earliest), timeline.state.sequence
        if 0 <= sequence - here < _FAR and here >= trace.start:
            timeline.advance(sequence)
        else:
            timeline.seek(max(sequence, trace.start))
        return timeline
