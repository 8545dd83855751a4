"""An image of the arena's request ledger, column by column, that follows what requests are known to
hold. Comparing it with the ledger is a comparison of memory.

One long request makes a table of pages wide for all, most of it cells that hold nothing. Of a wide
table `wide_tables_agree` compares what requests hold, and `unheld_agree` the rest, which nobody reads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bandscope.allocator import operations as ops
from bandscope.allocator.checks import Violation
from bandscope.allocator.operations import Operation
from bandscope.allocator.requests import RequestLedger
from bandscope.fuzz.model import Model

COLUMNS = ("length", "launched", "page_count", "state_count", "request")
TABLES = ("first_kept", "pages", "state")

# Tables of pages, and what a request holds of each. From so many bytes on a table is compared request
# by request, which costs as much as comparing so many bytes more for each.
HELD = {"pages": "pages", "state": "slots"}
WIDE_BYTES = 1 << 15
REQUEST_BYTES = 1 << 13


class LedgerImage:
    """`rows`: the row of each running request, which is the ledger's choice."""

    def __init__(self, model: Model, ledger: RequestLedger) -> None:
        self.model, self.ledger = model, ledger
        self.rows: dict[int, int] = {}
        self._free_rows: list[int] = []
        self._row_count = 0
        self.take_image()

    # --- following ---------------------------------------------------------------------------------

    def follow(self, operation: Operation) -> None:
        """An operation was done: so its requests' rows are now what the model says."""
        follow = FOLLOW.get(type(operation))
        if follow is not None:
            follow(self, operation)

    def row(self, number: int) -> None:
        """Everything in the row of a request is now what the model says."""
        request, row = self.model.requests[number], self.rows[number]
        if row >= self._arrays[0].size:
            return  # the ledger has grown, which `has_grown` notices
        self._length[row], self._launched[row] = request.length, request.launched
        self._page_count[row] = len(request.pages)
        if self._cached is not None:
            self._cached[row] = len(request.path)
        for column, first in enumerate(request.first_kept, row * self._first_kept_width):
            self._first_kept[column] = first
        if self._arrays[-2] is self.ledger.pages:
            for column, page in enumerate(request.pages, row * self._pages_width):
                self._pages[column] = page

    def _shared(self, op: ops.Publish | ops.Checkpoint) -> None:
        self.row(op.request)

    def _admit(self, op: ops.Admit) -> None:
        ledger = self.ledger
        if self._free_rows:
            row = self._free_rows.pop()
        else:
            row = self._row_count
            self._row_count += 1
        self.rows[op.request] = row
        request = self.model.requests[op.request]
        request.row = row
        if row >= self._arrays[0].size:
            return  # the ledger has grown, which `has_grown` notices
        slots = request.slots
        self._request[row] = op.request
        self._length[row] = self._launched[row] = self._page_count[row] = 0
        self._state_count[row] = len(slots)
        width = self._first_kept_width
        for column in range(width):
            self._first_kept[row * width + column] = 0
        if slots and self._arrays[-1] is ledger.state:
            start = row * self._state_width
            for column, slot in enumerate(slots, start):
                self._state[column] = slot
        if self._cached is not None:
            self.row(op.request)

    def _extend(self, op: ops.Extend) -> None:
        request, row = self.model.requests[op.request], self.rows[op.request]
        self._length[row] = request.length
        taken = self.model.taken
        if taken:
            count = len(request.pages)
            self._page_count[row] = count
            if self._arrays[-2] is self.ledger.pages:
                start = row * self._pages_width + count - len(taken)
                pages = self._pages
                for column, page in enumerate(taken, start):
                    pages[column] = page

    def _decode(self, op: ops.Decode) -> None:
        length = self._length
        for request in self.model.batch:
            length[request.row] = request.length
        taken = self.model.taken
        if taken:
            same = self._arrays[-2] is self.ledger.pages
            requests = self.model.requests
            for number, page in zip(self.model.taker, taken, strict=True):
                request = requests[number]
                row, count = request.row, len(request.pages)
                self._page_count[row] = count
                if same:
                    self._pages[row * self._pages_width + count - 1] = page

    def _trim(self, op: ops.TrimWindow) -> None:
        width = self._first_kept_width
        for request, window, first in self.model.trimmed:
            self._first_kept[request.row * width + window] = first

    def _release(self, op: ops.Release) -> None:
        row = self.rows.pop(op.request)
        if op.publish and self._cached is not None:
            # It was published first, in a row that nobody reads any more.
            shared = self.model.last_shared
            self._cached[row] = len(shared)
            for column, page in enumerate(shared, row * self._pages_width):
                self._pages[column] = page
        self._request[row] = -1
        self._free_rows.append(row)

    def _launch(self, op: ops.Launch) -> None:
        launched = self._launched
        for request in self.model.batch:
            launched[request.row] = request.length

    # --- comparing -----------------------------------------------------------------------------------

    def has_grown(self) -> bool:
        """True when the ledger has another table: `differences` says whether it holds what it must, and
        `take_image` makes it what is compared from then on."""
        ledger, arrays = self.ledger, self._arrays
        return (
            ledger.pages is not arrays[-2]
            or ledger.state is not arrays[-1]
            or ledger.length is not arrays[0]
        )

    def rows_agree(self) -> bool:
        """True when every request has its row, and the free rows are free."""
        ledger = self.ledger
        return (
            ledger.row_of == self.rows
            and ledger.row_count == self._row_count
            and ledger._free_rows == self._free_rows
        )

    def wide_tables_agree(self) -> bool:
        """True when requests hold the pages that they should, as far as `images` does not say so."""
        requests = self.model.requests
        for image, book, numbers, name in self._wide:
            if len(requests) * REQUEST_BYTES >= len(image):
                if image != book:
                    return False
                continue
            width, size = numbers.strides
            for request in requests.values():
                start = request.row * width
                stop = start + len(getattr(request, name)) * size
                if image[start:stop] != book[start:stop]:
                    return False
        return True

    def unheld_agree(self) -> bool:
        """True when no cell of a wide table changed that no request holds."""
        return self.has_grown() or all(image == book for image, book, _, _ in self._wide)

    def differences(self) -> list[Violation]:
        """Rows that do not hold what the model says."""
        found: list[Violation] = []
        ledger, requests = self.ledger, self.model.requests
        if ledger.row_of != self.rows or ledger.row_count != self._row_count:
            found.append(Violation("ownership", "requests have rows other than they were given"))
            return found
        for number, row in self.rows.items():
            request = requests[number]
            expected: dict[str, Any] = {
                "request": number,
                "length": request.length,
                "launched": request.launched,
                "page_count": len(request.pages),
                "state_count": len(request.slots),
                "cached": len(request.path),
            }
            for name, value in expected.items():
                told = int(getattr(ledger, name)[row])
                if told != value:
                    found.append(
                        Violation(
                            "ownership", f"request {number} has {name} {told}, {value} is right"
                        )
                    )
            for name, held, right in (
                ("pages", ledger.token_pages(row), request.pages.tolist()),
                ("slots", ledger.state_slots(row), request.slots),
                ("first kept pages", ledger.first_kept[row], request.first_kept),
            ):
                if held.tolist() != right:
                    found.append(
                        Violation("ownership", f"request {number} holds other {name} than it took")
                    )
        return found

    def take_image(self) -> None:
        """The ledger as it is now is the image."""
        ledger = self.ledger
        names: tuple[str, ...] = (*COLUMNS, *TABLES)
        shares = self.model.config.prefix_cache
        if shares:
            names = ("length", "cached", *names[1:])
        self._arrays = [getattr(ledger, name) for name in names]
        images: list[tuple[Any, Any]] = [
            (bytearray(numbers.tobytes()), memoryview(numbers).cast("B") if numbers.size else b"")
            for numbers in self._arrays
        ]
        self.images: list[tuple[Any, Any]] = []
        self._wide: list[tuple[Any, Any, np.ndarray, str]] = []  # image, book, table, what is held
        for name, numbers, (image, book) in zip(names, self._arrays, images, strict=True):
            if name in HELD and numbers.nbytes > WIDE_BYTES:
                self._wide.append((image, book, numbers, HELD[name]))
            elif numbers.size:
                self.images.append((image, book))
        views = [
            memoryview(image).cast(numbers.dtype.char)
            for (image, _), numbers in zip(images, self._arrays, strict=True)
        ]
        self._cached = views.pop(1) if shares else None
        (
            self._length, self._launched, self._page_count, self._state_count, self._request,
            self._first_kept, self._pages, self._state,
        ) = views  # fmt: skip
        self._first_kept_width = ledger.first_kept.shape[1]
        self._pages_width = ledger.pages.shape[1]
        self._state_width = ledger.state.shape[1]


FOLLOW: dict[type, Any] = {
    ops.Admit: LedgerImage._admit,
    ops.Extend: LedgerImage._extend,
    ops.Decode: LedgerImage._decode,
    ops.TrimWindow: LedgerImage._trim,
    ops.Release: LedgerImage._release,
    ops.Launch: LedgerImage._launch,
    ops.Publish: LedgerImage._shared,
    ops.Checkpoint: LedgerImage._shared,
}
