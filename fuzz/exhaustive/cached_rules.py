"""What must hold of states and steps of an arena with a prefix cache, judged by `cached_facts`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.checks import Violation
from bandscope.allocator.operations import Operation, Outcome
from bandscope.fuzz.exhaustive.cached_facts import (
    Demand,
    Entry,
    Facts,
    LabelledDevice,
    Prefix,
    Row,
    cache_of,
)

# --- one state ---------------------------------------------------------------------------------------


def state_violations(arena: Arena, facts: Facts) -> Iterator[Violation]:
    """Counts are right, rows name the cache's pages, and all bytes are what they stand for."""
    tree = cache_of(arena).tree
    if tuple(tree.cached) != facts.cached():
        yield Violation("cache", f"{tree.cached} pages are counted as cached, {facts.cached()} are")
    if tuple(tree.evictable) != facts.evictable():
        yield Violation(
            "cache", f"{tree.evictable} pages are counted as evictable, {facts.evictable()} are"
        )
    owned = {entry.page for entry in facts.entries.values()}
    for number, row in facts.rows.items():
        for at, page in enumerate(row.pages):
            entry = facts.entries.get(row.key[: at + 1])
            if at < row.shared and (entry is None or entry.page != page):
                yield Violation("cache", f"page {at} of request {number} is not the cache's")
            elif at >= row.shared and page in owned:
                yield Violation("cache", f"page {at} of request {number} is its own and the cache's")
    yield from _bytes(arena, facts)


def _bytes(arena: Arena, facts: Facts) -> Iterator[Violation]:
    device = arena.device
    assert isinstance(device, LabelledDevice)
    bands, size = arena.books.bands, facts.page_size
    shape = cache_of(arena).tree.shape

    def look(band: int, virtual: int, label: tuple[object, ...], what: str) -> Iterator[Violation]:
        place = bands[band].table.place_of[virtual]
        if place < 0:
            yield Violation("content", f"{bands[band].name}: {what} is mapped nowhere")
            return
        page = int(bands[band].physical(np.array([place]))[0])
        if device.labels.get((band, page)) != label:
            yield Violation(
                "content",
                f"{bands[band].name}: {what} holds {device.labels.get((band, page))}, not {label}",
            )

    def kept_by(window_kept: tuple[bool, ...]) -> list[int]:
        kept = [band for band, has in zip(shape.windows, window_kept, strict=True) if has]
        return [shape.full, *shape.companions, *kept]

    for prefix, entry in facts.entries.items():
        for band in kept_by(entry.kept):
            yield from look(band, entry.page, token_label(prefix, size), f"the prefix {prefix}")
    for prefix, slot in facts.states.items():
        assert shape.state is not None
        label = state_label(prefix, len(prefix) * size, size)
        yield from look(shape.state, slot, label, f"the state after {prefix}")
    for number, row in facts.rows.items():
        for at in range(-(-row.launched // size)):
            label = token_label(row.key[: at + 1], min(size, row.launched - at * size))
            for band in kept_by(tuple(at >= first for first in row.first)):
                yield from look(band, row.pages[at], label, f"page {at} of request {number}")
        if row.slots and row.launched:
            assert shape.state is not None
            label = state_label(row.key, row.launched, size)
            yield from look(shape.state, row.slots[0], label, f"the state of request {number}")


def token_label(prefix: Prefix, tokens: int) -> tuple[object, ...]:
    """What a page holds: the sequence up to it, and how many of its tokens were computed."""
    return ("tokens", prefix, tokens)


def state_label(key: Prefix, tokens: int, page_size: int) -> tuple[object, ...]:
    """What a slot holds: the state after so many tokens of a sequence."""
    return ("state", tokens, key[: -(-tokens // page_size)])


def compute(arena: Arena, facts: Facts, request: int) -> None:
    """The forward that a launch over this request stands for writes its bytes. `facts`: before it."""
    device, books, row = arena.device, arena.books, facts.rows[request]
    assert isinstance(device, LabelledDevice)
    size = facts.page_size
    for at in range(row.launched // size, len(row.pages)):
        label = token_label(row.key[: at + 1], min(size, row.length - at * size))
        for index in books.token_bands:
            band = books.bands[index]
            place = band.table.place_of[row.pages[at]]
            if place >= 0:
                device.labels[index, int(band.physical(np.array([place]))[0])] = label
    if row.slots:
        assert books.state is not None
        band = books.bands[books.state]
        place = band.table.place_of[np.array(row.slots[:1])]
        device.labels[books.state, int(band.physical(place)[0])] = state_label(row.key, row.length, size)


# --- one step ----------------------------------------------------------------------------------------


def step_violations(
    before: Facts, operation: Operation, outcome: Outcome, after: Facts
) -> Iterator[Violation]:
    """Was the operation done exactly when it could be, with the right value, and did nothing go that
    had to stay?"""
    demand = demand_of(before, operation)
    beside: Prefix = ()
    if isinstance(operation, ops.Admit):
        beside = _match(before, operation)
    possible = demand is None or before.serves(demand, beside=beside)
    if isinstance(operation, ops.Checkpoint):
        yield from _checkpoint(before, operation, outcome, after, possible)
    elif outcome.ok != possible:
        yield Violation(
            "capacity",
            f"a demand of {demand} was {'granted' if outcome.ok else 'refused'}, but "
            f"{'no' if outcome.ok else 'a'} layout holds it",
        )
        return
    if not outcome.ok:
        return
    if isinstance(operation, ops.Admit):
        yield from _admitted(operation, outcome, after, beside)
    elif isinstance(operation, ops.Publish):
        yield from _published(before, operation, outcome, after)
    elif isinstance(operation, ops.Release) and operation.publish:
        row = before.rows[operation.request]
        whole = (row.key + operation.key)[: row.launched // before.page_size]
        yield from _entries(before, operation, whole, row, after)
    yield from _evicted(before, operation, outcome, after, demand, beside)


def demand_of(facts: Facts, operation: Operation) -> Demand | None:
    """Pages per band that an operation takes, None when it takes none."""
    shape = facts.cache.tree.shape
    demand = [0] * shape.bands
    match operation:
        case ops.Admit(state_slots=slots):
            if shape.state is None or not slots:
                return None
            demand[shape.state] = slots
        case ops.Checkpoint(request=request):
            row = facts.rows[request]
            assert shape.state is not None
            if row.key[: row.length // facts.page_size] in facts.states:
                return None
            demand[shape.state] = 1
        case ops.Extend(request=request, tokens=tokens):
            row = facts.rows[request]
            pages = -(-(row.length + tokens) // facts.page_size) - len(row.pages)
            if pages <= 0:
                return None
            demand = [0 if band == shape.state else pages for band in range(shape.bands)]
        case ops.Reserve(demand=asked):
            return asked
        case _:
            return None
    return tuple(demand)


def _match(before: Facts, operation: ops.Admit) -> Prefix:
    if before.cache.tree.shape.state is not None and not operation.state_slots:
        return ()
    return before.match(operation.key, operation.limit_tokens)


def _admitted(
    operation: ops.Admit, outcome: Outcome, after: Facts, matched: Prefix
) -> Iterator[Violation]:
    tokens = len(matched) * after.page_size
    if outcome.value != tokens:
        yield Violation("cache", f"{outcome.value} tokens of {operation.key} matched, {tokens} can")
        return
    slots = () if after.cache.tree.shape.state is None else after.rows[operation.request].slots
    expected = Row(
        operation.key, tokens, tokens,
        tuple(after.entries[matched[: at + 1]].page for at in range(len(matched))),
        slots, after.window_from(len(matched)), len(matched),
    )  # fmt: skip
    if after.rows[operation.request] != expected:
        yield Violation(
            "cache", f"request {operation.request} began as {after.rows[operation.request]}"
        )


def _published(
    before: Facts, operation: ops.Publish | ops.Checkpoint, outcome: Outcome, after: Facts
) -> Iterator[Violation]:
    row, now = before.rows[operation.request], after.rows[operation.request]
    key = row.key + operation.key
    whole = min(row.launched // before.page_size, len(key))
    if now.key != key or outcome.value != now.shared * before.page_size:
        if isinstance(operation, ops.Publish):
            yield Violation("cache", f"{outcome.value} tokens were told, {now.shared} pages are shared")
    if now.shared != max(whole, row.shared):
        yield Violation("cache", f"{now.shared} pages are shared of {whole} that could be")
        return
    yield from _entries(before, operation, key[:whole], row, after)


def _entries(
    before: Facts,
    operation: ops.Publish | ops.Checkpoint | ops.Release,
    key: Prefix,
    row: Row,
    after: Facts,
) -> Iterator[Violation]:
    """Pages of `key` that are published: one that was there stays, and has the rows that it had and
    those that the request's copy has. (For the slot of a checkpoint some may have gone before.)"""
    for at, page in enumerate(row.pages[: len(key)]):
        was, entry = before.entries.get(key[: at + 1]), after.entries.get(key[: at + 1])
        mine = tuple(at >= first for first in row.first)
        if was is None:
            was = Entry(page, mine)
        elif was.page != page:
            was = Entry(was.page, tuple(a or b for a, b in zip(was.kept, mine, strict=True)))
        else:
            mine = (False,) * len(mine)  # the cache's own rows, which may have gone
        right = entry == was
        if entry is not None and isinstance(operation, ops.Checkpoint):
            right = entry.page in (was.page, page) and all(
                least <= has <= most
                for least, has, most in zip(mine, entry.kept, was.kept, strict=True)
            )
        if not right:
            yield Violation("cache", f"page {at} of a publication became {entry}, not {was}")


def _checkpoint(
    before: Facts, operation: ops.Checkpoint, outcome: Outcome, after: Facts, possible: bool
) -> Iterator[Violation]:
    row = before.rows[operation.request]
    prefix = (row.key + operation.key)[: row.length // before.page_size]
    if not outcome.ok:
        yield Violation("capacity", f"a checkpoint was refused: {outcome.message}")
    elif not possible:
        if outcome.value or after.rows != before.rows or after.entries != before.entries:
            yield Violation("cache", "a checkpoint without room did not stall")
    elif outcome.value != row.length or prefix not in after.states:
        yield Violation(
            "cache", f"a checkpoint told {outcome.value}, the state after {row.length} tokens is "
            f"{'there' if prefix in after.states else 'not there'}"
        )
    else:
        yield from _published(before, operation, outcome, after)


def _has_copies(before: Facts, operation: ops.Checkpoint) -> bool:
    """Has the request pages of its own that the cache has too?"""
    row = before.rows[operation.request]
    key = row.key + operation.key
    known = [before.entries.get(key[: at + 1]) for at in range(len(row.pages))]
    pairs = zip(known, row.pages, strict=True)
    return any(entry is not None and entry.page != page for entry, page in pairs)


def _evicted(
    before: Facts,
    operation: Operation,
    outcome: Outcome,
    after: Facts,
    demand: Demand | None,
    beside: Prefix,
) -> Iterator[Violation]:
    """What the cache lost had to go, and might."""
    shape = before.cache.tree.shape
    lost = [0] * shape.bands
    alone = [0] * shape.bands
    gone = [prefix for prefix in before.entries if prefix not in after.entries]
    for band in (shape.full, *shape.companions):
        lost[band] = len(gone)
    for window, band in enumerate(shape.windows):
        for prefix, entry in before.entries.items():
            now = after.entries.get(prefix)
            if entry.kept[window] and (now is None or not now.kept[window]):
                lost[band] += 1
                alone[band] += now is not None
    if shape.state is not None:
        slots = [prefix for prefix in before.states if prefix not in after.states]
        lost[shape.state] = len(slots)
        alone[shape.state] = sum(prefix in after.entries for prefix in slots)
    if any(prefix[:-1] and prefix[:-1] not in after.entries for prefix in after.entries):
        yield Violation("cache", "a prefix is cached without its beginning")
    if not any(lost):
        if isinstance(operation, ops.Evict) and outcome.value:
            yield Violation("cache", f"{outcome.value} pages were told to go, none did")
        return
    most = before.evictable(beside)
    if any(count > limit for count, limit in zip(lost, most, strict=True)):
        yield Violation("cache", f"{lost} pages were evicted, {most} might")
    if isinstance(operation, ops.Evict):
        goal = [min(asked, limit) for asked, limit in zip(operation.pages, most, strict=True)]
        if any(count < least for count, least in zip(lost, goal, strict=True)):
            yield Violation("cache", f"{lost} pages were evicted of {operation.pages} asked for")
        if outcome.value != sum(lost):
            yield Violation("cache", f"{outcome.value} pages were told to go, {lost} did")
        return
    if isinstance(operation, ops.Checkpoint) and _has_copies(before, operation):
        return  # what went for its slot may have come back by its publication
    nothing = (0,) * shape.bands
    if demand is None or before.serves(demand, freed=nothing):
        yield Violation("cache", f"{lost} cached pages went for nothing")
        return
    if not before.serves(demand, freed=tuple(lost)):
        yield Violation("capacity", f"{lost} pages were evicted, which do not serve {demand}")
    if shape.shared_order:
        return
    for band, count in enumerate(alone):
        fewer = tuple(n - (index == band) for index, n in enumerate(lost))
        if count and before.serves(demand, freed=fewer):
            yield Violation("cache", f"of {lost} evicted pages one of band {band} could have stayed")
