"""Group A: what is given back twice, not at all, too early, or with its content."""

from __future__ import annotations

from bandscope.fuzz.faults.planting import Fault, edited

FAULTS = (
    Fault(
        "boundary-page-freed-twice",
        "A",
        "A1, sgl-project/sglang#38981",
        "A release names the last page of a request in two ranges, so its id is free twice.",
        edited(
            (
                "handlers.release",
                "books.ids.release(virtual)",
                "books.ids.release(np.concatenate([virtual, virtual[-1:]]))",
            )
        ),
    ),
    Fault(
        "deferred-free-by-id",
        "A",
        "A2, sgl-project/sglang#36081",
        "Pages that wait for a ticket are looked up by id when it completes, and the id may be bound "
        "to another page by then.",
        edited(
            (
                "books.Books.drop",
                "places = band.table.unbind(virtual)\n",
                "places = band.table.unbind(virtual)\n"
                "        band.__dict__.setdefault('ids', {}).update(zip(places.tolist(), virtual))\n",
            ),
            (
                "books.Books.reclaim",
                "band = self.bands[index]\n",
                "band = self.bands[index]\n"
                "            names = band.__dict__.setdefault('ids', {})\n"
                "            now = [int(band.table.place_of[names[p]]) if p in names else -1\n"
                "                   for p in places.tolist()]\n"
                "            places = np.where(np.array(now, np.int64) >= 0, now, places)\n",
            ),
        ),
    ),
    Fault(
        "released-request-keeps-its-row",
        "A",
        "A3, sgl-project/sglang-jax#982",
        "A released request is still known, so a clean-up that comes second frees its pages again.",
        edited(
            (
                "requests.RequestLedger.remove",
                "row = self.row_of.pop(request)\n        self.request[row] = -1\n",
                "row = self.row_of[request]\n",
            )
        ),
    ),
    Fault(
        "page-tail-stranded",
        "A",
        "A4, sgl-project/sglang#31616",
        "A release goes by whole pages of tokens, so a page that is partly filled is never freed.",
        edited(
            (
                "handlers.release",
                "virtual = ledger.token_pages(row, cached)\n",
                "virtual = ledger.token_pages(row, cached)"
                "[: int(ledger.length[row]) // books.plan.page_size - cached]\n",
            )
        ),
    ),
    Fault(
        "state-slot-leaks-at-release",
        "A",
        "A5, sgl-project/sglang#12693",
        "A request that leaves without ever getting a token keeps its state slots.",
        edited(
            (
                "handlers.release",
                "if books.state is not None:",
                "if books.state is not None and ledger.page_count[row]:",
            )
        ),
    ),
    Fault(
        "second-state-slot-leaks",
        "A",
        "A5, sgl-project/sglang#21404",
        "Of several state slots of a request only the first is freed; its id comes back all the same.",
        edited(
            (
                "handlers.release",
                "books.drop(books.bands[books.state], slots, holder)",
                "books.drop(books.bands[books.state], slots[:1], holder)",
            )
        ),
    ),
    Fault(
        "asker-is-evicted",
        "A",
        "A6, NVIDIA/TensorRT-LLM#17926",
        "A demand that does not fit frees the oldest window page of the very request that asks.",
        edited(
            (
                "handlers.extend",
                "            return taken\n",
                "            first = int(ledger.first_kept[row].max(initial=0))\n"
                "            kept = ledger.token_pages(row, first)\n"
                "            for index in books.windows:\n"
                "                books.drop(books.bands[index], kept[:1], op.request)\n"
                "            return taken\n",
            )
        ),
    ),
    Fault(
        "nothing-is-zeroed",
        "A",
        "A7, sgl-project/sglang#35351",
        "Pages are handed out with the bytes of their former owner.",
        edited(("books.Books.take", 'if hand_out != "none":', "if False:")),
    ),
    Fault(
        "reused-pages-are-not-zeroed",
        "A",
        "A7, sgl-project/sglang#36207",
        "Only pages beyond the old frontier are zeroed, holes are handed out as they are.",
        edited(
            (
                "books.Books.take",
                "places = band.take(",
                "frontier = band.high\n        places = band.take(",
            ),
            (
                "books.Books.take",
                "self.device.fill(band.index, band.physical(places), value)",
                "self.device.fill(band.index, band.physical(places[places >= frontier]), value)",
            ),
        ),
    ),
    Fault(
        "state-slots-are-not-zeroed",
        "A",
        "A7, sgl-project/sglang#33974",
        "A state slot is handed out with the state of its former owner.",
        edited(
            ("books.Books.take", 'if hand_out != "none":', 'if hand_out != "none" and not is_state:')
        ),
    ),
    Fault(
        "only-the-first-page-is-zeroed",
        "A",
        "A7, sgl-project/sglang#35351",
        "Of several pages handed out in one call only the first is zeroed.",
        edited(
            (
                "books.Books.take",
                "self.device.fill(band.index, band.physical(places), value)",
                "self.device.fill(band.index, band.physical(places[:1]), value)",
            )
        ),
    ),
    Fault(
        "trimmed-pages-freed-again",
        "A",
        "M4, sgl-project/sglang#38836",
        "A release goes through window pages that were trimmed long ago and frees the sentinel −1.",
        edited(
            (
                "handlers.release",
                "kept = ledger.token_pages(row, max(cached, int(ledger.first_kept[row, number])))",
                "kept = ledger.token_pages(row, cached)",
            )
        ),
    ),
    Fault(
        "trim-cursor-not-stored",
        "A",
        "sgl-project/sglang#22900",
        "A trim frees window pages without remembering it, so that the release frees them again.",
        edited(
            ("handlers.trim_window", "        ledger.first_kept[rows, number] = stop\n", "")
        ),
    ),
    Fault(
        "trim-drops-the-id-too",
        "A",
        "sgl-project/sglang#25805, #27586",
        "A trimmed window page gives its id back although full attention still holds it.",
        edited(
            (
                "handlers.trim_window",
                "        ledger.first_kept[rows, number] = stop\n",
                "        ledger.first_kept[rows, number] = stop\n        books.ids.release(virtual)\n",
            )
        ),
    ),
    Fault(
        "second-window-not-freed",
        "A",
        "sgl-project/sglang#29662",
        "A release visits the first window band only; the pages of the others are never freed.",
        edited(
            (
                "handlers.release",
                "enumerate(books.windows)",
                "enumerate(books.windows[:1])",
            )
        ),
    ),
    Fault(
        "row-recycled-with-its-trim-cursor",
        "A",
        "sgl-project/sglang#18746",
        "A new request inherits from its row how many window pages were trimmed.",
        edited(("requests.RequestLedger.add", "        self.first_kept[row] = 0\n", "")),
    ),
    Fault(
        "row-recycled-with-its-launched-tokens",
        "A",
        "sgl-project/sglang#18803",
        "A new request inherits from its row how many tokens were launched, so that its first pages "
        "do not count as written.",
        edited(("requests.RequestLedger.add", '"launched", ', "")),
    ),
    Fault(
        "generation-lost",
        "A",
        "D1, issue A: names of pages",
        "A released id keeps its generation, so that an old name of its page looks fresh.",
        edited(("tables.IdSpace.release", "self.generation[ids] += 1", "pass")),
    ),
    Fault(
        "id-bound-and-free",
        "A",
        "invariant ids",
        "An id that is minted a second time stays in the list of free ids.",
        edited(
            (
                "tables.IdSpace.mint",
                "        self.released_count = left\n",
                "        self.released_count = left + (reused > 1)\n",
            )
        ),
    ),
)
