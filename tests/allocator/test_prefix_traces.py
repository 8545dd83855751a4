"""The prefix tree on recorded block hashes: its hits against a plain set of prefixes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bandscope.allocator.prefix import PrefixTree, repeat_blocks
from bandscope.allocator.prefix_checks import check
from bandscope.allocator.prefix_nodes import CacheShape
from bandscope.fuzz.workload.readers import MOONCAKE_BLOCK_TOKENS
from bandscope.fuzz.workload.source import open_workload

FILES = ["mooncake_conversation.jsonl.gz", "mooncake_synthetic.jsonl.gz"]


def prompts(path: Path, limit: int | None) -> Iterator[np.ndarray]:
    """Hashes of the whole blocks of each prompt."""
    if not path.exists():
        pytest.skip(f"the recorded trace {path.name} is not here")
    for request in open_workload(f"mooncake:{path}", limit=limit):
        assert request.prefix_blocks is not None
        blocks = np.asarray(request.prefix_blocks, np.int64)
        yield blocks[: request.prompt_tokens // MOONCAKE_BLOCK_TOKENS]


class Known:
    """Every prefix of blocks seen so far, as a set of (prefix, next block) pairs."""

    def __init__(self) -> None:
        self.names: dict[tuple[int, int], int] = {}

    def hits(self, blocks: np.ndarray) -> int:
        """Leading blocks that were seen under the same prefix; all are known from now on."""
        at, hits = -1, 0
        for block in blocks.tolist():
            size = len(self.names)
            at = self.names.setdefault((at, block), size)
            hits += at < size
        return hits


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    "limit", [1500, pytest.param(None, marks=pytest.mark.slow)], ids=["1500", "all"]
)
def test_an_unbounded_tree_hits_what_a_set_of_prefixes_holds(
    shared_data: Path, file: str, limit: int | None
) -> None:
    tree = PrefixTree(CacheShape(MOONCAKE_BLOCK_TOKENS, (1,), 0, keys="hashes"))
    known, asked, hits = Known(), 0, 0
    for clock, blocks in enumerate(prompts(shared_data / "traces" / file, limit)):
        found = tree.match(blocks, clock)
        assert found.depth == known.hits(blocks)
        fresh = np.arange(asked, asked + blocks.size)
        fresh[: found.depth] = found.pages
        result = tree.insert(blocks, fresh, clock)
        assert not result.duplicates[0].size and not result.grafts
        asked += int(blocks.size)
        hits += found.depth
    assert tree.cached == [asked - hits] == [len(known.names)]
    assert check(tree) == []
    assert 0.1 < hits / asked < 0.9


@pytest.mark.parametrize("file", FILES)
def test_pages_smaller_than_a_block_hit_the_same_tokens(shared_data: Path, file: str) -> None:
    tree = PrefixTree(CacheShape(64, (1,), 0, keys="hashes"))
    known, asked = Known(), 0
    for clock, blocks in enumerate(prompts(shared_data / "traces" / file, 200)):
        key = repeat_blocks(blocks, MOONCAKE_BLOCK_TOKENS, 64)
        found = tree.match(key, clock)
        assert found.tokens == known.hits(blocks) * MOONCAKE_BLOCK_TOKENS
        fresh = np.arange(asked, asked + key.size)
        fresh[: found.depth] = found.pages
        tree.insert(key, fresh, clock)
        asked += int(key.size)
    assert check(tree) == []


@pytest.mark.parametrize("evict", ["lru", "joint_lru"])
def test_a_bounded_tree_never_hits_more_and_hits_alike_when_memory_suffices(
    shared_data: Path, evict: str
) -> None:
    """A window of one block: a hit needs the block before its end in both bands."""
    shape = CacheShape(MOONCAKE_BLOCK_TOKENS, (1, 1), 1, (0,), (512,), keys="hashes", evict=evict)
    sequences = list(prompts(shared_data / "traces" / FILES[0], 600))
    hits: dict[int, int] = {}
    for capacity in (1500, 4000, 100_000):
        tree, known, total = PrefixTree(shape), Known(), 0
        for clock, blocks in enumerate(sequences):
            found = tree.match(blocks, clock)
            assert found.depth <= known.hits(blocks)
            lease = tree.lock(found)
            need = int(blocks.size) - found.depth
            spare = capacity * 2 - sum(tree.cached)  # a page of either band is one byte here
            if not tree.evict([need, need], lambda f, n=2 * need - spare: sum(f) >= n).served:  # type: ignore[misc]
                tree.unlock(lease)
                continue
            # Ids come from a counter: this test is about hits, the oracle's is about ids.
            base = capacity + total
            pages = np.concatenate([found.pages, np.arange(base, base + need)])
            result = tree.insert(blocks, pages, clock, kept_from=found.window_from)
            assert not set(result.taken.tolist()) & set(found.pages.tolist())
            tree.unlock(lease)
            total += need
            hits[capacity] = hits.get(capacity, 0) + found.depth
            assert sum(tree.cached) <= capacity * 2
        assert check(tree) == []
    exact = Known()
    unbounded = sum(exact.hits(blocks) for blocks in sequences)
    assert hits[1500] < hits[4000] <= hits[100_000] == unbounded
