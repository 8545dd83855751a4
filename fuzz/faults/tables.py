"""Tables, ids and saved states: rows that go stale, one-sided entries, states restored in part."""

from __future__ import annotations

from bandscope.fuzz.faults.planting import Fault, edited

FAULTS = (
    Fault(
        "moved-rows-stay-stale",
        "tables",
        "B3, row 1 of the ordering rules",
        "The mirror is not told where moved pages lie.",
        edited(("tables.PageTable.rebind", "        self._dirty.append(virtual)\n", "")),
    ),
    Fault(
        "freed-rows-stay-mapped",
        "tables",
        "B3: freed ids are refused",
        "The mirror still maps what was freed.",
        edited(("tables.PageTable.unbind", "        self._dirty.append(virtual)\n", "")),
    ),
    Fault(
        "fresh-rows-stay-unmapped",
        "tables",
        "row 1 of the ordering rules",
        "The mirror is told of the first page of a batch of fresh ones only.",
        edited(
            ("tables.PageTable.bind", "self._dirty.append(virtual)", "self._dirty.append(virtual[:1])")
        ),
    ),
    Fault(
        "last-change-published-only",
        "tables",
        "row 1 of the ordering rules",
        "Of several changes since the last publish only the last reaches the mirror.",
        edited(
            (
                "tables.PageTable.unpublished",
                "np.concatenate(self._dirty) if len(self._dirty) > 1 else self._dirty[0]",
                "self._dirty[-1]",
            )
        ),
    ),
    Fault(
        "one-band-published-only",
        "tables",
        "M10: tables of a second band",
        "Rows of the first band that changed are published, those of the others wait.",
        edited(("books.Books.publish", "for band in dirty:", "for band in dirty[:1]:")),
    ),
    Fault(
        "places-published-as-pages",
        "tables",
        "B3, swapped directions",
        "The mirror gets distances from the band's base instead of physical pages.",
        edited(
            (
                "books.Books.publish",
                "np.where(places >= 0, band.physical(places), -1)",
                "np.where(places >= 0, places, -1)",
            )
        ),
    ),
    Fault(
        "high-end-grows-up",
        "tables",
        "swapped directions",
        "Physical page numbers of the high end are counted upwards from its last page.",
        edited(
            (
                "band.Band.physical",
                "self.first_page - places",
                "self.first_page + places",
            )
        ),
    ),
    Fault(
        "extent-shifted-by-a-page",
        "tables",
        "swapped directions",
        "The bytes of the high end's extent are reckoned one page too low.",
        edited(
            (
                "band.Band.byte_range",
                "self.first_page - high + 1, self.first_page - low + 1",
                "self.first_page - high, self.first_page - low",
            )
        ),
    ),
    Fault(
        "left-place-stays-mapped",
        "tables",
        "invariant tables",
        "The place that a moved page leaves still names it.",
        edited(("tables.PageTable.rebind", "self.virtual_at[places] = UNMAPPED", "pass")),
    ),
    Fault(
        "moved-page-keeps-its-row",
        "tables",
        "invariant tables",
        "The last page of a move of several keeps its old row.",
        edited(
            (
                "tables.PageTable.rebind",
                "self.place_of[virtual] = destinations",
                "n = max(1, virtual.size - 1)\n        self.place_of[virtual[:n]] = destinations[:n]",
            )
        ),
    ),
    Fault(
        "freed-id-keeps-its-row",
        "tables",
        "sgl-project/sglang#25805",
        "An id that is freed still names its old place.",
        edited(
            ("tables.PageTable.unbind", "        self.place_of[virtual] = UNMAPPED\n", "")
        ),
    ),
    Fault(
        "hole-hint-goes-stale",
        "tables",
        "stale memo",
        "Where the first hole lies is remembered and not forgotten when one appears before it.",
        edited(
            (
                "band.Band._join_holes",
                "        self._first_hole_block = min(self._first_hole_block, "
                "int(np.minimum.reduce(blocks)))\n",
                "",
            )
        ),
    ),
    Fault(
        "holes-of-a-block-miscounted",
        "tables",
        "stale memo",
        "Holes that are reused stay in the count of their block.",
        edited(
            (
                "band.Band._leave_holes",
                "        np.subtract.at(self._block_holes, places >> BLOCK_SHIFT, 1)\n",
                "",
            )
        ),
    ),
    Fault(
        "holes-of-a-moved-block-miscounted",
        "tables",
        "stale memo",
        "A small move in a large extent does not count the holes it leaves.",
        edited(("band.Band.move", "            if not pending:\n", "            if False:\n")),
    ),
    Fault(
        "restore-forgets-the-gate",
        "tables",
        "issue A: state is data",
        "A restored arena has its gate open.",
        edited(
            (
                "arena.Arena.restore",
                'books.gate_closed = snapshot["gate_closed"]',
                "books.gate_closed = False",
            )
        ),
    ),
    Fault(
        "restore-forgets-barriers",
        "tables",
        "issue A: state is data",
        "A restored arena does not know that it ordered itself behind launched work.",
        edited(
            (
                "ordering.Tickets.restore",
                'self.ordered_through = state["ordered_through"]',
                "self.ordered_through = 0",
            )
        ),
    ),
    Fault(
        "restore-leaves-the-mirror",
        "tables",
        "issue A: state is data",
        "A restored arena leaves the device's tables as they were.",
        edited(("arena.Arena.restore", "        books.mirror_everything()\n", "")),
    ),
    Fault(
        "snapshot-without-launched-tokens",
        "tables",
        "issue A: state is data",
        "A restored request counts as never launched.",
        edited(
            (
                "requests.RequestLedger.restore",
                "            getattr(self, name)[rows] = state[name]\n",
                "            getattr(self, name)[rows] = state[name] if name != 'launched' else 0\n",
            )
        ),
    ),
    Fault(
        "table-sized-by-the-wrong-band",
        "tables",
        "M10, sgl-project/sglang#37560",
        "The table of a band that mints no ids has as many rows as that band could hold pages.",
        edited(
            (
                "books.Books.__init__",
                "[capacity(index or 0) for index in owner]",
                "[capacity(index) for index in range(len(names))]",
            )
        ),
    ),
)
