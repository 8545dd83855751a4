"""Group C: what fits is refused, what does not fit is not, counters drift, refusals leave something."""

from __future__ import annotations

from bandscope.fuzz.faults.planting import Edit, Fault, edited

# Answers remembered by what is live, which neither the gate nor a pin changes.
_MEMO = (
    "        held = self.held(demand)\n"
    "        memo = self.__dict__.setdefault('memo', {})\n"
    "        key = (tuple(band.live for band in self.bands), tuple(demand)) + tuple(%s)\n"
    "        if key not in memo:\n"
    "            memo[key] = self.chain.pack(held) is not None\n"
)


def _remembered(more: str) -> tuple[Edit, Edit]:
    return (
        ("books.Books.serves", "        held = self.held(demand)\n", _MEMO % more),
        ("books.Books.serves", "if self.chain.pack(held) is not None:", "if memo[key]:"),
    )


FAULTS = (
    Fault(
        "starved-while-the-neighbour-has-holes",
        "C",
        "C1, M5, sgl-project/sglang#34441",
        "A demand that needs a page to move is refused although some layout holds it.",
        edited(("books.Books.make_room", "if self.chain.pack(held) is None:", "if True:")),
    ),
    Fault(
        "pending-pages-not-recovered",
        "C",
        "M8, sgl-project/sglang#39294",
        "Room is made without taking back the pages that wait for launched work.",
        edited(
            ("books.Books.make_room", '        self.settle("reuse of pending pages")\n', "")
        ),
    ),
    Fault(
        "pending-counts-as-held",
        "C",
        "invariant capacity",
        "Capacity answers take pages that only wait for a ticket for held ones.",
        edited(
            ("books.Books.held", "Held(band.live + ", "Held(band.live + band.pending + ")
        ),
    ),
    Fault(
        "pinned-pages-counted-twice",
        "C",
        "double counting",
        "Pages that were freed under a pin are counted twice in capacity answers.",
        edited(
            (
                "books.Books.held",
                "self.pins.deferred[band.index] + pages",
                "2 * self.pins.deferred[band.index] + pages",
            )
        ),
    ),
    Fault(
        "pinned-pages-not-counted",
        "C",
        "invariant capacity, ModelTC/LightLLM#1406",
        "Pages that were freed under a pin count as free in capacity answers.",
        edited(("books.Books.held", "band.live + self.pins.deferred[band.index]", "band.live")),
    ),
    Fault(
        "floor-forgets-the-page-grids",
        "C",
        "C2, M6, sgl-project/sglang#35158",
        "An arena starts although one page of every band does not fit on the grids of their pages.",
        edited(("sizing._grid_bytes", "    return lost\n", "    return 0\n")),
    ),
    Fault(
        "last-page-never-handed-out",
        "C",
        "C2, M7, sgl-project/sglang#35158",
        "A demand that fills the arena to the last byte is refused.",
        edited(("chain.Chain.pack", "top > self.total_bytes", "top >= self.total_bytes")),
    ),
    Fault(
        "live-count-drifts",
        "C",
        "C2, sgl-project/sglang#35158",
        "Freeing several pages at once takes one too few off the count of live pages.",
        edited(
            (
                "band.Band.drop",
                "self.live -= places.size",
                "self.live -= max(places.size - 1, min(1, places.size))",
            )
        ),
    ),
    Fault(
        "pending-count-drifts",
        "C",
        "C2, sgl-project/sglang#35158",
        "Pending pages that become holes stay in the count of pending pages.",
        edited(("band.Band.reclaim", "        self.pending -= places.size\n", "")),
    ),
    Fault(
        "holes-counted-twice",
        "C",
        "double counting",
        "The place that a moved page leaves is counted as a hole twice.",
        edited(
            ("band.Band.move", "self.holes += sources.size", "self.holes += sources.size + 1")
        ),
    ),
    Fault(
        "capacity-remembered-over-the-gate",
        "C",
        "C3, M3, sgl-project/sglang#38837",
        "Capacity answers are remembered by what is live, and a gate that closes does not forget them.",
        edited(*_remembered("self.pins.pins")),
    ),
    Fault(
        "capacity-remembered-over-a-lease",
        "C",
        "C3, M3, sgl-project/sglang#38836",
        "Capacity answers are remembered by what is live and the gate; a lease does not forget them.",
        edited(*_remembered("[self.gate_closed]")),
    ),
    Fault(
        "refused-admission-leaves-a-row",
        "C",
        "C4, sgl-project/sglang#36770",
        "A request that is refused for want of a state slot stays admitted.",
        edited(
            (
                "handlers.admit",
                "    regions = books.make_room(books.slot_demand(op.state_slots))\n",
                "    row = books.ledger.add(op.request)\n"
                "    regions = books.make_room(books.slot_demand(op.state_slots))\n",
            ),
            (
                "handlers.admit",
                "    row = books.ledger.add(op.request)\n    virtual",
                "    virtual",
            ),
        ),
    ),
    Fault(
        "refused-extension-leaves-its-length",
        "C",
        "C4, partial rollback",
        "A chunk that is refused leaves its tokens in the request's length.",
        edited(
            (
                "handlers.extend",
                "            return taken\n",
                "            ledger.length[row] = length\n            return taken\n",
            )
        ),
    ),
    Fault(
        "refused-step-decodes-some",
        "C",
        "C4, partial rollback",
        "A step that is refused has counted the token of every request that needed no page.",
        edited(
            (
                "handlers.decode",
                "            return taken\n",
                "            ledger.length[np.setdiff1d(rows, full_rows)] += 1\n"
                "            return taken\n",
            )
        ),
    ),
    Fault(
        "refused-demand-keeps-its-ids",
        "C",
        "C4, partial rollback",
        "Ids are minted before there is room, and a refusal does not give them back.",
        edited(
            (
                "handlers._take_token_pages",
                "    if isinstance(regions, Outcome):\n",
                "    if isinstance(regions, Outcome):\n"
                "        books.ids.mint(min(1, books.ids.free_count))\n",
            )
        ),
    ),
    Fault(
        "refusal-moves-pages-first",
        "C",
        "invariant atomic",
        "Before a demand is refused, pending pages are taken back in the hope that it helps.",
        edited(
            (
                "books.Books.make_room",
                "                return self.refuse(demand)\n",
                '                self.settle("hope")\n                return self.refuse(demand)\n',
            )
        ),
    ),
    Fault(
        "refused-for-the-wrong-reason",
        "C",
        "invariant capacity: reasons",
        "A demand that only the gate stands against is refused for pins, and the reverse.",
        edited(
            (
                "books.Books.refuse",
                'reason = "gate" if self.gate_closed else "pins"',
                'reason = "pins" if self.gate_closed else "gate"',
            )
        ),
    ),
    Fault(
        "every-refusal-is-for-memory",
        "C",
        "B1, invariant capacity: reasons",
        "A demand that waits for a gate or a lease is refused as if there were no memory.",
        edited(
            (
                "books.Books.refuse",
                "ignore_fixed=True), freed)) is not None:",
                "ignore_fixed=True), freed)) is not None and False:",
            )
        ),
    ),
    Fault(
        "reserve-takes-no-heed",
        "C",
        "invariant capacity",
        "A reservation says yes without making room.",
        edited(
            (
                "handlers.reserve",
                "regions if isinstance(regions, Outcome) else DONE",
                "DONE",
            )
        ),
    ),
    Fault(
        "wrong-grid-upwards",
        "C",
        "wrong grid, sgl-project/sglang#35158",
        "Whether a demand fits is asked without rounding a band's start up to its own pages.",
        edited(
            (
                "chain.packed_top",
                "first = -(-start_byte // page_bytes)",
                "first = start_byte // page_bytes",
            )
        ),
    ),
    Fault(
        "wrong-grid-at-a-neighbour",
        "C",
        "wrong grid, sgl-project/sglang#35158",
        "A band may take a page whose first bytes belong to the band below.",
        edited(
            (
                "band.Band.places_within",
                "first = -(-start_byte // self.page_bytes)",
                "first = start_byte // self.page_bytes",
            )
        ),
    ),
)
