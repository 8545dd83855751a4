"""Off by one at each boundary: pages, windows, capacity, the sink, frontiers."""

from __future__ import annotations

from bandscope.fuzz.faults.planting import Fault, edited

FAULTS = (
    Fault(
        "a-page-too-many-when-exactly-full",
        "boundary",
        "A4, page rounding",
        "A length that fills its last page exactly gets one page more.",
        edited(
            (
                "handlers.extend",
                "-(-length // books.plan.page_size)",
                "length // books.plan.page_size + 1",
            )
        ),
    ),
    Fault(
        "a-page-too-few",
        "boundary",
        "A4, page rounding",
        "The last tokens of a chunk that do not fill a page get no room.",
        edited(
            (
                "handlers.extend",
                "-(-length // books.plan.page_size)",
                "length // books.plan.page_size",
            )
        ),
    ),
    Fault(
        "decode-takes-its-page-early",
        "boundary",
        "A3, page rounding",
        "A decode step takes the next page when one token still fits.",
        edited(
            (
                "handlers.decode",
                "ledger.length[rows] == ledger.page_count",
                "ledger.length[rows] + 1 == ledger.page_count",
            )
        ),
    ),
    Fault(
        "decode-counts-one-request",
        "boundary",
        "A3",
        "Of the requests that get a page in one decode step only the first knows it.",
        edited(
            (
                "handlers.decode",
                "ledger.page_count[full_rows] = columns + 1",
                "ledger.page_count[full_rows[:1]] = columns[:1] + 1",
            )
        ),
    ),
    Fault(
        "window-trimmed-a-token-early",
        "boundary",
        "sgl-project/sglang#34870",
        "A window page is freed one token before the last that attends to it.",
        edited(
            ("handlers.trim_window", "lengths - window + 1)", "lengths - window + 2)")
        ),
    ),
    Fault(
        "window-trimmed-a-token-late",
        "boundary",
        "sgl-project/sglang#29860",
        "A window page is kept one token longer than any attends to it.",
        edited(("handlers.trim_window", "lengths - window + 1)", "lengths - window)")),
    ),
    Fault(
        "window-page-rounded-up",
        "boundary",
        "sgl-project/sglang#34870",
        "A window page is freed when its first token leaves the window.",
        edited(
            (
                "handlers.trim_window",
                "keep = np.maximum(0, lengths - window + 1) // books.plan.page_size",
                "keep = -(-np.maximum(0, lengths - window + 1) // books.plan.page_size)",
            )
        ),
    ),
    Fault(
        "window-of-another-band",
        "boundary",
        "sgl-project/sglang#29662",
        "Every window band is trimmed to the length of the shortest.",
        edited(
            (
                "handlers.trim_window",
                "    for number, (index, window) in enumerate(\n"
                "        zip(books.windows, books.window_lengths, strict=True)\n    ):\n",
                "    for number, (index, window) in enumerate(\n"
                "        zip(books.windows, books.window_lengths[::-1], strict=True)\n    ):\n",
            )
        ),
    ),
    Fault(
        "sink-handed-out",
        "boundary",
        "A7, the sink",
        "The lowest page of every band lies in the sink that padding writes to.",
        edited(
            (
                "band.Band.__post_init__",
                "lowest = -(-self.sink_bytes // page_bytes)",
                "lowest = -(-self.sink_bytes // page_bytes) - 1",
            )
        ),
    ),
    Fault(
        "one-page-past-the-end",
        "boundary",
        "capacity, off by one",
        "The high end begins one page past the end of the arena.",
        edited(("band.Band.__post_init__", "self.first_page = end - 1 if", "self.first_page = end if")),
    ),
    Fault(
        "one-unit-too-many-fits",
        "boundary",
        "capacity, off by one",
        "A demand that needs up to a page more than there is is taken to fit.",
        edited(
            (
                "chain.Chain.pack",
                "top > self.total_bytes",
                "top >= self.total_bytes + band.page_bytes",
            )
        ),
    ),
    Fault(
        "capacity-one-place-short",
        "boundary",
        "M7, sgl-project/sglang#35158",
        "Every band believes that its last place does not exist.",
        edited(
            (
                "band.Band.__post_init__",
                "self.capacity = max(0, end - lowest)",
                "self.capacity = max(0, end - lowest - 1)",
            )
        ),
    ),
    Fault(
        "ids-run-out-a-page-early",
        "boundary",
        "M7, M10: sizes of id spaces",
        "There is one token id less than pages that full attention can hold.",
        edited(
            (
                "books.Books.__init__",
                "IdSpace(capacity(self.full))",
                "IdSpace(capacity(self.full) - 1)",
            )
        ),
    ),
    Fault(
        "band-overlaps-its-neighbour-by-a-page",
        "boundary",
        "frontier, off by one",
        "An end may grow one page into the band beyond its gap.",
        edited(("chain._grow", "band.high + fresh <= high", "band.high + fresh <= high + 1")),
    ),
    Fault(
        "float-overlaps-its-neighbour-by-a-page",
        "boundary",
        "frontier, off by one",
        "A float may take one page more than the gaps on both of its sides hold.",
        edited(
            (
                "chain._grow",
                "room_below, room_above = band.low - low, high - band.high",
                "room_below, room_above = band.low - low, high - band.high + 1",
            )
        ),
    ),
    Fault(
        "transparent-band-forgotten",
        "boundary",
        "chain: a band without an extent is transparent",
        "A band looks for its neighbour's frontier only at the very next band.",
        edited(
            (
                "chain.Chain.room",
                "for span in spans[index + 1 :] if span",
                "for span in spans[index + 1 : index + 2] if span",
            )
        ),
    ),
    Fault(
        "gap-given-out-twice",
        "boundary",
        "double counting",
        "Bands that grow in one call do not see each other's share of a gap.",
        edited(
            (
                "chain.Chain.grant",
                "            spans[index] = band.byte_range(*region)\n",
                "",
            )
        ),
    ),
    Fault(
        "request-outgrows-its-row",
        "boundary",
        "sgl-project/sglang#33773: growth at a step",
        "A decode step does not widen the table of requests when a request outgrows it.",
        edited(("handlers.decode", "        ledger.reach(int(columns.max()) + 1)\n", "")),
    ),
    Fault(
        "more-requests-than-rows",
        "boundary",
        "sgl-project/sglang#12432: sizes of another layout",
        "When the table of requests gets more rows, one of its columns does not.",
        edited(
            (
                "requests.RequestLedger._grow_rows",
                "for name in (*_COLUMNS, \"cached\"):",
                "for name in (*_COLUMNS[1:], \"cached\"):",
            )
        ),
    ),
)
