"""A recorded run in which a page of the prefix cache takes over the place of a request's page."""

from __future__ import annotations

from pathlib import Path

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.inspect.recorder import Recorder
from tests.allocator.arenas import P2W, small_arena


def begin(path: Path, pages: int = 2, **config: object) -> Recorder:
    """Request 7 holds page 0 of both bands. The cache has pages `1 … pages` of request 0 and one more
    of request 2, without window rows. Request 1 has computed the first again, as the pages that
    follow; its forward, ticket 2, is in flight. What comes next is a publication."""
    arena = small_arena(P2W, prefix_cache=True, compact_hole_share=0.0, **config)
    recorder = Recorder(path, arena)
    assert arena.apply(ops.Admit(7, 0)) and arena.extend(7, 4)
    key = tuple(range(pages))
    for request, own in ((0, key), (2, (50,))):
        assert arena.apply(ops.Admit(request, 0, own)) and arena.extend(request, 4 * len(own))
    arena.complete(arena.launch([0, 2]))
    for request in (0, 2):
        arena.apply(ops.Release(request, publish=True))
    assert arena.apply(ops.Evict((pages + 1, 0))).value == pages + 1
    assert arena.apply(ops.Admit(1, 0, (*key, 99))).value == 0
    assert arena.extend(1, 4 * pages) and arena.launch([1]) == 2
    return recorder


def publish(arena: Arena, pages: int = 2) -> None:
    """Request 1 gives its pages to the cache, which has lost the window's."""
    assert arena.apply(ops.Publish(1)).value == 4 * pages


def grafted(path: Path, pages: int = 2) -> Path:
    """A trace that ends with the publication."""
    with begin(path, pages) as recorder:
        publish(recorder.arena, pages)
    return recorder.directory
