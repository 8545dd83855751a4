"""Illegal calls that are taken for legal ones."""

from __future__ import annotations

from bandscope.fuzz.faults.planting import Fault, edited

FAULTS = (
    Fault(
        "admitted-twice",
        "misuse",
        "A5, sgl-project/sglang#21404",
        "A request that runs is admitted again, and what it held is nobody's.",
        edited(("handlers.admit", "if op.request in books.ledger.row_of:", "if False:")),
    ),
    Fault(
        "named-twice-in-a-batch",
        "misuse",
        "A3, sgl-project/sglang#6888",
        "A batch may name a request twice, which then gets two pages for one token.",
        edited(("requests.RequestLedger.rows", "if len(set(requests)) != len(requests):", "if False:")),
    ),
    Fault(
        "completed-twice",
        "misuse",
        "D2, D3: a second late report",
        "A ticket that is not in flight is reported complete, and nobody says so.",
        edited(
            (
                "ordering.Tickets.complete",
                "        if ticket not in self.in_flight:\n",
                "        if ticket not in self.in_flight:\n            return\n"
                "        if ticket not in self.in_flight:\n",
            )
        ),
    ),
    Fault(
        "lease-ended-by-another",
        "misuse",
        "D1, sgl-project/sglang#35049: a lying peer",
        "Anybody may end a lease.",
        edited(
            (
                "leases.Pins.end",
                "if holder is not None and holder != pin.holder:",
                "if False:",
            )
        ),
    ),
    Fault(
        "lease-of-a-trimmed-page",
        "misuse",
        "B3: unmapped ids are refused",
        "Pages that were trimmed out of a window may be leased.",
        edited(("handlers.lease", "if not trimmed <= op.first_page", "if not 0 <= op.first_page")),
    ),
    Fault(
        "lease-past-the-last-page",
        "misuse",
        "lease range, off by one",
        "A lease may name one page more than the request holds.",
        edited(
            (
                "handlers.lease",
                "op.stop_page <= held.size:",
                "op.stop_page <= held.size + 1:",
            )
        ),
    ),
    Fault(
        "empty-lease",
        "misuse",
        "lease range, off by one",
        "A lease of no page at all is accepted.",
        edited(
            (
                "handlers.lease",
                "op.first_page < op.stop_page <=",
                "op.first_page <= op.stop_page <=",
            )
        ),
    ),
    Fault(
        "negative-chunk",
        "misuse",
        "A4, invariant atomic",
        "A request may be extended by fewer than no tokens.",
        edited(("handlers.extend", "if op.tokens < 0:", "if False:")),
    ),
    Fault(
        "negative-cap",
        "misuse",
        "invariant caps",
        "A compaction pass may be asked for fewer than no moves.",
        edited(("handlers.compact", "op.max_moves is not None and op.max_moves < 0", "False")),
    ),
    Fault(
        "refused-launch-publishes",
        "misuse",
        "invariant atomic",
        "A launch that names an unknown request has published the tables all the same.",
        edited(
            (
                "handlers.launch",
                "    rows = ledger.rows(op.requests)\n    books.publish()\n",
                "    books.publish()\n    rows = ledger.rows(op.requests)\n",
            )
        ),
    ),
)
