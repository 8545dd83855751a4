"""Which requests share one page with the prefix cache, along a stretch of a trace."""

from __future__ import annotations

from typing import Any

import numpy as np

from bandscope.allocator import events
from bandscope.inspect.state import shared_counts


class Sharers:
    """`users`: the requests that share virtual page `virtual` now; at first those of a keyframe."""

    def __init__(self, virtual: int, snapshot: dict[str, Any]) -> None:
        self.virtual = virtual
        self.users: set[int] = set()
        if "cache" not in snapshot:
            return
        counts, ledger = shared_counts(snapshot["cache"]), snapshot["ledger"]
        begins = np.cumsum(ledger["page_count"]) - ledger["page_count"]
        for request, begin in zip(ledger["request"].tolist(), begins.tolist(), strict=True):
            pages = ledger["pages"][begin : begin + counts.get(request, 0)]
            if bool((pages == virtual).any()):
                self.users.add(request)

    def take(self, body: events.Share) -> bool:
        """A request shares pages from now on; whether this one is among them."""
        among = bool((body.virtual == self.virtual).any())
        if among:
            self.users.add(body.request)
        return among
