"""An image of the arena's request ledger, column by column, that follows what requests are known to
hold. Comparing it with the ledger is a comparison of memory."""

from __future__ import annotations

from typing import Any

from bandscope.allocator import operations as ops
from bandscope.allocator.checks import Violation
from bandscope.allocator.operations import Operation
from bandscope.allocator.requests import RequestLedger
from bandscope.fuzz.model import Model

COLUMNS = ("length", "launched", "page_count", "state_count", "request")
TABLES = ("first_kept", "pages", "state")


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
        if row >= self._length.shape[0]:
            return  # the ledger has grown, which `agrees` notices
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
            }
            for name, value in expected.items():
                told = int(getattr(ledger, name)[row])
                if told != value:
                    found.append(
                        Violation(
                            "ownership", f"request {number} has {name} {told}, {value} is right"
                        )
                    )
            for name, told, right in (
                ("pages", ledger.token_pages(row), request.pages.tolist()),
                ("slots", ledger.state_slots(row), request.slots),
                ("first kept pages", ledger.first_kept[row], request.first_kept),
            ):
                if told.tolist() != right:
                    found.append(
                        Violation("ownership", f"request {number} holds other {name} than it took")
                    )
        return found

    def take_image(self) -> None:
        """The ledger as it is now is the image."""
        ledger = self.ledger
        self._arrays = [getattr(ledger, name) for name in (*COLUMNS, *TABLES)]
        self.images = [
            (bytearray(numbers.tobytes()), memoryview(numbers).cast("B"))
            for numbers in self._arrays
            if numbers.size
        ]
        (
            self._length, self._launched, self._page_count, self._state_count, self._request,
            self._first_kept, self._pages, self._state,
        ) = self._images()  # fmt: skip
        self._first_kept_width = ledger.first_kept.shape[1]
        self._pages_width = ledger.pages.shape[1]
        self._state_width = ledger.state.shape[1]

    def _images(self) -> list[memoryview[int]]:
        images = [image for image, _ in self.images]
        return [
            memoryview(images.pop(0) if numbers.size else bytearray()).cast(numbers.dtype.char)
            for numbers in self._arrays
        ]


FOLLOW: dict[type, Any] = {
    ops.Admit: LedgerImage._admit,
    ops.Extend: LedgerImage._extend,
    ops.Decode: LedgerImage._decode,
    ops.TrimWindow: LedgerImage._trim,
    ops.Release: LedgerImage._release,
    ops.Launch: LedgerImage._launch,
}
