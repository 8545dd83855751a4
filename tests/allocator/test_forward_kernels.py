"""The forward's kernels against contiguous float64 references, before and after pages move."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch

forward = pytest.importorskip(
    "bandscope.allocator.device.forward", reason="Triton is not installed here"
)


@pytest.fixture(autouse=True)
def collect_garbage() -> Iterator[None]:
    """The interpreter leaves its arguments in reference cycles."""
    yield
    gc.collect()


@dataclass
class Cache:
    """A small page-major cache: two layers' rows in every entry, of which layer 1 is used."""

    arena: torch.Tensor
    view_k: torch.Tensor
    view_v: torch.Tensor
    v2p: torch.Tensor
    page_table: torch.Tensor
    keys: np.ndarray
    values: np.ndarray
    lengths: list[int]
    page_size: int

    @property
    def device(self) -> torch.device:
        return self.arena.device


def make_cache(
    device: torch.device,
    lengths: list[int],
    *,
    page_size: int,
    kv_heads: int,
    key_dim: int,
    value_dim: int,
    dtype: torch.dtype = torch.bfloat16,
    pages: int = 24,
) -> Cache:
    """Random keys and values of every token, written by `write_rows` through random tables."""
    generator = np.random.default_rng([page_size, kv_heads, key_dim, sum(lengths)])
    row = kv_heads * (key_dim + value_dim)
    arena = torch.full((pages, page_size, 2 * row), 777.0, dtype=dtype, device=device)
    strides = arena.stride()
    views = []
    for offset, dim in ((row, key_dim), (row + kv_heads * key_dim, value_dim)):
        views.append(
            torch.as_strided(
                arena, (pages, page_size, kv_heads, dim), (strides[0], strides[1], dim, 1), offset
            )
        )
    columns = max(-(-length // page_size) for length in lengths) + 1
    virtual = generator.permutation(40)[: len(lengths) * columns].reshape(len(lengths), -1)
    v2p = np.full(40, -1)
    places = generator.permutation(np.arange(1, pages))
    for index, length in enumerate(lengths):
        for column in range(-(-length // page_size)):
            v2p[virtual[index, column]], places = places[0], places[1:]
    total = sum(lengths)
    keys = generator.standard_normal((total, kv_heads, key_dim))
    values = generator.standard_normal((total, kv_heads, value_dim))
    cache = Cache(
        arena, views[0], views[1], on(v2p, device), on(virtual, device).to(torch.int32),
        np.empty(0), np.empty(0), lengths, page_size,
    )  # fmt: skip
    rounded_k = torch.from_numpy(keys).to(dtype)
    rounded_v = torch.from_numpy(values).to(dtype)
    cache.keys, cache.values = rounded_k.double().numpy(), rounded_v.double().numpy()
    unmapped = torch.zeros(len(lengths), dtype=torch.int32, device=device)
    forward.write_rows(
        cache.view_k,
        cache.view_v,
        cache.v2p,
        cache.page_table,
        on(np.repeat(np.arange(len(lengths)), lengths), device),
        on(np.concatenate([np.arange(length) for length in lengths]), device),
        rounded_k.to(device),
        rounded_v.to(device),
        unmapped=unmapped,
    )
    assert unmapped.tolist() == [0] * len(lengths)
    return cache


def on(values: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, np.int64)).to(device)


def attend(
    cache: Cache, query: torch.Tensor, *, window: int | None = None, slow: int = 0
) -> tuple[np.ndarray, list[int]]:
    """The kernel's output and its count of unmapped tokens per request."""
    out = torch.full(
        (len(cache.lengths), query.shape[1], cache.view_v.shape[3]), np.nan, device=cache.device
    )
    unmapped = torch.zeros(len(cache.lengths), dtype=torch.int32, device=cache.device)
    forward.paged_attention(
        query, cache.view_k, cache.view_v, cache.v2p, cache.page_table,
        on(np.array(cache.lengths), cache.device), scale=query.shape[2] ** -0.5, out=out,
        unmapped=unmapped, window=window, slow=slow,
    )  # fmt: skip
    return out.double().cpu().numpy(), unmapped.tolist()


def reference(cache: Cache, query: torch.Tensor, window: int | None = None) -> np.ndarray:
    """Softmax attention in float64 over contiguous keys and values."""
    outputs, start = [], 0
    queries = query.double().cpu().numpy()
    group = query.shape[1] // cache.keys.shape[1]
    for index, length in enumerate(cache.lengths):
        first = 0 if window is None else max(0, length - window)
        keys = np.repeat(cache.keys[start + first : start + length], group, axis=1)
        values = np.repeat(cache.values[start + first : start + length], group, axis=1)
        scores = np.einsum("hd,thd->ht", queries[index], keys) * query.shape[2] ** -0.5
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        outputs.append(np.einsum("ht,thd->hd", weights, values))
        start += length
    return np.stack(outputs)


def random_query(cache: Cache, heads: int, seed: int = 0) -> torch.Tensor:
    shape = (len(cache.lengths), heads, cache.view_k.shape[3])
    values = np.random.default_rng(seed).standard_normal(shape)
    return torch.from_numpy(values).to(cache.view_k.dtype).to(cache.device)


def move_everything(cache: Cache) -> None:
    """A compaction: every page goes somewhere else, the tables follow, old places are poisoned."""
    mapped = (cache.v2p >= 0).nonzero().flatten()
    old = cache.v2p[mapped]
    order = np.random.default_rng(9).permutation(np.arange(1, cache.arena.shape[0]))
    new = on(order[: old.numel()], cache.device)
    content = cache.arena[old].clone()
    cache.arena.fill_(float("nan"))
    cache.arena[new] = content
    cache.v2p[mapped] = new


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "key_dim", "value_dim"),
    [(1, 1, 16, 16), (8, 2, 32, 16), (4, 4, 24, 40), (20, 1, 16, 16)],
)
def test_attention_equals_the_reference_before_and_after_moves(
    page_size: int,
    heads: int,
    kv_heads: int,
    key_dim: int,
    value_dim: int,
    kernel_device: torch.device,
) -> None:
    """Grouped heads, odd widths, different key and value widths, lengths around a page."""
    lengths = [1, page_size, page_size + 1, 2 * page_size + 3]
    cache = make_cache(
        kernel_device, lengths, page_size=page_size, kv_heads=kv_heads, key_dim=key_dim,
        value_dim=value_dim,
    )  # fmt: skip
    query = random_query(cache, heads)
    expected = reference(cache, query)
    before, missing = attend(cache, query)
    move_everything(cache)
    after, _ = attend(cache, query, slow=1)

    assert missing == [0] * len(lengths)
    np.testing.assert_allclose(before, expected, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(after, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("window", [1, 3, 6, 100])
def test_a_window_reads_only_its_tail(window: int, kernel_device: torch.device) -> None:
    """Pages wholly out of the window are unmapped and never missed."""
    cache = make_cache(
        kernel_device, [11, 4], page_size=2, kv_heads=1, key_dim=16, value_dim=16, dtype=torch.float32
    )
    query = random_query(cache, 2)
    for index, length in enumerate(cache.lengths):
        gone = max(0, length - window) // 2
        cache.v2p[cache.page_table[index, :gone].long()] = -1
    output, missing = attend(cache, query, window=window)

    assert missing == [0, 0]
    np.testing.assert_allclose(output, reference(cache, query, window), rtol=1e-3, atol=1e-3)


def test_unmapped_pages_in_range_are_counted_and_left_out(kernel_device: torch.device) -> None:
    """A stale table is seen: the tokens of a lost page are counted, for that request only."""
    cache = make_cache(kernel_device, [9, 5], page_size=2, kv_heads=1, key_dim=16, value_dim=16)
    query = random_query(cache, 1)
    expected = reference(cache, query)
    cache.v2p[cache.page_table[0, 1].long()] = -1
    output, missing = attend(cache, query)

    assert missing == [2, 0]
    np.testing.assert_allclose(output[1], expected[1], rtol=2e-3, atol=2e-3)
    assert np.abs(output[0] - expected[0]).max() > 1e-2


def test_another_requests_page_gives_another_answer(kernel_device: torch.device) -> None:
    """The test of the test: swapped table rows are far outside the tolerance."""
    cache = make_cache(kernel_device, [9, 9], page_size=2, kv_heads=1, key_dim=16, value_dim=16)
    query = random_query(cache, 1)
    expected = reference(cache, query)
    cache.page_table = cache.page_table.flip(0).contiguous()
    output, missing = attend(cache, query)

    assert missing == [0, 0]
    assert np.abs(output - expected).max() > 0.05


def test_a_latent_cache_is_its_own_key_and_value(kernel_device: torch.device) -> None:
    """MLA: one row per token is the key; its first part is the value."""
    cache = make_cache(
        kernel_device, [7, 3], page_size=4, kv_heads=1, key_dim=48, value_dim=16
    )
    cache.view_v = cache.view_k[..., :32]
    cache.values = cache.keys[..., :32]
    query = random_query(cache, 4)
    output, missing = attend(cache, query)

    assert missing == [0, 0]
    np.testing.assert_allclose(output, reference(cache, query), rtol=2e-3, atol=2e-3)


def test_writes_touch_their_rows_only_and_unmapped_tokens_nothing(
    kernel_device: torch.device,
) -> None:
    """The other layer of the entry keeps its bytes; a token without a page is counted."""
    cache = make_cache(kernel_device, [5, 2], page_size=2, kv_heads=2, key_dim=16, value_dim=8)
    row = 2 * (16 + 8)

    assert cache.arena[:, :, :row].eq(777).all()
    cache.v2p[cache.page_table[1, 0].long()] = -1
    before = cache.arena.clone()
    unmapped = torch.zeros(2, dtype=torch.int32, device=kernel_device)
    keys = torch.ones((2, 2, 16), dtype=torch.bfloat16, device=kernel_device)
    values = torch.ones((2, 2, 8), dtype=torch.bfloat16, device=kernel_device)
    ones, positions = on(np.array([1, 1]), kernel_device), on(np.array([0, 1]), kernel_device)
    forward.write_rows(
        cache.view_k, cache.view_v, cache.v2p, cache.page_table, ones, positions, keys, values,
        unmapped=unmapped,
    )  # fmt: skip

    assert unmapped.tolist() == [0, 2]
    assert torch.equal(cache.arena, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_are_read_checked_changed_and_written_back(
    dtype: torch.dtype, kernel_device: torch.device
) -> None:
    """Three steps of a linear recurrence equal its closed form; one flipped element is found."""
    slots, elements = 6, 40
    arena = torch.full((slots, 3 * elements), 5.0, dtype=dtype, device=kernel_device)
    view = torch.as_strided(arena, (slots, elements), (3 * elements, 1), elements)
    v2p = on(np.array([4, -1, 2]), kernel_device)
    pattern = torch.linspace(0.5, 2.0, elements, device=kernel_device)
    counters = {
        "unmapped": torch.zeros(2, dtype=torch.int32, device=kernel_device),
        "wrong": torch.zeros(2, dtype=torch.int32, device=kernel_device),
        "worst": torch.zeros(2, dtype=torch.float32, device=kernel_device),
    }
    state = np.zeros(2)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for step in range(3):
        inputs = np.array([1.0 + step, 2.0])
        forward.state_step(
            view, v2p, on(np.array([2, 0]), kernel_device),
            keep=on(np.full(2, step), kernel_device),
            inputs=torch.tensor(inputs, dtype=torch.float32, device=kernel_device),
            pattern=pattern, decay=0.5, tolerance=tolerance,
            expected=torch.tensor(state, dtype=torch.float32, device=kernel_device), **counters,
        )  # fmt: skip
        state = 0.5 * state + inputs

    expected = torch.tensor(state, dtype=torch.float32)[:, None] * pattern.cpu()[None, :]
    found = view[[2, 4]].float().cpu()
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=0)
    assert counters["wrong"].tolist() == [0, 0] and counters["unmapped"].tolist() == [0, 0]
    assert arena[:, :elements].eq(5).all() and arena[[0, 1, 3, 5]].eq(5).all()

    view[4, 7] += 1
    forward.state_step(
        view, v2p, on(np.array([2, 1]), kernel_device), keep=on(np.ones(2), kernel_device),
        inputs=None, pattern=pattern, decay=0.5, tolerance=tolerance,
        expected=torch.tensor(state, dtype=torch.float32, device=kernel_device), **counters,
    )  # fmt: skip
    assert counters["unmapped"].tolist() == [0, 1]
    forward.state_step(
        view, v2p, on(np.array([0, 2]), kernel_device), keep=on(np.ones(2), kernel_device),
        inputs=None, pattern=pattern, decay=0.5, tolerance=tolerance,
        expected=torch.tensor(state[::-1].copy(), dtype=torch.float32, device=kernel_device),
        **counters,
    )  # fmt: skip
    assert counters["wrong"].tolist() == [1, 0]
