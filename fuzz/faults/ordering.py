"""Group B, order: each rule of what follows what is removed, and tickets are mishandled.

The rows are those of the table of ordering rules (`tests/allocator/test_ordering_rules.py`).
"""

from __future__ import annotations

from bandscope.fuzz.faults.planting import Fault, edited, replaced

FAULTS = (
    Fault(
        "rows-not-published",
        "order",
        "row 1, B4",
        "A forward is launched without the table rows that changed since the last one.",
        edited(("handlers.launch", "    books.publish()\n", "")),
    ),
    Fault(
        "rows-published-after-the-launch",
        "order",
        "row 1, B4",
        "Table rows are sent when the forward that needs them is launched already.",
        edited(
            ("handlers.launch", "    books.publish()\n", ""),
            (
                "handlers.launch",
                "    books.device.launch(ticket)\n",
                "    books.device.launch(ticket)\n    books.publish()\n",
            ),
        ),
    ),
    Fault(
        "no-barrier-before-reuse",
        "order",
        "rows 2, 5, 9 and 10",
        "Settling says that the schedule stream is ordered behind launched work and asks nothing of "
        "the device.",
        edited(("books.Books.settle", "            self.device.order_behind(ticket)\n", "")),
    ),
    Fault(
        "barrier-behind-the-oldest-forward",
        "order",
        "row 10",
        "The barrier of an urgent need waits for the oldest forward in flight, not the newest.",
        edited(
            (
                "books.Books.settle",
                "ticket = self.tickets.order_behind_all()",
                "oldest = self.tickets.completed_through + 1\n"
                "            self.tickets.order_behind_all()\n"
                "            ticket = oldest",
            )
        ),
    ),
    Fault(
        "barrier-forgotten-at-once",
        "order",
        "rows 2 and 9",
        "After a barrier the arena believes that it is ordered one forward further than it is.",
        edited(
            (
                "ordering.Tickets.order_behind_all",
                "self.ordered_through = self.issued\n",
                "self.ordered_through = self.issued + 1\n",
            )
        ),
    ),
    Fault(
        "freed-pages-are-holes-at-once",
        "order",
        "rows 2, 3, 5 and 10",
        "A page that is freed under a launched forward is reused without waiting for it.",
        edited(
            (
                "books.Books.drop",
                "pending = self.tickets.unsettled\n",
                "pending = False\n",
            )
        ),
    ),
    Fault(
        "newest-completion-counts-for-all",
        "order",
        "row 3",
        "A completion says that every ticket before it has completed too.",
        edited(
            (
                "ordering.Tickets.completed_through",
                "return min(self.in_flight, default",
                "return max(self.in_flight, default",
            )
        ),
    ),
    Fault(
        "completion-ends-older-tickets",
        "order",
        "row 3",
        "Completing a ticket out of order takes the older ones out of flight.",
        edited(
            (
                "ordering.Tickets.complete",
                "del self.in_flight[ticket]",
                "self.in_flight = {t: w for t, w in self.in_flight.items() if t > ticket}",
            )
        ),
    ),
    Fault(
        "any-completion-reclaims-everything",
        "order",
        "row 3",
        "Whatever ticket completes, all pending pages become holes.",
        edited(
            (
                "ordering.Tickets.take_settled",
                "while self._pending and self._pending[0][0] <= through:",
                "while self._pending:",
            )
        ),
    ),
    Fault(
        "reclaimed-one-ticket-early",
        "order",
        "row 3",
        "Pages become holes when the ticket before theirs has completed.",
        edited(
            (
                "ordering.Tickets.take_settled",
                "through = self.settled_through",
                "through = self.settled_through + 1",
            )
        ),
    ),
    Fault(
        "stamped-with-the-oldest-ticket",
        "order",
        "row 3",
        "A freed page waits for the oldest forward in flight instead of the newest.",
        edited(
            (
                "ordering.Tickets.defer",
                "self._pending.append((self.issued, band, places))",
                "self._pending.append((self.completed_through + 1, band, places))",
            )
        ),
    ),
    Fault(
        "one-batch-per-completion",
        "order",
        "row 3, lost pending pages",
        "A completion reclaims one batch of pages; the others that it frees wait for ever.",
        edited(
            (
                "ordering.Tickets.take_settled",
                "while self._pending and",
                "if self._pending and",
            )
        ),
    ),
    Fault(
        "batches-of-one-ticket-replace-each-other",
        "order",
        "row 6, M1, sgl-project/sglang#39982",
        "A second batch of freed pages of a band under one ticket replaces the first in the list.",
        edited(
            (
                "ordering.Tickets.defer",
                "self._pending.append((self.issued, band, places))",
                "same = (self.issued, band)\n"
                "        self._pending = deque(e for e in self._pending if e[:2] != same)\n"
                "        self._pending.append((self.issued, band, places))",
            )
        ),
    ),
    Fault(
        "moves-read-what-is-being-written",
        "order",
        "row 4",
        "An opportunistic pass moves pages that a launched forward may still write.",
        edited(
            (
                "compaction._inwards",
                "useful &= ~np.isin(sources, band.table.place_of[written])",
                "pass",
            )
        ),
    ),
    Fault(
        "launch-forgets-the-token-pages-it-writes",
        "order",
        "row 4",
        "A launch does not say which token pages its forward writes.",
        edited(
            ("handlers.launch", "{index: written for index in books.token_bands}", "{}")
        ),
    ),
    Fault(
        "launch-forgets-the-state-it-writes",
        "order",
        "row 4",
        "A launch does not say which state slots its forward updates.",
        edited(
            (
                "handlers.launch",
                "writes[books.state] = np.concatenate(slots) if slots else np.empty(0, np.int64)",
                "pass",
            )
        ),
    ),
    Fault(
        "partly-filled-page-counts-as-written",
        "order",
        "row 4, page rounding",
        "The page that a forward continues to fill is not among those it writes.",
        edited(
            (
                "handlers.launch",
                "first = ledger.launched[rows] // books.plan.page_size",
                "first = -(-ledger.launched[rows] // books.plan.page_size)",
            )
        ),
    ),
    Fault(
        "urgent-compaction-places-no-barrier",
        "order",
        "rows 4 and 10",
        "An urgent pass moves pages without ordering itself behind launched work.",
        edited(
            ("compaction.pack_all", 'books.settle("urgent compaction")', "books.reclaim()")
        ),
    ),
    Fault(
        "relocation-places-no-barrier",
        "order",
        "row 9",
        "Neither making room nor the mover orders a relocation behind the forwards in flight.",
        edited(
            ("books.Books.make_room", 'self.settle("reuse of pending pages")', "self.reclaim()"),
            ("books.Books.execute", 'self.settle("page moves")', "pass"),
        ),
    ),
    Fault(
        "moves-to-pending-pages-of-an-end",
        "order",
        "row 5",
        "Holes that an end reuses may be pages that still wait for their ticket.",
        edited(("band.Band.lowest_holes", "[rows] == HOLE)[:count]", "[rows] >= HOLE)[:count]")),
    ),
    Fault(
        "moves-to-pending-pages-of-a-float",
        "order",
        "row 5",
        "Holes that a float reuses may be pages that still wait for their ticket.",
        edited(("band.Band.holes_between", "== HOLE, low)", ">= HOLE, low)")),
    ),
    Fault(
        "sources-are-holes-at-once",
        "order",
        "row 6",
        "The old place of a page that moved is reused although launched forwards read it.",
        edited(
            (
                "books.Books.move",
                "pending = self.tickets.unsettled\n",
                "pending = False\n",
            )
        ),
    ),
    Fault(
        "sources-wait-for-nobody",
        "order",
        "row 6, M1, sgl-project/sglang#39982",
        "The old places of a move are marked pending and never listed under a ticket.",
        edited(("books.Books.move", "            self._defer(band, sources)\n", "            pass\n")),
    ),
    Fault(
        "frontier-pulled-past-pending-pages",
        "order",
        "row 10",
        "A neighbour gets bytes that a launched forward may still touch.",
        replaced("band._HOLE_BYTE", bytes([2, 3])),
    ),
    Fault(
        "publish-without-barrier",
        "order",
        "row 8, B4, sgl-project/sglang#26380",
        "Table rows are written while a launched forward may still read them.",
        edited(
            ("books.Books.publish", "        if self.tickets.unsettled:\n", "        if False:\n")
        ),
    ),
    Fault(
        "fine-barrier-asks-nothing",
        "order",
        "row 8, B4, sgl-project/sglang#38258",
        "The fine barrier is recorded and never asked of the device.",
        edited(
            ("books.Books._order_table_writes", "self.device.order_behind_reads(newest)", "pass")
        ),
    ),
    Fault(
        "fine-barrier-behind-an-older-forward",
        "order",
        "row 8, B4, sgl-project/sglang#31687",
        "Table writes wait for the reads of the oldest forward in flight, not of the newest.",
        edited(
            (
                "books.Books._order_table_writes",
                "self.device.order_behind_reads(newest)",
                "self.device.order_behind_reads(self.tickets.completed_through + 1)",
            )
        ),
    ),
    Fault(
        "coarse-barrier-asks-nothing",
        "order",
        "row 8, B4",
        "The coarse barrier is recorded and never asked of the device.",
        edited(
            (
                "books.Books._order_table_writes",
                "            self.device.order_behind(newest)\n",
                "",
            )
        ),
    ),
    Fault(
        "fine-barrier-settles-pages",
        "order",
        "rows 2 and 8",
        "A barrier behind the table reads of forwards is taken for one behind all of them.",
        edited(
            (
                "books.Books._order_table_writes",
                "self.device.order_behind_reads(newest)",
                "self.device.order_behind_reads(newest)\n"
                "            self.tickets.order_behind_all()",
            )
        ),
    ),
    Fault(
        "lease-before-the-fills",
        "order",
        "row 2",
        "The holder of a lease looks at pages whose zeroing was put off.",
        edited(("handlers.lease", "books.device.issue_fills()", "pass")),
    ),
    Fault(
        "host-waits-at-a-move",
        "order",
        "M13, sgl-project/sglang#34066",
        "Every batch of moves makes the host wait for the device.",
        edited(
            (
                "books.Books.move",
                "        self.device.move(band.index, from_pages, to_pages)\n",
                "        self.device.move(band.index, from_pages, to_pages)\n"
                "        self.device.synchronize()\n",
            )
        ),
    ),
    Fault(
        "only-the-newest-forward-writes",
        "order",
        "row 4",
        "With several forwards in flight only the pages that the newest writes are left alone.",
        edited(
            (
                "ordering.Tickets.unsettled_writes",
                "if ticket > self.ordered_through",
                "if ticket > max(self.ordered_through, self.issued - 1)",
            )
        ),
    ),
)
