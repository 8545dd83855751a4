"""The rules of publishing: which pages the cache takes, which copy of two stays, where it ends early.

Of a page that the cache has under another id one copy goes: the request's, unless the cache's has lost
window rows that the request's still has. Then the cache takes the request's, if nobody holds its own and
no other window loses by it. If it cannot, a request that goes on keeps its copy, and publishing ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bandscope.fuzz.model.cache import CacheBook, CachedPage, Key

Rule = tuple[str, str]  # an invariant, and how it was broken


@dataclass
class Published:
    """What became of it. `path`: the request's pages in the cache; `duplicates`, `replaced`: per band
    index, pages that the request and the cache must give up; `wrong`: rules that were broken."""

    path: list[CachedPage] = field(default_factory=list)
    duplicates: dict[int, list[int]] = field(default_factory=dict)
    replaced: dict[int, list[int]] = field(default_factory=dict)
    wrong: list[Rule] = field(default_factory=list)


def publish(
    cache: CacheBook,
    keys: Sequence[Key],
    own: Sequence[int],
    kept_from: Sequence[int],
    told: Sequence[int],
    goes_on: bool,
) -> Published:
    """Publish pages `own` of a sequence, of which window `w` keeps those from `kept_from[w]` on. `told`:
    its pages in the cache afterwards, from the first. `goes_on`: the request still needs its rows."""
    known = cache.known(keys[: len(own)])
    right = _right(known, own, kept_from, goes_on)
    result = Published(wrong=list(_differences(own, right, told)))
    _cut_runs(cache, known, len(right), len(right) < len(own))
    for index, page in enumerate(right):
        kept = [index >= first for first in kept_from]
        if index >= len(known):
            parent = result.path[-1] if index else cache.root
            if page in cache.by_page:
                result.wrong.append(("ownership", f"page {page} was published, which is the cache's"))
                break
            fresh = cache.add(parent, keys[index], page, kept)
            fresh.begins = index == len(known)
            result.path.append(fresh)
            continue
        there = known[index]
        result.path.append(there)
        if page != there.page:
            _note(cache, result.replaced, there.page, there.kept)
            cache.swap(there, page, kept)
        elif page != own[index]:
            _note(cache, result.duplicates, own[index], kept)
    cache.use(result.path)
    return result


def _right(
    known: Sequence[CachedPage], own: Sequence[int], kept_from: Sequence[int], goes_on: bool
) -> list[int]:
    """The pages of the sequence that the cache has afterwards."""
    right: list[int] = []
    for start, stop in _runs(known):
        both = range(start, stop)
        other = {i for i in both if own[i] != known[i].page}
        # What the request's copy of a page has in each window, and what the cache's has.
        rows = {i: [(i >= first, has) for first, has in zip(kept_from, known[i].kept, strict=True)]
                for i in other}  # fmt: skip
        gains = [i for i in both if i in other and any(mine and not has for mine, has in rows[i])]
        swapped = range(min(gains, default=0), max(gains, default=-1) + 1)
        if known[start].holders or any(
            i not in other or any(has and not mine for mine, has in rows[i]) for i in swapped
        ):
            swapped = range(0)
        if gains and goes_on and not swapped:
            return right + [page.page for page in known[start : gains[0]]]
        right += [own[i] if i in swapped else known[i].page for i in both]
    return right + list(own[len(known) :])


def _runs(known: Sequence[CachedPage]) -> Iterator[tuple[int, int]]:
    begins = [index for index, page in enumerate(known) if page.begins]
    yield from zip(begins, [*begins, len(known)][1:], strict=True)


def _differences(own: Sequence[int], right: Sequence[int], told: Sequence[int]) -> Iterator[Rule]:
    if len(told) > len(right) and len(right) < len(own):
        yield "content", f"publishing went on after page {len(right)}, whose rows a request needs"
    elif len(told) != len(right):
        yield "ownership", f"publishing {len(own)} pages ended after {len(told)}, not {len(right)}"
    elif list(told) != list(right):
        index = next(i for i, page in enumerate(right) if page != told[i])
        yield "ownership", f"page {told[index]} of the cache is shared, not {right[index]}"


def _note(cache: CacheBook, into: dict[int, list[int]], page: int, kept: Sequence[bool]) -> None:
    for band in (cache.full, *cache.companions):
        into.setdefault(band, []).append(page)
    for band, keeps in zip(cache.windows, kept, strict=True):
        if keeps:
            into.setdefault(band, []).append(page)


def _cut_runs(
    cache: CacheBook, known: Sequence[CachedPage], depth: int, ended_early: bool
) -> None:
    """Runs end where the sequence leaves what is known, and where publishing ended."""
    if not ended_early:
        cache.cut(known)
        return
    # Runs behind the one in which it ended were not come to.
    if not any(page.begins for page in known[depth + 1 :]):
        cache.cut(known)
    known[depth].begins = True
