"""The arena's own books against the model, at each step.

    checker = Stepwise(model, arena)      # before the first operation
    violations += checker.step(arena, operation, outcome)
    violations += checker.full(arena)

The model keeps its beliefs as flat lists of the form that the books have, so a step compares *all* of
the page states, both directions of all tables, pin counts, ids and requests: one comparison of memory
per list, some 20 GB/s, whatever the operation touched. So a change that no effect told is seen in the
same step, even if the operation was refused (`atomic`). For lists that the books keep in a form of their
own (ledger rows), images of the same form are kept here and follow the model.

Left to `full`, since they would cost more than they tell: which places wait for a ticket (the batches,
their stamps and sizes are compared at each step), which pages forwards in flight write (looked at
after every fourth launch, and where pages were grafted), what leases say (after a lease began or ended),
which rows are yet to be published (the number of batches is compared), pages of a prefix cache where an
operation asks nothing of it or it is large (their counts are compared), cells of a wide table of pages
that no request holds (`ledger_image`), and public answers (`probes` compares one of them every few
steps). `tests/fuzz/test_stepwise.py` corrupts every field of the books and says which of the two
sees it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from operator import is_
from typing import Any

import numpy as np

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.band import BLOCK_PLACES, HOLE, Band
from bandscope.allocator.books import Books
from bandscope.allocator.checks import Violation, check_books
from bandscope.allocator.operations import Operation, Outcome
from bandscope.allocator.tables import IdSpace
from bandscope.fuzz.cache_comparison import compare_cache, counts_agree
from bandscope.fuzz.comparison import compare_everything, compare_leases
from bandscope.fuzz.ledger_image import LedgerImage
from bandscope.fuzz.model import CachedModel, Model
from bandscope.fuzz.model.bands import BandBook, IdBook
from bandscope.fuzz.model.state import Waiting
from bandscope.fuzz.probes import Probes

# Every so many full checks a restored arena is looked at too: that costs several times the rest.
RESTORED_EVERY = 16

# Operations that change nothing of a prefix cache, unless they evict; and of how many pages a cache is
# compared page by page at each other step.
LEAVE_CACHE = frozenset({ops.Extend, ops.Decode, ops.Launch, ops.Complete, ops.Compact, ops.SetGate})
CACHE_PAGES = 128


class Stepwise:
    """Compares `arena` with `model` after each operation."""

    def __init__(self, model: Model, arena: Arena) -> None:
        self.model = model
        self._bands = [
            BandWatch(book, band)
            for book, band in zip(model.bands, arena.books.bands, strict=True)
        ]
        self._ids = [IdWatch(model.ids, arena.books.ids)]
        if model.state_band is not None:
            self._ids.append(IdWatch(model.state_ids, arena.books.state_ids))
        self._ledger = LedgerImage(model, arena.books.ledger)
        self._list_images()
        self._probes = Probes(model)
        self._looks = self._looks_at_cache = 0
        self._compared: tuple[list[Any], list[Waiting]] = ([], [])
        self._twin: Arena | None = None
        self._cached = model if isinstance(model, CachedModel) else None
        self._must_not_run = not model.requests and not model.starts()

    def step(self, arena: Arena, operation: Operation, outcome: Outcome) -> list[Violation]:
        """What does not agree after `operation`; empty when all does."""
        kind = type(operation)
        if outcome.ok:
            self._ledger.follow(operation)
        books, model = arena.books, self.model
        tickets, pins = books.tickets, books.pins
        for watch in self._bands:
            if not watch.counts_agree():
                return self._differences(arena, outcome)
        if self._ledger.has_grown():
            if self._ledger.differences():
                return self._differences(arena, outcome)
            self._ledger.take_image()
            self._list_images()
        if (
            self._images != self._books
            or not self._ledger.rows_agree()
            or not self._ledger.wide_tables_agree()
            or tickets.issued != model.issued
            or tickets.ordered_through != model.ordered_through
            or tickets.in_flight.keys() != model.flights.keys()
            or books.gate_closed is not model.gate_closed
            or pins.next_number != model.next_lease
            or pins.pins.keys() != model.holds.keys()
            or (model.waiting or tickets._pending) and not self._same_waiting(arena)
            or pins.deferred != [band.freed_pinned for band in model.bands]
        ):
            return self._differences(arena, outcome)
        for space in self._ids:
            if not space.counts_agree():
                return self._differences(arena, outcome)
        look = LOOKS.get(kind)
        if look is not None and outcome.ok and not look(model, books):
            return self._differences(arena, outcome)
        if self._cached is not None and not self._same_cache(self._cached, arena, kind):
            return self._differences(arena, outcome)
        if self._must_not_run:
            return [Violation("capacity", "an arena started that cannot hold a page of each band")]
        return self._probes.look(arena, operation, outcome)

    def _same_cache(self, model: CachedModel, arena: Arena, kind: type) -> bool:
        if not counts_agree(model, arena.books):
            return False
        if kind in LEAVE_CACHE and not model.evicted():
            return True
        # Pages one by one: in a large cache, one step in so many.
        self._looks_at_cache += 1
        pages = len(model.cache.by_page)
        if pages > CACHE_PAGES and self._looks_at_cache % (pages // CACHE_PAGES):
            return True
        return not any(compare_cache(model, arena.books))

    def _list_images(self) -> None:
        # Two lists of buffers, to be compared pair by pair in one expression.
        pairs = [pair for watch in self._bands for pair in watch.images]
        pairs += [pair for space in self._ids for pair in space.images]
        pairs += self._ledger.images
        self._images = [image for image, _ in pairs]
        self._books = [book for _, book in pairs]

    def full(self, arena: Arena) -> list[Violation]:
        """Everything, from the books up: each invariant recomputed from page states and tables, then
        the whole of the books and of the public answers against the model. The first time, and now
        and then, the same of another arena that became what this one's snapshot says."""
        found = check_books(arena.books)
        found += compare_everything(self.model, arena)
        found += self._probes.everything(arena)
        if not found and not self._ledger.unheld_agree():
            found.append(Violation("ownership", "pages were noted where no request holds any"))
        self._looks += 1
        if not found and self._looks % RESTORED_EVERY == 1:
            found = self._restored(arena)
        return found

    def _restored(self, arena: Arena) -> list[Violation]:
        if self._twin is None:
            self._twin = Arena(arena.plan, arena.total_bytes, device="none", config=arena.books.config)
        self._twin.restore(arena.snapshot())
        return [
            Violation("determinism", f"in an arena restored from a snapshot, {violation}")
            for violation in compare_everything(self.model, self._twin)
        ]

    def _same_waiting(self, arena: Arena) -> bool:
        pending, waiting = arena.books.tickets._pending, self.model.waiting
        # Batches are replaced or removed, never changed: what was compared once needs no second look.
        known, known_waiting = self._compared
        if (
            len(pending) == len(known)
            and len(waiting) == len(known_waiting)
            and all(map(is_, pending, known))
            and all(map(is_, waiting, known_waiting))
        ):
            return True
        told = [(stamp, band, places.size) for stamp, band, places in pending if places.size]
        right = [(batch.stamp, batch.band.index, len(batch.places)) for batch in waiting]
        if told != right:
            return False
        self._compared = list(pending), list(waiting)
        return True

    def _differences(self, arena: Arena, outcome: Outcome) -> list[Violation]:
        # Something differs: say it by the name of the invariant it breaks, most telling first.
        found = []
        if not outcome.ok:
            found.append(
                Violation("atomic", f"an operation refused for {outcome.reason} changed the books")
            )
        for watch in self._bands:
            found += watch.differences()
        for space in self._ids:
            found += space.differences()
        found += check_books(arena.books)
        found += compare_everything(self.model, arena)
        if not found or not outcome.ok and len(found) == 1:
            found += self._ledger.differences()
        if not found:
            found.append(Violation("atomic", "the books changed where nothing was asked to"))
        return found


def _sees_writes(model: Model, books: Books) -> bool:
    if model.issued % 4 != 1:
        return True  # a quarter of them is looked at: it costs as much as all else of a step
    writes = books.tickets.in_flight[model.issued]
    return all(
        writes[band.index].tolist() == model.writes_of(model.forward, band)
        for band in (model.full, model.state_band)
        if band is not None
    )


def _is_renamed_alike(model: Model, books: Books) -> bool:
    """What launched work writes in bands whose pages got other names."""
    in_flight = books.tickets.in_flight
    return all(
        in_flight[ticket][index].tolist() == model.writes_of(forward, model.bands[index])
        for index, _, _ in model.grafts
        for ticket, forward in model.flights.items()
    )


def _is_settled_alike(model: Model, books: Books) -> bool:
    return books.tickets.settled_through == model.settled_through


def _is_held_alike(model: Model, books: Books) -> bool:
    return not list(compare_leases(model, books))


# What else to look at after operations that make records of their own.
LOOKS: dict[type, Callable[[Model, Books], bool]] = {
    ops.Publish: _is_renamed_alike,
    ops.Checkpoint: _is_renamed_alike,
    ops.Release: _is_renamed_alike,
    ops.Launch: _sees_writes,
    ops.Complete: _is_settled_alike,
    ops.Lease: _is_held_alike,
    ops.EndLease: _is_held_alike,
}


class BandWatch:
    """One band's books and their image."""

    def __init__(self, book: BandBook, band: Band) -> None:
        self.book, self.band = book, band
        table = band.table
        self._arrays = band.state, table.virtual_at, table.place_of, band.pin_count
        self._blocks = band._block_holes
        self._hole_blocks = bytearray(self._blocks.tobytes())
        self.images: list[tuple[Any, Any]] = [
            (book.state, _bytes(band.state)[: book.capacity]),
            (book.virtual_at.obj, _bytes(table.virtual_at)),
            (book.place_of.obj, _bytes(table.place_of)),
            (book.pin_count.obj, _bytes(band.pin_count)),
            (self._hole_blocks, _bytes(self._blocks)),
        ]

    def counts_agree(self) -> bool:
        """True when the band's numbers are right and its lists are those of `images`, whose holes by
        block are brought up to date."""
        book, band = self.book, self.band
        table, arrays = band.table, self._arrays
        if book.touched:
            book.touched = False
            self._hole_blocks[:] = self._count_blocks()
            if book.state.find(HOLE, 0, band._first_hole_block * BLOCK_PLACES) >= 0:
                return False
        return (
            band.low == book.low
            and band.high == book.high
            and band.live == book.live
            and band.pending == book.pending
            and band.holes == book.high - book.low - book.live - book.pending
            and len(table._dirty) == book.changes
            and band.state is arrays[0]
            and table.virtual_at is arrays[1]
            and table.place_of is arrays[2]
            and band.pin_count is arrays[3]
        )

    def _count_blocks(self) -> bytes:
        book, size = self.book, BLOCK_PLACES
        if book.high - book.low == book.live + book.pending:
            return bytes(8 * self._blocks.size)
        count, before, stop = book.state.count, book.low // size, -(-book.high // size)
        counts = [count(HOLE, start, start + size) for start in range(before * size, book.high, size)]
        counts = [0] * before + counts + [0] * (self._blocks.size - stop)
        return array("q", counts).tobytes()

    def differences(self) -> list[Violation]:
        """What is not equal."""
        found = []
        band, book = self.band, self.book
        table = band.table
        for invariant, what, ours, theirs in (
            ("conservation", "page states", book.state, band.state[: book.capacity]),
            ("tables", "places' pages", book.virtual_at, table.virtual_at),
            ("tables", "pages' places", book.place_of, table.place_of),
            ("pins", "pin counts", book.pin_count, band.pin_count),
        ):
            expected = np.frombuffer(ours, theirs.dtype)
            wrong = np.flatnonzero(expected != theirs)
            if wrong.size:
                first = int(wrong[0])
                found.append(
                    Violation(
                        invariant,
                        f"{what} of {band.name} are not what the effects told: {int(theirs[first])} "
                        f"at {first}, {int(expected[first])} is right ({wrong.size} differ)",
                    )
                )
        for name in ("low", "high", "live", "pending", "holes"):
            if getattr(band, name) != getattr(book, name):
                found.append(
                    Violation(
                        "conservation",
                        f"band {band.name} counts {name} {getattr(band, name)}, the model "
                        f"{getattr(book, name)}",
                    )
                )
        if len(band.table._dirty) != book.changes:
            found.append(
                Violation(
                    "tables",
                    f"{len(band.table._dirty)} batches of rows of {band.name} are to be published, "
                    f"{book.changes} were told",
                )
            )
        if self._blocks.tobytes() != self._count_blocks():
            found.append(
                Violation("conservation", f"band {band.name} finds other holes by block than it has")
            )
        if book.state.find(HOLE, 0, band._first_hole_block * BLOCK_PLACES) >= 0:
            found.append(
                Violation(
                    "conservation",
                    f"band {band.name} looks for holes from block {band._first_hole_block} on, but "
                    "there are some below",
                )
            )
        return found


class IdWatch:
    """One id space and its image."""

    def __init__(self, book: IdBook, space: IdSpace) -> None:
        self.book, self.space = book, space
        self.images: list[tuple[Any, Any]] = [
            (book.bound, _bytes(space.bound)), (book.generation.obj, _bytes(space.generation))
        ]  # fmt: skip
        self._released: Any = None
        self._released_view = memoryview(b"")

    def counts_agree(self) -> bool:
        """True when the numbers of ids are right, and which ones are released, in what order."""
        book, space = self.book, self.space
        if space._released is not self._released:
            self._released = space._released
            self._released_view = _bytes(space._released)
        size = len(book.released)
        return (
            space.fresh == book.fresh
            and space.released_count * 8 == size
            and book.released == self._released_view[:size]
        )

    def differences(self) -> list[Violation]:
        """What is not equal."""
        book, space = self.book, self.space
        found = []
        if space.fresh != book.fresh or space.released_count * 8 != len(book.released):
            found.append(
                Violation(
                    "ids",
                    f"{space.fresh} ids were used and {space.released_count} released, the model "
                    f"counts {book.fresh} and {len(book.released) // 8}",
                )
            )
        elif space.released_ids().tobytes() != book.released:
            found.append(Violation("ids", "the released ids are not those that were released"))
        if space.bound.tobytes() != book.bound:
            found.append(Violation("ids", "ids are marked bound that are not, or the reverse"))
        if space.generation.tobytes() != book.generation.tobytes():
            found.append(Violation("ids", "the generation of an id is not how often it was released"))
        return found


def _bytes(numbers: np.ndarray) -> memoryview[int]:
    view: Any = numbers  # which is a buffer, though typing does not know
    return memoryview(view).cast("B")
