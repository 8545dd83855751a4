"""Effects as records: what an arena tells an observer, one method and one record per effect.

Whoever inherits says where records and payloads go: the recorder to its files, a replay to a list
that it compares with what was recorded. The layout of every record is in `docs/trace-format.md`.
"""

from __future__ import annotations

from collections.abc import Callable

from bandscope.allocator.arena import Arena
from bandscope.allocator.events import Extent, Holder
from bandscope.allocator.tables import Pages
from bandscope.inspect import format as form
from bandscope.inspect.format import Kind, pack_list
from bandscope.inspect.operation_codec import as_json

# Plain integers of this module: a member of an enumeration costs as much to look up as a field to
# write, and these run for every event.
_BAND_MOVE, _PAGE_MOVE, _NO_BAND = int(Kind.BAND_MOVE), int(Kind.PAGE_MOVE), form.NO_BAND
_LEASE_BEGIN, _LEASE_END = int(Kind.LEASE_BEGIN), int(Kind.LEASE_END)
_PENDING, _RECLAIM, _BARRIER = int(Kind.PENDING), int(Kind.RECLAIM), int(Kind.BARRIER)
_LAUNCHED, _DONE, _PUBLISH = int(Kind.LAUNCHED), int(Kind.DONE), int(Kind.PUBLISH)
_SHARE, _EVICTION, _STATE_COPY = int(Kind.SHARE), int(Kind.EVICTION), int(Kind.STATE_COPY)
_GRAFT = int(Kind.GRAFT)
_INLINE = form.INLINE


class EffectWriter:
    """The effects of one arena.

    `append(kind, flags, band, length, a, b, c)` takes a record; `payload(data)` takes the payload of
    the record that follows, and returns its length in bytes. `_texts`: the numbers of the texts that
    need not be written again.
    """

    arena: Arena
    append: Callable[..., None]
    payload: Callable[[bytes], int]
    _band_index: dict[str, int]
    _texts: dict[str, int]

    def text(self, text: str) -> int:
        """The number of a text; 0 for the empty text."""
        raise NotImplementedError

    def lease_begin(
        self, holder: Holder, band: str, virtual: Pages, physical: Pages, lease: int
    ) -> None:
        """Pages got a holder; one page fits into the record."""
        if virtual.size == 1 and type(holder) is int:
            self.append(
                _LEASE_BEGIN, _INLINE, self._band_index[band], 0,
                virtual.item() << 32 | physical.item(), holder, 0,
            )  # fmt: skip
            return
        flags, who, extra = self._holder(holder)
        length = self.payload(pack_list(virtual) + pack_list(physical) + extra)
        self.append(
            _LEASE_BEGIN, flags, self._band_index[band], length, virtual.size, who, lease
        )

    def lease_end(self, holder: Holder, band: str, virtual: Pages, lease: int) -> None:
        """Pages lost a holder."""
        if virtual.size == 1 and type(holder) is int:
            self.append(
                _LEASE_END, _INLINE, self._band_index[band], 0, virtual.item(), holder, 0
            )
            return
        flags, who, extra = self._holder(holder)
        length = self.payload(pack_list(virtual) + extra)
        self.append(_LEASE_END, flags, self._band_index[band], length, virtual.size, who, lease)

    def _holder(self, holder: Holder) -> tuple[int, int, bytes]:
        """Flags, field `b` and a list of holders, as the record of a lease has them."""
        if isinstance(holder, int):
            return 0, holder, b""
        if isinstance(holder, str):
            return form.PIN | form.HOLDER_TEXT, self.text(holder), b""
        if holder.size == 1:
            return 0, holder.item(), b""
        return form.HOLDER_EACH, 0, form.pack_numbers(holder.tolist())

    def page_move(
        self,
        band: str,
        virtual: Pages,
        sources: Pages,
        destinations: Pages,
        page_bytes: int,
        urgent: bool,
    ) -> None:
        """One batch of copies is one record."""
        lists = pack_list(virtual) + pack_list(sources) + pack_list(destinations)
        length = self.payload(lists)
        flags = form.URGENT if urgent else 0
        self.append(_PAGE_MOVE, flags, self._band_index[band], length, virtual.size, 0, 0)

    def band_move(self, band: str, before: Extent, after: Extent, why: str) -> None:
        """An extent changed; written in pages, which fit."""
        index = self._band_index[band]
        size = self.arena.books.bands[index].page_bytes
        text = self._texts.get(why) or self.text(why)
        self.append(
            _BAND_MOVE, 0, index, 0,
            before[0] // size << 32 | before[1] // size,
            after[0] // size << 32 | after[1] // size,
            text,
        )  # fmt: skip

    def pending(self, band: str, pages: Pages, ticket: int) -> None:
        """Physical pages wait for a ticket."""
        self._physical(_PENDING, band, pages, ticket)

    def reclaim(self, band: str, pages: Pages) -> None:
        """Physical pages became holes."""
        self._physical(_RECLAIM, band, pages, 0)

    def _physical(self, kind: int, band: str, pages: Pages, ticket: int) -> None:
        index = self._band_index[band]
        if pages.size == 1:
            self.append(kind, _INLINE, index, 0, pages.item(), ticket, 0)
        else:
            self.append(kind, 0, index, self.payload(pack_list(pages)), pages.size, ticket, 0)

    def barrier(self, kind: str, ticket: int, why: str) -> None:
        """The schedule stream waits."""
        self.append(_BARRIER, 0, _NO_BAND, 0, ticket, self.text(kind), self.text(why))

    def launched(self, ticket: int, requests: tuple[int, ...]) -> None:
        """A forward was launched; its requests are those of the operation."""
        self.append(_LAUNCHED, 0, _NO_BAND, 0, ticket, 0, 0)

    def done(self, ticket: int) -> None:
        """A ticket completed."""
        self.append(_DONE, 0, _NO_BAND, 0, ticket, 0, 0)

    def publish(self, band: str, rows: int) -> None:
        """Table rows were sent to the device."""
        self.append(_PUBLISH, 0, self._band_index[band], 0, rows, 0, 0)

    def refusal(
        self,
        reason: str,
        demand: tuple[int, ...],
        live: tuple[int, ...],
        fixed: tuple[Extent | None, ...],
    ) -> None:
        """A demand was refused, with the layout it was refused for."""
        told = {"reason": reason, "demand": demand, "live": live, "fixed": fixed}
        self.append(Kind.REFUSAL, 0, _NO_BAND, self.payload(as_json(told)), 0, 0, 0)

    def share(self, request: int, first_page: int, virtual: Pages) -> None:
        """Pages of a request are the prefix cache's from now on."""
        if virtual.size == 1:
            self.append(_SHARE, _INLINE, _NO_BAND, 0, virtual.item(), request, first_page)
            return
        length = self.payload(pack_list(virtual))
        self.append(_SHARE, 0, _NO_BAND, length, virtual.size, request, first_page)

    def graft(self, request: int, band: str, virtual: Pages, into: Pages) -> None:
        """Pages of the prefix cache lie where a request's lay; one fits into the record."""
        index = self._band_index[band]
        if virtual.size == 1:
            packed = virtual.item() << 32 | into.item()
            self.append(_GRAFT, _INLINE, index, 0, packed, request, 0)
            return
        length = self.payload(pack_list(virtual) + pack_list(into))
        self.append(_GRAFT, 0, index, length, virtual.size, request, 0)

    def evict(self, demand: tuple[int, ...], counts: tuple[int, ...]) -> None:
        """The prefix cache gives up pages for a demand."""
        length = self.payload(form.pack_numbers(demand) + form.pack_numbers(counts))
        self.append(_EVICTION, 0, _NO_BAND, length, sum(counts), 0, 0)

    def state_copy(
        self, band: str, source: int, destination: int, from_page: int, to_page: int, why: str
    ) -> None:
        """A state slot was copied to another; both fit into the record."""
        self.append(
            _STATE_COPY, 0, self._band_index[band], 0,
            source << 32 | from_page, destination << 32 | to_page, self.text(why),
        )  # fmt: skip
