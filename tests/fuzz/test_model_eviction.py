"""The rules of eviction: of all sets of pages that could go for a demand they let exactly one pass, the
one that the arena evicts; without the rehearsal, few others."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence

import pytest

from bandscope.allocator import operations as ops
from bandscope.fuzz.model import CachedModel, eviction
from bandscope.fuzz.model.bands import NOTHING
from bandscope.fuzz.model.cache import CacheBook
from bandscope.fuzz.model.eviction import Eviction
from tests.fuzz.caching import PAGE, cached_layout
from tests.fuzz.modelling import Watched

Gone = dict[int, frozenset[int]]  # per band


def small_cache(name: str) -> Watched:
    """Two sequences that part after a page, used at different times; a request holds some of it."""
    watched = Watched(cached_layout(name, units=60))
    model = watched.model
    for request, key in enumerate(((1, 2, 3), (1, 4))):
        watched.run([ops.Admit(request, key=key)])
        matched = model.requests[request].length
        watched.run([ops.Extend(request, len(key) * PAGE - matched), ops.Launch((request,))])
        if name == "state":
            watched.run([ops.Checkpoint(request)] if len(key) % 2 == 0 else [])
        watched.run([ops.Publish(request), ops.TrimWindow((request,)), ops.Release(request)])
    watched.run([ops.Admit(5, key=(1, 4)), *(ops.Complete(ticket) for ticket in (1, 2))])
    return watched


def serving(model: CachedModel, demand: Sequence[int]) -> Callable[[Sequence[int]], bool]:
    """What serves a demand, as memory is now."""
    hulls = [model.fixed(band) for band in model.bands]
    known: dict[tuple[int, ...], bool] = {}
    for freed in itertools.product(*(range(pages + 1) for pages in model.cache.cached)):
        rest = [wanted - pages for wanted, pages in zip(demand, freed, strict=True)]
        known[freed] = model._packs(rest, hulls)
    return lambda freed: known.get(tuple(freed), False)


def passing(
    cache: CacheBook, demand: Sequence[int], serves: Callable[[Sequence[int]], bool]
) -> list[Gone]:
    """All sets of pages, rows and states that may go by the rules."""
    things: list[tuple[int, int]] = []
    for page in cache.everything():
        things += [(band, page.page) for band in (cache.full, *cache.companions)]
        kept = zip(cache.windows, page.kept, strict=True)
        things += [(band, page.page) for band, keeps in kept if keeps]
        if page.slot != NOTHING and cache.state is not None:
            things.append((cache.state, page.slot))
    found: list[Gone] = []
    for chosen in itertools.product((False, True), repeat=len(things)):
        per_band: list[list[int]] = [[] for _ in demand]
        for (band, name), goes in zip(things, chosen, strict=True):
            per_band[band] += [name] * goes
        one = Eviction(copy.deepcopy(cache), demand, [len(names) for names in per_band], serves)
        for band, names in enumerate(per_band):
            one.take(band, names)
        if not one.settle():
            found.append({band: frozenset(names) for band, names in enumerate(per_band)})
    return found


@pytest.mark.parametrize("name", ["window", "joint", "state", "full"])
def test_of_all_sets_of_pages_one_may_go(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    evicted = 0
    for band, more in itertools.product(range(2), (1, 2)):
        watched = small_cache(name)
        model = watched.model
        assert isinstance(model, CachedModel)
        demand = [0, 0]
        demand[band] = model.largest(band) - more + 1
        if model._packs(demand, [None, None]):
            continue  # served without
        evicted += 1
        before, serves = copy.deepcopy(model.cache), serving(model, demand)
        watched.run([ops.Reserve(tuple(demand))])
        assert model._eviction is not None
        right = {index: frozenset(names) for index, names in enumerate(model._eviction.gone)}
        assert passing(before, demand, serves) == [right]
        monkeypatch.setattr(eviction, "REHEARSED_PAGES", -1)
        others = passing(before, demand, serves)
        assert right in others and len(others) <= 3
        monkeypatch.undo()
    assert evicted
