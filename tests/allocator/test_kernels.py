"""Every kernel against a NumPy oracle, byte for byte: in Triton's interpreter, and on a GPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest
import torch

kernels = pytest.importorskip(
    "bandscope.allocator.device.kernels", reason="Triton is not installed here"
)

PAGE_SIZES = [256, 260, 1024, 1152, 4096, 4100, 6144, 24_576]


@pytest.fixture(autouse=True)
def collect_garbage() -> Iterator[None]:
    """The interpreter leaves its arguments in reference cycles."""
    yield
    gc.collect()


def random_words(total_bytes: int, page_bytes: int, device: torch.device) -> torch.Tensor:
    """An arena of random bytes as words of the widest kind that divides a page."""
    dtype = torch.int64 if page_bytes % 8 == 0 else torch.int32
    generator = np.random.default_rng(total_bytes + page_bytes)
    data = generator.integers(0, 256, total_bytes, dtype=np.uint8)
    return torch.from_numpy(data).view(dtype).to(device)


def as_pages(words: torch.Tensor, page_bytes: int) -> np.ndarray:
    """The same bytes as a NumPy matrix of pages, copied."""
    flat = words.cpu().view(torch.uint8).numpy().copy()
    return flat[: flat.size // page_bytes * page_bytes].reshape(-1, page_bytes)


def numbers(values: object, device: torch.device) -> torch.Tensor:
    """int64 on the device."""
    return torch.from_numpy(np.asarray(values, np.int64)).to(device)


@pytest.mark.parametrize("page_bytes", PAGE_SIZES)
@pytest.mark.parametrize("count", [0, 1, 7])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_move_pages(
    page_bytes: int, count: int, dtype: torch.dtype, kernel_device: torch.device
) -> None:
    """Pages arrive whole, everything else stays, in any order of the moves."""
    pages = 20
    words = random_words(pages * page_bytes, page_bytes, kernel_device)
    expected = as_pages(words, page_bytes)
    order = np.random.default_rng(count).permutation(pages)
    sources, destinations = order[:count], order[10 : 10 + count]
    expected[destinations] = expected[sources]
    kernels.move_pages(
        words,
        numbers(sources, kernel_device).to(dtype),
        numbers(destinations, kernel_device).to(dtype),
        page_bytes,
    )

    assert (as_pages(words, page_bytes) == expected).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: 140,000 moves")
def test_more_moves_than_a_grid_axis_holds(kernel_device: torch.device) -> None:
    """65,537 moves and more in one launch."""
    page_bytes, pages = 256, 140_000
    words = random_words(pages * page_bytes, page_bytes, kernel_device)
    expected = as_pages(words, page_bytes)
    order = np.random.default_rng(0).permutation(pages)
    sources, destinations = order[:65_537], order[65_537 : 2 * 65_537]
    expected[destinations] = expected[sources]
    kernels.move_pages(
        words, numbers(sources, kernel_device), numbers(destinations, kernel_device), page_bytes
    )

    assert (as_pages(words, page_bytes) == expected).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with 7 GiB free")
@pytest.mark.parametrize("page_bytes", [65_536, 65_792, 1 << 20])
def test_offsets_beyond_four_gib(page_bytes: int, kernel_device: torch.device) -> None:
    """Moves across the 2 and 4 GiB offsets, first and last page, guard pages untouched."""
    guard = 1 << 20
    pages = (6 << 30) // page_bytes + 2
    whole = torch.randint(
        0, 1 << 62, ((pages * page_bytes + 2 * guard) // 8,), device=kernel_device
    )
    words = whole[guard // 8 : (guard + pages * page_bytes) // 8]
    guards = torch.cat([whole[: guard // 8], whole[-guard // 8 :]]).clone()
    around = [(2 << 30) // page_bytes, (4 << 30) // page_bytes]
    pairs = [(0, pages - 1), *((page - 1, page) for page in around)]
    table = words.view(pages, -1)
    for forward in (True, False):
        sources = [pair[0 if forward else 1] for pair in pairs]
        destinations = [pair[1 if forward else 0] for pair in pairs]
        before = table[numbers(sources, kernel_device)].clone()
        kernels.move_pages(
            words,
            numbers(sources, kernel_device),
            numbers(destinations, kernel_device),
            page_bytes,
        )

        assert torch.equal(table[numbers(destinations, kernel_device)], before)
        for page in sources:  # new content, so that the way back moves something else
            table[page].random_()
    assert torch.equal(torch.cat([whole[: guard // 8], whole[-guard // 8 :]]), guards)


@pytest.mark.parametrize("page_bytes", PAGE_SIZES)
@pytest.mark.parametrize("value", [0, 0xFF])
def test_fill_pages(page_bytes: int, value: int, kernel_device: torch.device) -> None:
    """Exactly the named pages hold the byte."""
    words = random_words(9 * page_bytes, page_bytes, kernel_device)
    expected = as_pages(words, page_bytes)
    expected[[8, 0, 3]] = value
    kernels.fill_pages(words, numbers([8, 0], kernel_device), page_bytes, value)
    kernels.fill_pages(words, numbers([3], kernel_device).int(), page_bytes, value)
    kernels.fill_pages(words, numbers([], kernel_device), page_bytes, value)

    assert (as_pages(words, page_bytes) == expected).all()


def inverse_of(v2p: np.ndarray, pages: int) -> np.ndarray:
    """p2v of a v2p."""
    p2v = np.full(pages, -1)
    p2v[v2p[v2p >= 0]] = np.flatnonzero(v2p >= 0)
    return p2v


def publish(
    v2p: np.ndarray, virtual: object, physical: object, dtype: torch.dtype, device: torch.device
) -> None:
    """Publish rows over consistent tables, and expect consistent tables with these rows."""
    pages = 900
    tables = [numbers(v2p, device), numbers(inverse_of(v2p, pages), device)]
    rows = [numbers(values, device).to(dtype) for values in (virtual, physical)]
    kernels.publish_rows(*tables, *rows)
    expected = v2p.copy()
    expected[np.asarray(virtual, int)] = physical

    assert (tables[0].cpu().numpy() == expected).all()
    assert (tables[1].cpu().numpy() == inverse_of(expected, pages)).all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("rows", [0, 1, 2, 300, 700, 1000])
def test_publish_rows(rows: int, dtype: torch.dtype, kernel_device: torch.device) -> None:
    """Random rows in random order change hands, appear, vanish or stay; both tables follow."""
    generator = np.random.default_rng(rows)
    v2p = np.full(1000, -1)
    held = generator.permutation(1000)[:600]
    v2p[held] = generator.permutation(900)[:600]
    virtual = generator.permutation(1000)[:rows]
    # Free for the rows: what they hold, and what nobody holds.
    others = np.setdiff1d(v2p, v2p[virtual])
    free = generator.permutation(np.setdiff1d(np.arange(900), others))
    physical = np.where(generator.random(rows) < 0.2, -1, np.resize(free, rows))
    physical[free.size :] = -1
    stay = virtual[generator.random(rows) < 0.1] if rows > 2 else virtual[:0]
    keeps = np.isin(virtual, stay)
    physical[np.isin(physical, v2p[stay])] = -1
    physical[keeps] = v2p[virtual[keeps]]

    publish(v2p, virtual, physical, dtype, kernel_device)


@pytest.mark.parametrize("backwards", [False, True])
def test_pages_that_change_hands_in_one_batch(
    backwards: bool, kernel_device: torch.device
) -> None:
    """Swaps, rings and chains, within a program and across programs, in either order of the rows."""
    v2p = np.arange(800)
    swap = {10: 20, 20: 10, 5: 790, 790: 5}
    ring = {page: page + 1 for page in range(100, 699)} | {699: 100}
    chain = {700: 701, 701: 702, 702: 850, 703: -1, 30: 703, 40: -1}
    stays = {50: 50}
    for batch in (swap, ring, chain, {**swap, **ring, **chain, **stays}):
        rows = list(batch.items())[:: -1 if backwards else 1]
        virtual, physical = zip(*rows, strict=True)
        publish(v2p, virtual, physical, torch.int32, kernel_device)


@pytest.mark.parametrize("page_size", [1, 16])
def test_translate_tokens(page_size: int, kernel_device: torch.device) -> None:
    """Mapped tokens get their row; negative and unmapped ones the sink, and are counted."""
    generator = np.random.default_rng(page_size)
    v2p = generator.permutation(200)
    v2p[generator.permutation(200)[:50]] = -1
    tokens = generator.integers(-3, 200 * page_size, 1100)
    place = np.where(tokens >= 0, v2p[np.maximum(tokens, 0) // page_size], -1)
    expected = np.where(place >= 0, place * page_size + tokens % page_size, 0)
    rows = torch.full((1100,), -7, dtype=torch.int64, device=kernel_device)
    unmapped = torch.zeros(1, dtype=torch.int32, device=kernel_device)
    kernels.translate_tokens(
        numbers(v2p, kernel_device),
        numbers(tokens, kernel_device),
        page_size,
        rows=rows,
        unmapped=unmapped,
    )

    assert (rows.cpu().numpy() == expected).all()
    assert int(unmapped) == int((place < 0).sum()) > 0


def test_stamps_are_found_again_and_differences_counted(kernel_device: torch.device) -> None:
    """What was written is read back as right; one changed word is one wrong row of its token."""
    page_size, entry_words, rows, first, distance = 4, 24, 5, 2, 4
    page_words = page_size * entry_words
    words = random_words(30 * page_words * 8, page_words * 8, kernel_device)
    generator = np.random.default_rng(5)
    order = generator.permutation(30 * page_size)[:70]
    pages, slots = numbers(order // page_size, kernel_device), numbers(order % page_size, kernel_device)
    stamps = numbers(generator.integers(0, 1 << 60, 70), kernel_device)
    salts = numbers(generator.integers(0, 1 << 60, rows), kernel_device)
    place = {
        "page_words": page_words,
        "entry_words": entry_words,
        "first_word": first,
        "row_distance": distance,
    }
    before = words.cpu().numpy().copy()
    kernels.stamp_rows(words, pages, slots, stamps, salts, **place)
    base = order // page_size * page_words + order % page_size * entry_words + first
    where = base[:, None] + np.arange(rows) * distance
    before[where] = stamps.cpu().numpy()[:, None] ^ salts.cpu().numpy()

    assert (words.cpu().numpy() == before).all()
    wrong = torch.full((70,), -1, dtype=torch.int32, device=kernel_device)
    kernels.stamp_rows(words, pages, slots, stamps, salts, wrong=wrong, **place)
    assert int(wrong.abs().sum()) == 0
    words[int(where[13, 2])] ^= 1
    kernels.stamp_rows(words, pages, slots, stamps, salts, wrong=wrong, **place)
    assert wrong.nonzero().flatten().tolist() == [13]
    assert int(wrong[13]) == 1


@pytest.mark.parametrize("page_bytes", [256, 260, 6144])
def test_digest_follows_the_content_not_the_place(
    page_bytes: int, kernel_device: torch.device
) -> None:
    """Equal after a move; different after one flipped bit, two swapped words, a zeroed tail."""
    words = random_words(10 * page_bytes, page_bytes, kernel_device)
    page = numbers([2], kernel_device)
    digest = kernels.digest_pages(words, page, page_bytes)
    kernels.move_pages(words, page, numbers([7], kernel_device), page_bytes)

    assert torch.equal(kernels.digest_pages(words, numbers([7], kernel_device), page_bytes), digest)
    first = 2 * page_bytes // words.element_size()
    for change in ("flip", "swap", "zero"):
        changed = words.clone()
        if change == "flip":
            changed[first + 3] ^= 16
        elif change == "swap":
            changed[[first + 1, first + 2]] = changed[[first + 2, first + 1]]
        else:
            changed[first + 8 : first + page_bytes // words.element_size()] = 0
        assert not torch.equal(kernels.digest_pages(changed, page, page_bytes), digest)
