"""The rules of publishing: which pages the cache takes, which copies go, which window rows come back.

Of a page that the cache has under another id the request's copy goes. Where the cache's page has lost
rows of a window that the copy still has, it takes over the copy's place in that band first: a graft, in
each window by itself, whoever holds the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bandscope.fuzz.model.cache import CacheBook, CachedPage, Key

Rule = tuple[str, str]  # an invariant, and how it was broken


@dataclass
class Published:
    """What became of it. `path`: the request's pages in the cache. Per band index, `grafts`: pages of
    the request, and pages of the cache that lie in their places from now on; `duplicates`: pages that
    the request must give up. `wrong`: rules that were broken."""

    path: list[CachedPage] = field(default_factory=list)
    grafts: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)
    duplicates: dict[int, list[int]] = field(default_factory=dict)
    wrong: list[Rule] = field(default_factory=list)


def publish(
    cache: CacheBook,
    keys: Sequence[Key],
    own: Sequence[int],
    kept_from: Sequence[int],
    told: Sequence[int],
) -> Published:
    """Publish pages `own` of a sequence, of which window `w` keeps those from `kept_from[w]` on. `told`:
    its pages in the cache afterwards, from the first."""
    known = cache.known(keys[: len(own)])
    right = [page.page for page in known] + list(own[len(known) :])
    result = Published(list(known), wrong=list(_differences(right, told)))
    cache.cut(known)
    for start, stop in _runs(known):
        _give_up(cache, result, known[start:stop], own[start:stop], [n - start for n in kept_from])
    for index in range(len(known), len(own)):
        if own[index] in cache.by_page:
            message = f"page {own[index]} was published, which is the cache's"
            result.wrong.append(("ownership", message))
            break
        parent = result.path[-1] if index else cache.root
        kept = [index >= first for first in kept_from]
        fresh = cache.add(parent, keys[index], own[index], kept)
        fresh.begins = index == len(known)
        result.path.append(fresh)
    cache.use(result.path)
    return result


def _give_up(
    cache: CacheBook,
    result: Published,
    run: Sequence[CachedPage],
    own: Sequence[int],
    kept_from: Sequence[int],
) -> None:
    """Of one run: copies that go, and rows that come back, which is a use of the run's window."""
    for index, (there, page) in enumerate(zip(run, own, strict=True)):
        if there.page == page:
            continue
        for band in (cache.full, *cache.companions):
            result.duplicates.setdefault(band, []).append(page)
        for window, band in enumerate(cache.windows):
            if index < kept_from[window]:
                continue
            if there.kept[window]:
                result.duplicates.setdefault(band, []).append(page)
                continue
            virtual, into = result.grafts.setdefault(band, ([], []))
            virtual.append(page)
            into.append(there.page)
            cache.restore_window(there, window)
            for one in run:
                one.window_clock[window] = cache.clock


def _runs(known: Sequence[CachedPage]) -> Iterator[tuple[int, int]]:
    begins = [index for index, page in enumerate(known) if page.begins]
    yield from zip(begins, [*begins, len(known)][1:], strict=True)


def _differences(right: Sequence[int], told: Sequence[int]) -> Iterator[Rule]:
    if len(told) != len(right):
        yield "ownership", f"publishing {len(right)} pages ended after {len(told)}"
    elif list(told) != list(right):
        index = next(i for i, page in enumerate(right) if page != told[i])
        yield "ownership", f"page {told[index]} of the cache is shared, not {right[index]}"
