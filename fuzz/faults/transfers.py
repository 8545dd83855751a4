"""Group D: pages that somebody copies, which outlive their owner's interest in them."""

from __future__ import annotations

from bandscope.fuzz.faults.planting import Fault, edited

FAULTS = (
    Fault(
        "aborted-transfer-frees-its-pages",
        "D",
        "D1, sgl-project/sglang#24527",
        "Pages that a peer still writes are free as soon as their request is aborted.",
        edited(("books.Books.drop", "        if self.pins.pins:\n", "        if False:\n")),
    ),
    Fault(
        "page-of-an-ended-pin-skips-its-ticket",
        "D",
        "D1, row 3 of the ordering rules",
        "When its last pin ends, a freed page is a hole at once, whatever is in flight.",
        edited(
            (
                "books.Books.unpin",
                "            self._defer(band, freed)\n            self.reclaim()\n",
                "            band.reclaim(freed)\n            band.absorb()\n",
            )
        ),
    ),
    Fault(
        "page-of-an-ended-pin-is-lost",
        "D",
        "D2, sgl-project/sglang#9817",
        "A page that was freed under a pin stays pending for ever when the pin ends.",
        edited(("books.Books.unpin", "        if freed.size:\n", "        if False:\n")),
    ),
    Fault(
        "first-end-of-two-leases-frees",
        "D",
        "D1, sgl-project/sglang#35049",
        "A page under two leases may be reused when the first of them ends.",
        edited(("leases.Pins.end", "(band.pin_count[pin.places] == 0) & ", "")),
    ),
    Fault(
        "ended-lease-counts-for-ever",
        "D",
        "D3, ModelTC/LightLLM#1406",
        "Pages that were freed under a lease stay out of capacity answers after its end.",
        edited(("leases.Pins.end", "        self.deferred[pin.band] -= freed.size\n", "")),
    ),
    Fault(
        "page-freed-under-a-lease-not-counted",
        "D",
        "D3, ModelTC/LightLLM#1406",
        "Pages freed under a lease are not noted as such.",
        edited(("leases.Pins.note_freed", "self.deferred[band] += pinned", "pass")),
    ),
    Fault(
        "timeout-ends-a-lease",
        "D",
        "D3, sgl-project/sglang#27372",
        "A lease past its deadline is ended for its holder, who goes on writing.",
        edited(
            (
                "handlers.complete",
                "    books.reclaim()\n",
                "    through = books.tickets.completed_through\n"
                "    for lease in books.pins.facts(books.tickets.issued, through):\n"
                "        if lease.overdue:\n"
                "            books.unpin(lease.number, None)\n"
                "    books.reclaim()\n",
            )
        ),
    ),
    Fault(
        "release-ends-leases",
        "D",
        "D2, sgl-project/sglang#32564",
        "A request that leaves takes the leases on its pages with it.",
        edited(
            (
                "handlers.release",
                "    ledger.remove(op.request)\n",
                "    ledger.remove(op.request)\n"
                "    for pin in list(books.pins.pins.values()):\n"
                "        if pin.band == books.full and pin.virtual[0] in virtual:\n"
                "            books.unpin(pin.number, None)\n",
            )
        ),
    ),
    Fault(
        "lease-pins-nothing",
        "D",
        "B2, sgl-project/sglang#36731",
        "A lease translates its pages and does not hold them.",
        edited(
            (
                "leases.Pins.begin",
                "        self._bands[band].pin_count[places] += 1\n",
                "",
            ),
            ("leases.Pins.end", "        band.pin_count[pin.places] -= 1\n", ""),
        ),
    ),
    Fault(
        "lease-without-its-last-page",
        "D",
        "lease range, off by one",
        "The last page of a lease of several is not pinned.",
        edited(
            (
                "handlers.lease",
                "virtual = held[op.first_page : op.stop_page]",
                "virtual = held[op.first_page : max(op.first_page + 1, op.stop_page - 1)]",
            )
        ),
    ),
    Fault(
        "lease-counted-from-the-kept-window",
        "D",
        "lease range, off by one",
        "A lease of window pages is counted from the first page kept instead of the first page.",
        edited(
            (
                "handlers.lease",
                "virtual = held[op.first_page : op.stop_page]",
                "virtual = held[op.first_page - trimmed : op.stop_page - trimmed]",
            )
        ),
    ),
    Fault(
        "lease-takes-the-generation-of-another",
        "D",
        "lost generation",
        "A lease of state slots remembers the generations of token pages.",
        edited(
            ("handlers.lease", "ids.generation[virtual]", "books.ids.generation[virtual]")
        ),
    ),
    Fault(
        "reused-lease-number",
        "D",
        "D3: a late report is ignored",
        "A lease that ends gives its number to the next one, which a late report then ends.",
        edited(
            (
                "leases.Pins.end",
                "        del self.pins[number]\n",
                "        del self.pins[number]\n        self.next_number = number\n",
            )
        ),
    ),
    Fault(
        "only-the-newest-lease-holds",
        "D",
        "D1, invariant pins",
        "Of several leases on a band only the newest keeps its pages where they are.",
        edited(
            (
                "leases.Pins.hull",
                "        if not held:\n",
                "        held = held[-1:]\n        if not held:\n",
            )
        ),
    ),
    Fault(
        "closed-gate-hides-leases",
        "D",
        "invariant capacity",
        "With the gate closed, a page that was freed under a lease counts as one that can move.",
        edited(
            (
                "books.Books.fixed",
                "if hull is None:",
                "if hull is None or True:",
            )
        ),
    ),
    Fault(
        "pages-freed-beside-a-pinned-one-are-lost",
        "D",
        "D2, sgl-project/sglang#9817",
        "When one page of a batch is pinned, all of it waits for the pin, and only that page comes "
        "back.",
        edited(
            (
                "leases.split_pinned",
                "return places[~pinned], places[pinned]",
                "return places[:0], places",
            )
        ),
    ),
)
