"""Group B, what moves: closed gates, pins, wrong copies, caps, frontiers that are not pulled back."""

from __future__ import annotations

from bandscope.fuzz.faults.planting import Fault, edited

# Both the question whether pages can move and the last assertion before they do.
_NO_ASSERTION = ("books.Books.move", "assert not self.gate_closed, ", "assert True, ")

FAULTS = (
    Fault(
        "float-ignores-the-gate",
        "B",
        "B1, sgl-project/sglang#37506",
        "With the gate closed the ends hold still, but a float makes way.",
        edited(
            _NO_ASSERTION,
            (
                "books.Books.fixed",
                "if self.gate_closed and band.live:",
                "if self.gate_closed and band.live and not band.is_float:",
            ),
        ),
    ),
    Fault(
        "relocation-ignores-the-gate",
        "B",
        "M2, sgl-project/sglang#39982",
        "A demand moves pages of any band although the gate is closed.",
        edited(
            _NO_ASSERTION,
            ("books.Books.fixed", "if self.gate_closed and band.live:", "if False:"),
        ),
    ),
    Fault(
        "compaction-ignores-the-gate",
        "B",
        "M2, sgl-project/sglang#39477",
        "Compaction moves pages although the gate is closed.",
        edited(
            _NO_ASSERTION,
            ("handlers.compact", "if books.gate_closed:", "if False:"),
        ),
    ),
    Fault(
        "gate-opens-with-a-second-close",
        "B",
        "B1, C3",
        "Closing a gate that is closed opens it.",
        edited(
            (
                "handlers.set_gate",
                "books.gate_closed = op.closed",
                "books.gate_closed = op.closed and not books.gate_closed",
            )
        ),
    ),
    Fault(
        "float-moves-under-a-transfer",
        "B",
        "M11, sgl-project/sglang#39477",
        "A relocation does not look at the pins of a float.",
        edited(
            (
                "books.Books.fixed",
                "if self.pins.pins else None",
                "if self.pins.pins and not band.is_float else None",
            )
        ),
    ),
    Fault(
        "relocation-ignores-pins",
        "B",
        "row 7 of the ordering rules",
        "Urgent moves and demands do not look at pins.",
        edited(
            (
                "books.Books.fixed",
                "hull = self.pins.hull(band.index) if self.pins.pins else None",
                "hull = None",
            )
        ),
    ),
    Fault(
        "compaction-ignores-pins",
        "B",
        "row 7 of the ordering rules",
        "An opportunistic pass moves pinned pages.",
        edited(("compaction._inwards", "useful &= band.pin_count[sources] == 0", "pass")),
    ),
    Fault(
        "last-pinned-page-moves",
        "B",
        "invariant pins",
        "The pages that cannot move are taken to end one page too early.",
        edited(("leases.Pins.hull", "for p in held) + 1", "for p in held)")),
    ),
    Fault(
        "virtual-ids-copied-as-pages",
        "B",
        "B3, sgl-project/sglang#37496",
        "A move copies from the pages whose numbers are the virtual ids.",
        edited(
            (
                "books.Books.move",
                "self.device.move(band.index, from_pages, to_pages)",
                "self.device.move(band.index, band.physical(band.table.virtual_at[sources]), to_pages)",
            )
        ),
    ),
    Fault(
        "virtual-id-zeroed-as-a-page",
        "B",
        "M9, sgl-project/sglang#38229",
        "A handed-out page is zeroed at the place whose number is its virtual id.",
        edited(
            (
                "books.Books.take",
                "self.device.fill(band.index, band.physical(places), value)",
                "self.device.fill(band.index, band.physical(virtual), value)",
            )
        ),
    ),
    Fault(
        "copies-run-backwards",
        "B",
        "B3, B5, triton-lang/triton#10743",
        "A move copies its destinations to its sources.",
        edited(
            (
                "books.Books.move",
                "self.device.move(band.index, from_pages, to_pages)",
                "self.device.move(band.index, to_pages, from_pages)",
            )
        ),
    ),
    Fault(
        "copies-in-another-order-than-the-tables",
        "B",
        "B3, invariant content",
        "The device copies the destinations of a batch in reverse order.",
        edited(
            (
                "books.Books.move",
                "self.device.move(band.index, from_pages, to_pages)",
                "self.device.move(band.index, from_pages, to_pages[::-1])",
            )
        ),
    ),
    Fault(
        "move-without-a-copy",
        "B",
        "invariant content",
        "The last page of a batch of several changes its place in the tables, its bytes stay behind.",
        edited(
            (
                "books.Books.move",
                "self.device.move(band.index, from_pages, to_pages)",
                "n = max(1, sources.size - 1)\n"
                "        self.device.move(band.index, from_pages[:n], to_pages[:n])",
            )
        ),
    ),
    Fault(
        "two-copies-to-one-page",
        "B",
        "B5, triton-lang/triton#10743",
        "Urgent compaction gives two pages of a batch the same hole.",
        edited(
            (
                "compaction.pack",
                "band.holes_between(start, stop)[: sources.size])",
                "np.sort(band.holes_between(start, stop)[: sources.size] * 1).repeat(2)"
                "[: sources.size])",
            )
        ),
    ),
    Fault(
        "moves-form-a-chain",
        "B",
        "B5, triton-lang/triton#10743",
        "The device gets a batch in two halves of which the second one is copied on from the first.",
        edited(
            (
                "books.Books.move",
                "self.device.move(band.index, from_pages, to_pages)",
                "if sources.size > 1:\n"
                "            from_pages = from_pages.copy()\n"
                "            from_pages[1] = to_pages[0]\n"
                "        self.device.move(band.index, from_pages, to_pages)",
            )
        ),
    ),
    Fault(
        "cap-ignored",
        "B",
        "invariant caps",
        "An opportunistic pass closes every hole, whatever its cap.",
        edited(("compaction.opportunistic", "min(cap, band.holes)", "band.holes")),
    ),
    Fault(
        "cap-off-by-one",
        "B",
        "invariant caps",
        "An opportunistic pass moves one page more than its cap.",
        edited(("compaction.opportunistic", "min(cap, band.holes)", "min(cap + 1, band.holes)")),
    ),
    Fault(
        "frontier-not-pulled-back-at-a-free",
        "B",
        "invariant order: an extent ends in a page in use",
        "Holes at a frontier stay in the extent when pages are freed.",
        edited(("books.Books.drop", "        band.absorb()\n", "")),
    ),
    Fault(
        "frontier-not-pulled-back-at-a-move",
        "B",
        "invariant order: an extent ends in a page in use",
        "Holes at a frontier stay in the extent when pages have moved inwards.",
        edited(("books.Books.move", "        band.absorb()\n", "")),
    ),
    Fault(
        "frontier-not-pulled-back-at-a-reclaim",
        "B",
        "invariant order: an extent ends in a page in use",
        "Holes at a frontier stay in the extent when pending pages become holes.",
        edited(("books.Books.reclaim", "            band.absorb()\n", "")),
    ),
    Fault(
        "float-keeps-its-low-side",
        "B",
        "invariant order: an extent ends in a page in use",
        "A float pulls back its high frontier only.",
        edited(("band.Band.absorb", "if self.is_float and self.state[self.low] == HOLE:", "if False:")),
    ),
    Fault(
        "frontier-pulled-past-a-page",
        "B",
        "invariant conservation",
        "A high frontier that is pulled back takes the outermost page in use with it.",
        edited(
            (
                "band.Band._innermost_high",
                "return (block << BLOCK_SHIFT) + len(used)",
                "return (block << BLOCK_SHIFT) + max(0, len(used) - 1)",
            )
        ),
    ),
    Fault(
        "float-grows-on-the-wrong-side",
        "B",
        "invariant order",
        "A float that needs both of its sides takes each side's share from the other.",
        edited(
            (
                "chain._grow",
                "return band.low - (fresh - above), band.high + above",
                "return band.low - above, band.high + (fresh - above)",
            )
        ),
    ),
    Fault(
        "bands-move-in-chain-order",
        "B",
        "invariant order, in the middle of a relocation",
        "A relocation moves the bands from low to high, whoever stands in the way.",
        edited(("relocation._in_order", "if low <= wide[0] and wide[1] <= high:", "if True:")),
    ),
    Fault(
        "urgent-compaction-leaves-a-hole",
        "B",
        "issue A: urgent compaction packs",
        "An urgent pass packs into an extent that is one page too large.",
        edited(("compaction._tightest_window", "    size = pages\n", "    size = pages + 1\n")),
    ),
    Fault(
        "relocation-moves-everything",
        "B",
        "invariant of relocation: the fewest bytes move",
        "A relocation takes the first division of the bytes that serves, however much must move for it.",
        edited(("relocation._cheapest_cuts", "choice = int(np.argmin(costs))", "choice = 0")),
    ),
    Fault(
        "relocation-forgets-a-side",
        "B",
        "invariant of relocation: the fewest bytes move",
        "What a division costs leaves out the pages of the band below that it cuts off.",
        edited(
            (
                "relocation._cheapest_cuts",
                "costs[last] + cut_off * below.page_bytes",
                "costs[last]",
            )
        ),
    ),
    Fault(
        "choice-by-chance",
        "B",
        "invariant determinism",
        "Which holes are used again is drawn by chance.",
        edited(
            (
                "band.Band.lowest_holes",
                "== HOLE)[:count]",
                "== HOLE)\n"
                "        flat = flat[-count:] if __import__('os').urandom(1)[0] & 1 else flat[:count]",
            )
        ),
    ),
)
