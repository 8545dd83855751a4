"""Triton kernels of the arena: everything that touches its bytes or tables on a GPU.

Each kernel runs unchanged in Triton's interpreter. All of them share four rules:

- Addresses are 64-bit: page numbers come in as int64 or int32 and are multiplied as int64.
- The unit of a copy is a *word* (int64, or int32 for pages that are no multiple of 8 bytes). The
  largest power of two that divides every page's offset is passed as `ALIGN` words, because only then
  does the compiler join words into 128-bit accesses.
- Counts that change from call to call are not specialised: a first launch compiles, no later one.
- One program works on about `TILE_BYTES`, as few pages' rows as that takes; nothing needs scratch
  memory. Grids are one-dimensional, so the number of moves is bounded by 2³¹ programs only.

Functions that launch come after their kernel; they take torch tensors, and decide shapes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TILE_BYTES = 4096
THREADS_PER_WARP = 32
# Two 16-byte accesses in flight per thread were the best of 4,096 to 65,536 bytes per program and
# 4 to 16 warps, for pages from 1 KiB to 75 MiB (docs/results.md).
BYTES_PER_THREAD = 32


@triton.jit(do_not_specialize=["count"])
def _move_rows(
    arena, sources, destinations, count, page_words,
    ROWS: tl.constexpr, WORDS: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Small pages: one program copies ROWS whole pages of at most WORDS words."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    valid = row < count
    source = tl.load(sources + row, mask=valid, other=0).to(tl.int64)
    target = tl.load(destinations + row, mask=valid, other=0).to(tl.int64)
    source = tl.multiple_of(source * page_words, ALIGN)
    target = tl.multiple_of(target * page_words, ALIGN)
    word = tl.arange(0, WORDS)
    mask = valid[:, None] & (word < page_words)[None, :]
    values = tl.load(arena + (source[:, None] + word[None, :]), mask=mask)
    tl.store(arena + (target[:, None] + word[None, :]), values, mask=mask)


@triton.jit
def _move_pieces(
    arena, sources, destinations, pieces, page_words,
    WORDS: tl.constexpr, EVEN: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Large pages: one program copies one of `pieces` runs of WORDS words of one page."""
    program = tl.program_id(0).to(tl.int64)
    move = program // pieces
    source = tl.multiple_of(tl.load(sources + move).to(tl.int64) * page_words, ALIGN)
    target = tl.multiple_of(tl.load(destinations + move).to(tl.int64) * page_words, ALIGN)
    word = (program % pieces) * WORDS + tl.arange(0, WORDS)
    if EVEN:
        tl.store(arena + (target + word), tl.load(arena + (source + word)))
    else:
        mask = word < page_words
        tl.store(arena + (target + word), tl.load(arena + (source + word), mask=mask), mask=mask)


def move_pages(
    words: torch.Tensor, sources: torch.Tensor, destinations: torch.Tensor, page_bytes: int
) -> None:
    """Copy page `sources[i]` over page `destinations[i]`; no page appears twice in the two lists.

    `words`: the arena as int64 (or int32) words. `sources`, `destinations`: int64 or int32, on
    the device.
    """
    count = sources.numel()
    if count == 0:
        return
    page_words, align = _page_words(words, page_bytes)
    if page_bytes <= TILE_BYTES:
        width = triton.next_power_of_2(page_words)
        rows = max(1, TILE_BYTES // (width * words.element_size()))
        _move_rows[(triton.cdiv(count, rows),)](
            words, sources, destinations, count, page_words,
            ROWS=rows, WORDS=width, ALIGN=align,
            num_warps=_warps(rows * width * words.element_size()),
        )  # fmt: skip
        return
    width = TILE_BYTES // words.element_size()
    pieces = triton.cdiv(page_words, width)
    _move_pieces[(count * pieces,)](
        words, sources, destinations, pieces, page_words,
        WORDS=width, EVEN=page_words % width == 0, ALIGN=align, num_warps=_warps(TILE_BYTES),
    )  # fmt: skip


@triton.jit
def _fill_pieces(
    arena, pages, pieces, page_words, value,
    WORDS: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    page = tl.load(pages + program // pieces).to(tl.int64)
    start = tl.multiple_of(page * page_words, ALIGN)
    word = (program % pieces) * WORDS + tl.arange(0, WORDS)
    filled = tl.zeros([WORDS], arena.dtype.element_ty) + value
    tl.store(arena + (start + word), filled, mask=word < page_words)


def fill_pages(words: torch.Tensor, pages: torch.Tensor, page_bytes: int, value: int) -> None:
    """Set every byte of these pages (int64 or int32) to `value` (0 … 255)."""
    count = pages.numel()
    if count == 0:
        return
    page_words, align = _page_words(words, page_bytes)
    item = words.element_size()
    word_value = int.from_bytes(bytes([value]) * item, "little", signed=True)
    width = min(TILE_BYTES // item, triton.next_power_of_2(page_words))
    pieces = triton.cdiv(page_words, width)
    _fill_pieces[(count * pieces,)](
        words, pages, pieces, page_words, word_value,
        WORDS=width, ALIGN=align, num_warps=_warps(width * item),
    )  # fmt: skip


@triton.jit(do_not_specialize=["count"])
def _publish_rows(v2p, p2v, virtual, physical, count, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    valid = row < count
    owner = tl.load(virtual + row, mask=valid, other=0).to(tl.int64)
    new = tl.load(physical + row, mask=valid, other=-1).to(tl.int64)
    old = tl.load(v2p + owner, mask=valid, other=-1)
    # At most one row leaves a page and at most one takes it. Both write its `p2v` atomically, and the
    # one that leaves only while the page is still its own: whoever is first, the taker's name stays.
    leaves = (old >= 0) & (old != new)
    # A compare-and-swap has no mask: rows that leave nothing compare with what no row ever holds.
    page = tl.where(leaves, old, tl.maximum(new, 0))
    tl.atomic_cas(p2v + page, tl.where(leaves, owner, -2), tl.full([BLOCK], -1, tl.int64), "relaxed")
    tl.atomic_xchg(p2v + new, owner, mask=new >= 0, sem="relaxed")
    tl.store(v2p + owner, new, mask=valid)


_compiled_publish: dict[tuple, triton.compiler.CompiledKernel] = {}


def publish_rows(
    v2p: torch.Tensor, p2v: torch.Tensor, virtual: torch.Tensor, physical: torch.Tensor
) -> None:
    """Row `virtual[i]` of `v2p` becomes `physical[i]` (−1: unmapped), and `p2v` stays its inverse,
    in one launch and whatever the order of the rows.

    `v2p`, `p2v`: int64, −1 for unmapped, inverse of each other. `virtual`, `physical`: int64 or
    int32. No virtual page appears twice; a page that passes from one to another has both in the
    lists.
    """
    count = virtual.numel()
    if count:
        block = 256
        grid = (triton.cdiv(count, block), 1, 1)
        arguments = (v2p, p2v, virtual, physical, count)
        # Every forward publishes a few rows, and choosing the compiled kernel by its arguments takes
        # twice as long as its launch: remember the choice with all that it depends on.
        aligned = tuple(tensor.data_ptr() % 16 == 0 for tensor in arguments[:4])
        key = (v2p.device, virtual.dtype, physical.dtype, aligned)
        compiled = _compiled_publish.get(key)
        if compiled is not None:
            compiled[grid](*arguments, block)
        else:
            compiled = _publish_rows[grid](*arguments, BLOCK=block, num_warps=4)
            if compiled is not None:  # the interpreter compiles nothing
                _compiled_publish[key] = compiled


@triton.jit(do_not_specialize=["count"])
def _translate_tokens(
    v2p, tokens, rows, unmapped, count, page_size,
    BLOCK: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    valid = lane < count
    token = tl.load(tokens + lane, mask=valid, other=-1)
    known = valid & (token >= 0)
    place = tl.load(v2p + token // page_size, mask=known, other=-1)
    mapped = known & (place >= 0)
    tl.store(rows + lane, tl.where(mapped, place * page_size + token % page_size, 0), mask=valid)
    missing = tl.sum((valid & (place < 0)).to(tl.int32))
    tl.atomic_add(unmapped, missing, mask=missing > 0)


def translate_tokens(
    v2p: torch.Tensor,
    tokens: torch.Tensor,
    page_size: int,
    *,
    rows: torch.Tensor,
    unmapped: torch.Tensor,
) -> None:
    """Virtual token ids → physical rows (page × page size + row in page), int64, into `rows`.

    A token that is negative or whose page is unmapped goes to row 0, inside the sink, and adds one
    to `unmapped` (int32, one element): a debug build refuses when it is not zero.
    """
    count = tokens.numel()
    if count:
        block = 512
        _translate_tokens[(triton.cdiv(count, block),)](
            v2p, tokens, rows, unmapped, count, page_size, BLOCK=block, num_warps=4
        )


@triton.jit(do_not_specialize=["count"])
def _stamp_rows(
    arena, pages, slots, stamps, salts, wrong, count, row_count, page_words, entry_words,
    first_word, row_distance,
    CHECK: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    valid = token < count
    page = tl.load(pages + token, mask=valid, other=0)
    slot = tl.load(slots + token, mask=valid, other=0)
    base = page * page_words + slot * entry_words + first_word
    row = tl.arange(0, ROWS)
    known = row < row_count
    stamp = tl.load(stamps + token, mask=valid, other=0)
    expected = stamp[:, None] ^ tl.load(salts + row, mask=known, other=0)[None, :]
    address = arena + (base[:, None] + row[None, :].to(tl.int64) * row_distance)
    mask = valid[:, None] & known[None, :]
    if CHECK:
        found = tl.load(address, mask=mask, other=0)
        bad = tl.sum(((found != expected) & mask).to(tl.int32), axis=1)
        tl.store(wrong + token, bad, mask=valid)
    else:
        tl.store(address, expected, mask=mask)


def stamp_rows(
    words: torch.Tensor,
    pages: torch.Tensor,
    slots: torch.Tensor,
    stamps: torch.Tensor,
    salts: torch.Tensor,
    *,
    page_words: int,
    entry_words: int,
    first_word: int,
    row_distance: int,
    wrong: torch.Tensor | None = None,
) -> None:
    """Write (or, with `wrong`, check) one stamp per token and layer row.

    The stamp of token `i` in row `r` is `stamps[i] ^ salts[r]` and stands at word `pages[i] ×
    page_words + slots[i] × entry_words + first_word + r × row_distance`. When checking, `wrong[i]`
    (int32) becomes the number of rows of token `i` that differ.
    """
    count = pages.numel()
    if count:
        block = 32
        _stamp_rows[(triton.cdiv(count, block),)](
            words, pages, slots, stamps, salts, stamps if wrong is None else wrong, count,
            salts.numel(), page_words, entry_words, first_word, row_distance,
            CHECK=wrong is not None, BLOCK=block,
            ROWS=triton.next_power_of_2(salts.numel()), num_warps=4,
        )  # fmt: skip


@triton.jit
def _digest_pieces(
    arena, pages, digests, pieces, page_words,
    WORDS: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    page = program // pieces
    start = tl.multiple_of(tl.load(pages + page) * page_words, ALIGN)
    word = (program % pieces) * WORDS + tl.arange(0, WORDS)
    value = tl.load(arena + (start + word), mask=word < page_words, other=0).to(tl.int64)
    # Each word is mixed with its place in the page, so that swapped words change the sum.
    mixed = (value ^ (word + 1) * 2960836687055557781) * 4417276706812531889
    mixed = mixed ^ (mixed >> 29)
    mixed = tl.where(word < page_words, mixed * 7046029254386353131, 0)
    tl.atomic_add(digests + page, tl.sum(mixed))


def digest_pages(words: torch.Tensor, pages: torch.Tensor, page_bytes: int) -> torch.Tensor:
    """A 64-bit digest (int64) of the content of each page; independent of where the page lies."""
    count = pages.numel()
    digests = torch.zeros(count, dtype=torch.int64, device=pages.device)
    if count:
        page_words, align = _page_words(words, page_bytes)
        width = min(TILE_BYTES // words.element_size(), triton.next_power_of_2(page_words))
        pieces = triton.cdiv(page_words, width)
        _digest_pieces[(count * pieces,)](
            words, pages, digests, pieces, page_words, WORDS=width, ALIGN=align, num_warps=4
        )
    return digests


def _page_words(words: torch.Tensor, page_bytes: int) -> tuple[int, int]:
    """Words of a page, and the largest power of two (at most 16) that divides every page's start."""
    page_words, rest = divmod(page_bytes, words.element_size())
    assert rest == 0, "pages are whole words"
    return page_words, min(16, page_words & -page_words)


def _warps(tile_bytes: int) -> int:
    warps = tile_bytes // (BYTES_PER_THREAD * THREADS_PER_WARP)
    return max(1, min(8, warps))
