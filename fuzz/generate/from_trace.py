"""A recorded trace as a program: what an engine really asked becomes a seed of the fuzzer.

A program begins with an empty arena. From a trace's beginning that is what was recorded, so the program
gives the outcomes that the trace holds. From somewhere in the middle, requests of the same lengths,
forwards, leases and the gate are made first; pages then lie elsewhere than they did, and a ticket or
lease has another number. Of a prefix cache comes back what those requests share.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import ArenaConfig
from bandscope.allocator.errors import TraceError
from bandscope.allocator.operations import Operation, Outcome
from bandscope.fuzz.program import Layout, Program, Step
from bandscope.inspect.decode import read_events
from bandscope.inspect.reader import Trace
from bandscope.inspect.state import ArenaState, Pin
from bandscope.inspect.timeline import Timeline

_STRANGERS = 1 << 41  # numbers of requests that stand for some that left
_CHUNK_PAGES = 16  # a prompt comes back in pieces of so many pages, its windows trimmed in between


def program_of_trace(trace: Trace, start: int | None = None, stop: int | None = None) -> Program:
    """The operations of a trace whose events lie in `[start, stop)` (all of them by default) and that
    have an outcome, as steps. The numbers of tickets and leases become their names.

    Raises `TraceError` when there is no sound keyframe before `start`, or when the header describes no
    arena of this version.
    """
    layout = layout_of_trace(trace)
    asked = list(_operations(trace, start, stop))
    begin = trace.start if start is None else start
    if asked and (start is not None or trace.start):
        begin = asked[0][0]
    timeline = Timeline(trace)
    state = timeline.seek(begin) if begin > trace.start else timeline.advance(begin)
    keys = _keys(trace, begin) if state.has_cache and begin > trace.start else {}
    steps = list(_steps_to(state, keys))
    steps += [_step(operation, outcome) for _, operation, outcome in asked]
    return Program(layout, tuple(steps), profile=f"trace {trace.path.name}")


def layout_of_trace(trace: Trace) -> Layout:
    """The arena of a trace, without the rows of its layers."""
    header = trace.header
    try:
        layout = Layout(
            tuple((band["name"], band["page_bytes"]) for band in header["bands"]),
            header["page_size"],
            header["arena"]["total_bytes"],
            ArenaConfig(**header["arena"]["config"]),
        )
        layout.plan()
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(
            f"the header of trace {trace.path} does not describe an arena of this version ({error}); "
            "record it again with this version"
        ) from error
    return layout


def _operations(
    trace: Trace, start: int | None, stop: int | None
) -> Iterator[tuple[int, Operation, Outcome]]:
    asked: tuple[int, Operation] | None = None
    for event in read_events(trace, start, stop):
        if isinstance(event.body, Operation):
            asked = event.sequence, event.body
        elif isinstance(event.body, Outcome) and asked is not None:
            yield *asked, event.body
            asked = None


def _keys(trace: Trace, stop: int) -> dict[int, tuple[int, ...]]:
    """By request that runs at event `stop`: its key so far, as the trace tells it."""
    keys: dict[int, tuple[int, ...]] = {}
    for _, operation, outcome in _operations(trace, None, stop):
        if not outcome.ok:
            continue
        match operation:
            case ops.Admit(request=request, key=key):
                keys[request] = key
            case ops.Publish(request=request, key=key):
                keys[request] = keys.get(request, ()) + key
            case ops.Checkpoint(request=request, key=key) if outcome.value:
                keys[request] = keys.get(request, ()) + key
            case ops.Release(request=request):
                keys.pop(request, None)
    return keys


def _step(operation: Operation, outcome: Outcome) -> Step:
    named = isinstance(operation, ops.Launch | ops.Lease) and outcome.ok
    return Step(operation, int(outcome.value) if named else None)


# --- a state as steps -----------------------------------------------------------------------------


def _steps_to(state: ArenaState, keys: dict[int, tuple[int, ...]]) -> Iterator[Step]:
    """Steps that bring an empty arena to a state like this one."""
    for number in sorted(state.requests):
        yield from _request(state, number, keys.get(number, ()))
    for ticket in sorted(state.in_flight):
        batch = sorted(n for n, request in state.requests.items() if request.last_ticket == ticket)
        yield Step(ops.Launch(tuple(batch)), ticket)
    for pin in sorted(state.pins.values(), key=lambda pin: pin.number):
        yield from _lease(state, pin)
    if state.gate_closed:
        yield Step(ops.SetGate(True))


def _lease(state: ArenaState, pin: Pin) -> Iterator[Step]:
    """A lease of as many pages in that band. Which pages of its request they were is not in a state, so
    it takes the first ones; where the request has left, one is made that leaves at once."""
    band, count = state.bands[pin.band], pin.physical.size
    owner = int(band.owner[pin.physical[0] - band.base])
    first, held = _pages_held(state, owner, pin.band)
    if owner in state.requests and held:
        stop = first + min(held, count)
        yield Step(ops.Lease(owner, band.name, first, stop, pin.holder), pin.number)
        return
    stranger = _STRANGERS + pin.number
    is_state = pin.band == state.state_band
    yield Step(ops.Admit(stranger, count if is_state else 0))
    if not is_state:
        yield Step(ops.Extend(stranger, count * state.page_size))
    yield Step(ops.Lease(stranger, band.name, 0, count, pin.holder), pin.number)
    yield Step(ops.Release(stranger))


def _request(state: ArenaState, number: int, key: tuple[int, ...]) -> Iterator[Step]:
    length, page = state.requests[number].length, state.page_size
    shared = state.shared[number].size if number in state.shared else 0
    slots = 0 if state.state_band is None else _pages_held(state, number, state.state_band)[1]
    limit = 0 if key else None  # so that it is as long as it was, whoever came before
    yield Step(ops.Admit(number, slots, key, limit))
    # Windows were trimmed last when the request was about so long.
    trimmed = 0
    for band in state.bands:
        if band.kind == "window" and band.window_length is not None:
            first, _ = _pages_held(state, number, band.index)
            if first > shared:
                trimmed = max(trimmed, first * page + band.window_length - 1)
    done = 0
    if shared:  # what it shares it computes itself, as nobody else may have yet
        yield from _shared(number, shared * page)
        done = shared * page
    while done < length:
        goal = trimmed if done < trimmed else length
        tokens = min(goal, length, done + _CHUNK_PAGES * page) - done
        yield Step(ops.Extend(number, tokens))
        done += tokens
        if done <= trimmed:
            yield Step(ops.TrimWindow((number,)))


def _shared(number: int, tokens: int) -> Iterator[Step]:
    """The first tokens of a request are computed and published."""
    name = _STRANGERS + number
    yield Step(ops.Extend(number, tokens))
    yield Step(ops.Launch((number,)), name)
    yield Step(ops.Complete(name))
    yield Step(ops.Publish(number))


def _pages_held(state: ArenaState, number: int, band: int) -> tuple[int, int]:
    """(the first page that a request holds in a band, by its own order; how many it holds)."""
    known = state.bands[band]
    held = int(np.count_nonzero(known.owner[known.slice] == number))
    if known.kind != "window" or number not in state.requests:
        return 0, held
    pages = -(-state.requests[number].length // state.page_size)
    return pages - held, held
