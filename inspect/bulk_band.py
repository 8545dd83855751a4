"""What many records do to one band, worked out in array operations and then applied at once.

Records act one after the other, and a later one may depend on an earlier one: a lease ends where its
page lies by then. So what each number refers to is found first; then every array is written once, and
of several records that write the same page, the last one wins. Traces that follow thousands of page
moves a second are read by this, so every pass over all pages counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bandscope.allocator.band import GAP, HOLE, LIVE, PENDING
from bandscope.inspect import format as form
from bandscope.inspect.format import Kind
from bandscope.inspect.page_lists import PageLists, find_lists, flatten, spread
from bandscope.inspect.state import UNMAPPED, BandState

_BEGIN, _END, _MOVE = int(Kind.LEASE_BEGIN), int(Kind.LEASE_END), int(Kind.PAGE_MOVE)
_WAIT, _FREE = int(Kind.PENDING), int(Kind.RECLAIM)
_EXTENT, _PUBLISH = int(Kind.BAND_MOVE), int(Kind.PUBLISH)
OF_BANDS = np.zeros(256, bool)
OF_BANDS[[_BEGIN, _END, _MOVE, _WAIT, _FREE, _EXTENT, _PUBLISH]] = True
_LISTED = np.zeros(256, bool)
_LISTED[[_BEGIN, _END, _MOVE, _WAIT, _FREE]] = True
_BECOMES = np.full(256, HOLE, np.uint8)
_BECOMES[[_BEGIN, _MOVE]] = LIVE
_BECOMES[_WAIT] = PENDING
_U32 = 0xFFFFFFFF
BLOCK_BITS = 8  # pages are counted by blocks of 256


class Odd(Exception):
    """Records that are better applied one by one."""


class Scratch:
    """Working memory of a band. `dirty`: blocks of 256 pages that were touched; `placing`: by virtual
    page, and `placed`, `written`: by page, the last of a batch that wrote it, −1 between batches."""

    def __init__(self, band: BandState) -> None:
        self.placing = np.full(len(band.page_of), -1, np.int32)
        self.placed = np.full(band.capacity, -1, np.int32)
        self.written = np.full(band.capacity, -1, np.int32)
        self.marked = np.zeros(band.capacity, bool)
        self.dirty = np.ones((band.capacity >> BLOCK_BITS) + 1, bool)


@dataclass
class Places:
    """Pages and the virtual pages that come to lie there or leave them; of each, the record."""

    pages: np.ndarray
    virtual: np.ndarray
    record: np.ndarray


@dataclass
class BandBatch:
    """What `count` records of a band do. `pages`, `becomes`, `tickets`, `record`: of every page that
    is named, its state, the ticket it waits for and the record, in the order of the records. `come`,
    `owners`: virtual pages that are placed; `begun`, `since`: which of them are leased anew, by which
    event. `gone`: those whose lease ends, and where they lay; `left`: places that moves leave.
    `fresh`: rows to publish. `ids`: how many ids are taken, or which come back, in order."""

    count: int
    pages: np.ndarray
    becomes: np.ndarray
    tickets: np.ndarray
    record: np.ndarray | None
    come: Places
    owners: np.ndarray
    begun: np.ndarray
    since: np.ndarray
    gone: Places
    left: Places | None
    fresh: list[np.ndarray]
    published: bool
    extents: list[tuple[int, tuple[int, int]]]
    ids: list[int | np.ndarray]


def plan_band(
    band: BandState,
    scratch: Scratch,
    words: np.ndarray,
    starts: np.ndarray,
    records: np.ndarray,
    sequences: np.ndarray,
    *,
    has_ids: bool,
    has_pins: bool,
) -> BandBatch:
    """What the records of one band do to it; nothing is changed yet.

    `words`: the pages file; `starts`: the byte of each record's payload; `has_ids`: whether the band
    mints ids; `has_pins`: whether leases pin pages now. `Odd`, `ValueError` or `IndexError` when
    something does not add up. None of the records begins or ends a pin.
    """
    kinds = records["kind"]
    listed = np.flatnonzero(_LISTED[kinds])
    kind, flags = kinds[listed], records["flags"][listed]
    a, b = records["a"][listed], records["b"][listed]
    inline = (flags & form.INLINE) > 0
    leased, ends, moves = kind == _BEGIN, kind == _END, kind == _MOVE
    first = find_lists(words, starts[listed] >> 2, inline, np.where(leased, a >> 32, a))

    # Every record's pages, in order: of a lease its second list, of a move its third, then its second.
    second = _following(words, first, leased | moves, inline, a)
    of_pages = first.replaced(leased | moves, second)
    at = np.arange(listed.size)
    sources = None
    if moves.any():
        sources = second.chosen(moves[leased | moves])
        third = find_lists(
            words, sources.after, np.zeros(sources.count.size, bool), sources.value
        )
        if not np.array_equal(third.count, sources.count):
            raise Odd
        of_pages = of_pages.replaced(moves, third)
        order = np.argsort(np.concatenate((at, at[moves])), kind="stable")
        is_source = np.concatenate((np.zeros(at.size, bool), np.ones(sources.count.size, bool)))
        of_pages = of_pages.joined(sources).chosen(order)
        at, is_source = np.concatenate((at, at[moves]))[order], is_source[order]
    else:
        is_source = np.zeros(at.size, bool)
    count = of_pages.count
    if not np.array_equal(count, first.count[at]):
        raise Odd
    flat = flatten(words, of_pages)
    begins_at = np.cumsum(count) - count

    def where(chosen: np.ndarray) -> np.ndarray:
        """The places in `flat` of the chosen lists' numbers."""
        counts = count[chosen]
        return spread(begins_at[chosen] - (np.cumsum(counts) - counts), counts)

    places = leased[at] | moves[at] & ~is_source
    come_at = where(places)
    names_of = first.chosen(leased | moves)
    owners, come_records = _owners(words, b, flags, second, leased, moves), at[places]
    come = Places(
        flat[come_at] - band.base, flatten(words, names_of),
        np.repeat(listed[come_records], count[places]),
    )  # fmt: skip
    gone_at = where(ends[at])
    virtual = flat[gone_at]
    gone_record = np.repeat(listed[ends], first.count[ends])
    _within(come.virtual, len(band.page_of))
    _within(virtual, len(band.page_of))
    gone = Places(_resolve(band, scratch, virtual, gone_record, come), virtual, gone_record)
    flat -= band.base
    flat[gone_at] = gone.pages
    _within(flat, band.capacity)
    becomes_of = np.where(is_source, HOLE, _BECOMES[kind[at]]).astype(np.uint8)
    becomes = np.repeat(becomes_of, count)
    if has_pins:
        becomes[gone_at] = np.where(band.pins[gone.pages] > 0, PENDING, HOLE)
    left = None
    if sources is not None:
        moved = np.repeat(moves[leased | moves], names_of.count)
        left = Places(
            flat[where(is_source)], come.virtual[moved], come.record[moved]
        )
        owners = _carry_owners(band, scratch, come, owners, moved)
    if owners.size != come.pages.size or come.virtual.size != come.pages.size:
        raise Odd
    begun = np.repeat(leased[leased | moves], names_of.count)
    published = np.flatnonzero(kinds == _PUBLISH)
    after = int(published[-1]) if published.size else -1
    extent_at = np.flatnonzero(kinds == _EXTENT)
    extents = [
        (record, (packed >> 32, packed & _U32))
        for record, packed in zip(
            extent_at.tolist(), records["b"][extent_at].tolist(), strict=True
        )
    ]
    for _, (low, high) in extents:
        if high > low and not band.base <= low <= high <= band.base + band.capacity:
            raise Odd
    return BandBatch(
        len(records), flat, becomes,
        np.repeat(np.where(kind == _WAIT, b, 0)[at], count),
        np.repeat(listed[at], count) if extents else None,
        come, owners, come.virtual[begun] if sources is not None else come.virtual,
        np.repeat(sequences[listed[leased]], first.count[leased]), gone, left,
        [part.virtual[np.searchsorted(part.record, after, "right") :] for part in (come, gone)],
        bool(published.size), extents,
        _ids(leased, ends, first.count, virtual) if has_ids else [],
    )  # fmt: skip


def _following(
    words: np.ndarray, lists: PageLists, chosen: np.ndarray, inline: np.ndarray, a: np.ndarray
) -> PageLists:
    """The second list of the chosen records; a single page is in the record itself."""
    return find_lists(words, lists.after[chosen], inline[chosen], a[chosen] & _U32)


def _owners(
    words: np.ndarray, b: np.ndarray, flags: np.ndarray, second: PageLists, leased: np.ndarray,
    moves: np.ndarray,
) -> np.ndarray:
    """Who owns each page that is placed: one request for a whole record, or one for each page."""
    chosen = leased | moves
    result = np.repeat(b[chosen], second.count)
    each = (flags[chosen] & form.HOLDER_EACH) > 0
    each &= leased[chosen]
    if each.any():
        holders = second.chosen(each)
        lists = find_lists(
            words, holders.after, np.zeros(holders.count.size, bool), holders.value
        )
        result[np.repeat(each, second.count)] = flatten(words, lists)
    return result


def _ids(
    leased: np.ndarray, ends: np.ndarray, counts: np.ndarray, ended: np.ndarray
) -> list[int | np.ndarray]:
    """What happens to the ids, record by record; of neighbours alike, together."""
    found: list[int | np.ndarray] = []
    chosen = np.flatnonzero(leased | ends)
    at = 0
    taken = 0
    back = 0
    for begins, count in zip(leased[chosen].tolist(), counts[chosen].tolist(), strict=True):
        if begins:
            if back:
                found.append(ended[at : at + back])
                at, back = at + back, 0
            taken += count
        else:
            if taken:
                found.append(taken)
                taken = 0
            back += count
    if taken:
        found.append(taken)
    if back:
        found.append(ended[at : at + back])
    return found


def _resolve(
    band: BandState, scratch: Scratch, virtual: np.ndarray, record: np.ndarray, come: Places
) -> np.ndarray:
    """Where virtual pages lie when a record says that they go: where the last record before it placed
    them, or where they lay before all of these records."""
    pages: np.ndarray = band.page_of[virtual].astype(np.int64) - band.base
    if not virtual.size or not come.virtual.size:
        return pages
    scratch.placing[come.virtual] = np.arange(come.virtual.size)
    last = scratch.placing[virtual]
    scratch.placing[come.virtual] = -1
    hot = np.flatnonzero(last >= 0)
    if not hot.size:
        return pages
    last = last[hot]
    early = come.record[last] < record[hot]
    pages[hot[early]] = come.pages[last[early]]
    late = hot[~early]  # placed again after they went
    if late.size:
        found = _last_before(virtual[late], record[late], come)
        known = found >= 0
        pages[late[known]] = come.pages[found[known]]
    return pages


def _last_before(virtual: np.ndarray, record: np.ndarray, come: Places) -> np.ndarray:
    """Which of `come` placed each virtual page last before its `record`; −1: none."""
    span = int(max(record.max(), come.record.max())) + 1
    keys = come.virtual * span + come.record
    order = np.argsort(keys, kind="stable")
    at = np.searchsorted(keys[order], virtual * span + record) - 1
    found = order[at]
    return np.where((at >= 0) & (come.virtual[found] == virtual), found, -1)


def _carry_owners(
    band: BandState, scratch: Scratch, come: Places, owners: np.ndarray, moved: np.ndarray
) -> np.ndarray:
    """A page that moves keeps its owner: of its last lease among these records, or from before."""
    leases = Places(come.pages[~moved], come.virtual[~moved], come.record[~moved])
    virtual, record = come.virtual[moved], come.record[moved]
    old = band.page_of[virtual].astype(np.int64) - band.base
    known = (old >= 0) & (old < band.capacity)
    kept = np.where(known, band.owner[np.where(known, old, 0)], UNMAPPED)
    if leases.virtual.size:
        found = _last_before(virtual, record, leases)
        kept = np.where(found >= 0, owners[~moved][found], kept)
    result = owners.copy()
    result[moved] = kept
    return result


def _within(values: np.ndarray, stop: int) -> None:
    # A negative number is a large one without its sign.
    if values.size and int(values.view(np.uint64).max()) >= stop:
        raise Odd


def apply_band(band: BandState, scratch: Scratch, batch: BandBatch) -> None:
    """Write what was planned."""
    come, gone = batch.come, batch.gone
    band.state[batch.pages] = batch.becomes
    band.ticket[batch.pages] = batch.tickets
    scratch.dirty[batch.pages >> BLOCK_BITS] = True
    if come.pages.size:
        band.virtual[come.pages] = come.virtual
        band.owner[come.pages] = batch.owners
        band.page_of[come.virtual] = come.pages + band.base
        band.leased_at[batch.begun] = batch.since
        scratch.placed[come.pages] = come.record
    for part in (gone, batch.left):
        if part is not None and part.pages.size:
            empty = part.pages
            if come.pages.size:  # unless something was placed there later, or it moved there just now
                empty = empty[scratch.placed[empty] < part.record]
            band.virtual[empty] = UNMAPPED
            band.owner[empty] = UNMAPPED
    if come.pages.size:
        scratch.placed[come.pages] = -1
        scratch.placing[come.virtual] = come.record
    if gone.virtual.size:
        unmapped = gone.virtual
        if come.pages.size:
            unmapped = unmapped[scratch.placing[unmapped] < gone.record]
        band.page_of[unmapped] = UNMAPPED
    scratch.placing[come.virtual] = -1
    if batch.published:
        band.unpublished = []
    band.unpublished += [part for part in batch.fresh if part.size]
    if batch.extents:
        _apply_extents(band, scratch, batch)
    if gone.pages.size:  # taken and given back at once, where the extent never got to
        inside = band.slice
        outside = gone.pages[(gone.pages < inside.start) | (gone.pages >= inside.stop)]
        band.state[outside[band.state[outside] == HOLE]] = GAP


def _apply_extents(band: BandState, scratch: Scratch, batch: BandBatch) -> None:
    """Extents change in order; a page that a later record wrote stays as that one left it."""
    assert batch.record is not None
    ranges: list[tuple[int, int, int, bool]] = []  # record, first, stop, whether it grew
    base = band.base
    for record, new in batch.extents:
        old = band.extent
        if old[1] > old[0]:
            for low, high in ((old[0], min(old[1], new[0])), (max(old[0], new[1]), old[1])):
                if high > low:
                    ranges.append((record, low - base, high - base, False))
        for low, high in ((new[0], min(new[1], old[0])), (max(new[0], old[1]), new[1])):
            if high > low:
                ranges.append((record, low - base, high - base, True))
        band.extent = new if new[1] > new[0] else (0, 0)
    for _, low, high, _ in ranges:
        scratch.marked[low:high] = True
    touched = np.flatnonzero(scratch.marked[batch.pages])
    at = batch.pages[touched]
    scratch.written[at] = batch.record[touched]
    for record, low, high, grew in ranges:
        part = band.state[low:high]
        due = scratch.written[low:high] < record
        if grew:
            part[due & (part == GAP)] = HOLE
        else:
            part[due] = GAP
        scratch.dirty[low >> BLOCK_BITS : (high - 1 >> BLOCK_BITS) + 1] = True
        scratch.marked[low:high] = False
    scratch.written[at] = -1
