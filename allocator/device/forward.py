"""A forward's own reads and writes of the arena: KV rows, paged decode attention, recurrent state.

What an engine's kernels do to an arena, small enough to read: they find pages through the tables on
the device, at the moment they run, and they touch the page-major strided views in place. The driver
uses them to prove that tables, moves and barriers are right while everything overlaps.

Every kernel follows the rules of `kernels.py` (64-bit addresses, no compile per changing count, the
same code in Triton's interpreter), and two more:

- A page that is not mapped is neither read nor written, not even in the sink: it is counted, per
  request, in `unmapped` (int32).
- `slow` stretches a kernel by repeated work whose result is used: attention reads its tables and its
  whole context `1 + slow` times (softmax over every key `1 + slow` times over is the same softmax, so
  each round counts), writers wait between reading the tables and writing. Races get time to happen.

The shapes of tables: `v2p` (virtual pages,) int64, −1 unmapped: the device's mirror of one band;
None where the page table holds physical pages already. `page_table` (rows, columns) int32 or int64,
contiguous: the virtual pages of one request per row, in position order. `table_rows` (batch,) int64:
the row of each request of the batch, None where row `i` is request `i`'s.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Triton asks whether to interpret these kernels (on the CPU) when it reads them, here.
INTERPRETED: bool = triton.knobs.runtime.interpret
LOG2_E = 1.4426950408889634
# Dependent multiplications that a writer waits per unit of `slow`: of the order of a microsecond.
SPINS_PER_SLOW = 256
# Rows of a tensor core tile: query heads of one group are padded to this.
HEADS_PER_TILE = 16
TOKENS_PER_TILE = 32
STATE_BLOCK = 1024


@triton.jit
def _place_of(v2p, virtual, wanted, PHYSICAL: tl.constexpr):
    """Physical pages of `virtual` where `wanted`; −1 where unmapped or not wanted."""
    if PHYSICAL:
        place = tl.where(wanted, virtual, -1)
    else:
        place = tl.load(v2p + virtual, mask=wanted & (virtual >= 0), other=-1)
    return place


@triton.jit
def _waited(seed, spins):
    """True for every seed (int64), after `spins` dependent steps. The low bit of this generator
    alternates from step to step, so the answer is known here; no compiler works that out and drops
    the loop."""
    value = seed & 0x3FFFFFFF
    step = 0
    while step < spins:
        value = (value * 1103515245 + 12345) & 0x7FFFFFFF
        step += 1
    return ((value ^ seed ^ spins) & 1) == 0


# --- KV rows --------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["count", "table_width", "spins"])
def _write_rows(
    key_view, value_view, v2p, page_table, table_rows, requests, positions, keys, values, unmapped,
    count, table_width, spins,
    key_page_stride, key_slot_stride, value_page_stride, value_slot_stride,
    PAGE_SIZE: tl.constexpr, KEY_ELEMENTS: tl.constexpr, VALUE_ELEMENTS: tl.constexpr,
    TOKENS: tl.constexpr, BLOCK: tl.constexpr, PHYSICAL: tl.constexpr,
):  # fmt: skip
    """One program writes BLOCK elements of the key row and of the value row of TOKENS tokens."""
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    piece = tl.program_id(1)
    valid = token < count
    request = tl.load(requests + token, mask=valid, other=0)
    position = tl.load(positions + token, mask=valid, other=0)
    column = position // PAGE_SIZE
    row = tl.load(table_rows + request, mask=valid, other=0)
    known = valid & (column < table_width)
    virtual = tl.load(page_table + (row * table_width + column), mask=known, other=-1).to(tl.int64)
    place = _place_of(v2p, virtual, known, PHYSICAL)
    if piece == 0:
        tl.atomic_add(unmapped + request, 1, mask=valid & (place < 0))

    # Between reading the tables and writing: where a late forward would do harm.
    mapped = valid & (place >= 0) & _waited(place, spins)
    slot = position % PAGE_SIZE
    element = piece * BLOCK + tl.arange(0, BLOCK)
    mask = mapped[:, None] & (element < KEY_ELEMENTS)[None, :]
    row_values = tl.load(
        keys + (token[:, None] * KEY_ELEMENTS + element[None, :]), mask=mask, other=0
    )
    base = place * key_page_stride + slot * key_slot_stride
    tl.store(key_view + (base[:, None] + element[None, :]), row_values, mask=mask)
    if VALUE_ELEMENTS > 0:
        mask = mapped[:, None] & (element < VALUE_ELEMENTS)[None, :]
        row_values = tl.load(
            values + (token[:, None] * VALUE_ELEMENTS + element[None, :]), mask=mask, other=0
        )
        base = place * value_page_stride + slot * value_slot_stride
        tl.store(value_view + (base[:, None] + element[None, :]), row_values, mask=mask)


def write_rows(
    view_k: torch.Tensor,
    view_v: torch.Tensor | None,
    v2p: torch.Tensor | None,
    page_table: torch.Tensor,
    requests: torch.Tensor,
    positions: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor | None,
    *,
    unmapped: torch.Tensor,
    table_rows: torch.Tensor | None = None,
    slow: int = 0,
) -> None:
    """Write the KV rows of new tokens at the places that the tables name when the kernel runs.

    `view_k`, `view_v`: `(pages, page_size, *row shape)`, rows contiguous; `view_v` None for a latent
    cache, which has one row. `requests`, `positions` (tokens,) int64: each token's number in the
    batch and its place in the request. `keys`, `values` (tokens, *row shape), contiguous, of the
    views' types. `unmapped` (batch,) int32 counts tokens that had no page.
    """
    count = positions.numel()
    if count == 0:
        return
    key_elements = _row_elements(view_k, keys)
    value_elements = 0 if view_v is None or values is None else _row_elements(view_v, values)
    block = min(256, triton.next_power_of_2(max(key_elements, value_elements)))
    tokens = min(64, 4096 // block)
    other_view = view_k if view_v is None else view_v
    _write_rows[(triton.cdiv(count, tokens), triton.cdiv(max(key_elements, value_elements), block))](
        view_k, other_view, positions if v2p is None else v2p, page_table,
        _rows_of(table_rows, page_table), requests, positions, keys,
        keys if values is None else values, unmapped,
        count, page_table.shape[1], slow * SPINS_PER_SLOW,
        view_k.stride(0), view_k.stride(1), other_view.stride(0), other_view.stride(1),
        PAGE_SIZE=view_k.shape[1], KEY_ELEMENTS=key_elements, VALUE_ELEMENTS=value_elements,
        TOKENS=tokens, BLOCK=block, PHYSICAL=v2p is None, num_warps=4,
    )  # fmt: skip


# --- attention ------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["table_width", "window", "slow"])
def _paged_attention(
    query, key_view, value_view, v2p, page_table, table_rows, lengths, out, unmapped,
    table_width, window, slow, scale_log2,
    key_page_stride, key_slot_stride, key_head_stride,
    value_page_stride, value_slot_stride, value_head_stride,
    PAGE_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, HEADS: tl.constexpr, TOKENS: tl.constexpr,
    KEY_BLOCK: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    PHYSICAL: tl.constexpr, KEY_PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: HEADS query heads of one group, VALUE_BLOCK elements of the output, one request.

    Online softmax over TOKENS keys at a time. Scores are summed over blocks of KEY_BLOCK elements,
    so that rows of any width (MLA: 576) need few registers.
    """
    request = tl.program_id(0).to(tl.int64)
    group_tiles: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    kv_head = tl.program_id(1) // group_tiles
    in_group = (tl.program_id(1) % group_tiles) * HEADS + tl.arange(0, HEADS)
    head_valid = in_group < GROUP
    query_row = (request * KV_HEADS + kv_head) * GROUP + in_group
    value_element = tl.program_id(2) * VALUE_BLOCK + tl.arange(0, VALUE_BLOCK)

    length = tl.load(lengths + request).to(tl.int64)
    table = page_table + tl.load(table_rows + request) * table_width
    first = tl.where(window > 0, tl.maximum(length - window, 0), 0)

    highest = tl.full([HEADS], -1.0e30, tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    result = tl.zeros([HEADS, VALUE_BLOCK], tl.float32)
    missing = tl.zeros([TOKENS], tl.int32)
    repeat = 0
    while repeat <= slow:
        start = first // TOKENS * TOKENS
        while start < length:
            position = start + tl.arange(0, TOKENS)
            wanted = (position >= first) & (position < length)
            column = position // PAGE_SIZE
            known = wanted & (column < table_width)
            virtual = tl.load(table + column, mask=known, other=-1).to(tl.int64)
            place = _place_of(v2p, virtual, known, PHYSICAL)
            mapped = wanted & (place >= 0)
            missing += tl.where(repeat == 0, (wanted & (place < 0)).to(tl.int32), 0)
            slot = position % PAGE_SIZE
            key_base = place * key_page_stride + slot * key_slot_stride + kv_head * key_head_stride
            scores = tl.zeros([HEADS, TOKENS], tl.float32)
            key_start = 0
            while key_start < KEY_DIM:
                element = key_start + tl.arange(0, KEY_BLOCK)
                inside = element < KEY_DIM
                queries = tl.load(
                    query + (query_row[:, None] * KEY_DIM + element[None, :]),
                    mask=head_valid[:, None] & inside[None, :], other=0.0,
                ).to(tl.float32)  # fmt: skip
                key = tl.load(
                    key_view + (key_base[:, None] + element[None, :]),
                    mask=mapped[:, None] & inside[None, :], other=0.0,
                ).to(tl.float32)  # fmt: skip
                scores = tl.dot(queries, tl.trans(key), scores, input_precision=KEY_PRECISION)
                key_start += KEY_BLOCK
            scores = tl.where(mapped[None, :], scores * scale_log2, float("-inf"))

            raised = tl.maximum(highest, tl.max(scores, axis=1))
            shrink = tl.exp2(highest - raised)
            weights = tl.exp2(scores - raised[:, None])
            value_base = (
                place * value_page_stride + slot * value_slot_stride + kv_head * value_head_stride
            )
            value = tl.load(
                value_view + (value_base[:, None] + value_element[None, :]),
                mask=mapped[:, None] & (value_element < VALUE_DIM)[None, :], other=0.0,
            ).to(tl.float32)  # fmt: skip
            total = total * shrink + tl.sum(weights, axis=1)
            result = tl.dot(weights, value, result * shrink[:, None], input_precision="tf32x3")
            highest = raised
            start += TOKENS
        repeat += 1

    result = result / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(
        out + (query_row[:, None] * VALUE_DIM + value_element[None, :]), result,
        mask=head_valid[:, None] & (value_element < VALUE_DIM)[None, :],
    )  # fmt: skip
    if tl.program_id(1) + tl.program_id(2) == 0:  # one of the programs of a request counts
        tokens_missing = tl.sum(missing, axis=0)
        tl.atomic_add(unmapped + request, tokens_missing, mask=tokens_missing > 0)


def paged_attention(
    query: torch.Tensor,
    view_k: torch.Tensor,
    view_v: torch.Tensor,
    v2p: torch.Tensor | None,
    page_table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scale: float,
    out: torch.Tensor,
    unmapped: torch.Tensor,
    window: int | None = None,
    table_rows: torch.Tensor | None = None,
    slow: int = 0,
) -> None:
    """Decode attention: the last token of every request attends to its context, through the tables.

    `query` (batch, heads, key dim), contiguous. `view_k` (pages, page_size, kv heads, key dim),
    `view_v` the same with the value dim; heads % kv heads == 0, and query head `h` reads KV head
    `h // (heads / kv heads)`. A latent cache: `view_k` the rows (pages, page_size, width), `view_v`
    the slice of them that is the value; both count as one KV head. `lengths` (batch,) int64: tokens
    of context, the query's own included; with `window` only the last `window` of them are read.
    `out` (batch, heads, value dim) float32. `unmapped` (batch,) int32 counts tokens of the range that
    have no page; they are left out of the softmax. A request with nothing to read gets zeros.

    Products of 16-bit queries and keys are exact in the tensor cores' TF32; all else is as good as
    float32 (three TF32 products each), summed in float32.
    """
    batch, heads, key_dim = query.shape
    if view_k.dim() == 3:
        view_k, view_v = view_k.unsqueeze(2), view_v.unsqueeze(2)
    kv_heads, value_dim = view_v.shape[2], view_v.shape[3]
    assert view_k.shape[2:] == (kv_heads, key_dim), "keys and queries have one width"
    assert heads % kv_heads == 0, "query heads are whole groups"
    assert out.shape == (batch, heads, value_dim) and out.dtype == torch.float32
    assert query.is_contiguous() and out.is_contiguous() and page_table.is_contiguous()
    assert view_k.stride(3) == 1 and view_v.stride(3) == 1, "an entry's rows are contiguous"
    if batch == 0:
        return
    narrow = query.element_size() <= 2 and view_k.element_size() <= 2
    group = heads // kv_heads
    grid = (
        batch,
        kv_heads * triton.cdiv(group, HEADS_PER_TILE),
        triton.cdiv(value_dim, value_block(value_dim)),
    )
    _paged_attention[grid](
        query, view_k, view_v, lengths if v2p is None else v2p, page_table,
        _rows_of(table_rows, page_table), lengths, out, unmapped,
        page_table.shape[1], 0 if window is None else window, slow, scale * LOG2_E,
        view_k.stride(0), view_k.stride(1), view_k.stride(2),
        view_v.stride(0), view_v.stride(1), view_v.stride(2),
        PAGE_SIZE=view_k.shape[1], KV_HEADS=kv_heads, GROUP=group,
        KEY_DIM=key_dim, VALUE_DIM=value_dim, HEADS=HEADS_PER_TILE,
        TOKENS=TOKENS_PER_TILE, KEY_BLOCK=key_block(key_dim), VALUE_BLOCK=value_block(value_dim),
        PHYSICAL=v2p is None, KEY_PRECISION="tf32" if narrow else "tf32x3", num_warps=4,
    )  # fmt: skip


def key_block(key_dim: int) -> int:
    """Elements of a key that a program multiplies at once; more would spill registers."""
    return max(16, min(64, int(triton.next_power_of_2(key_dim))))


def value_block(value_dim: int) -> int:
    """Elements of the value that a program sums; wider values are shared among programs."""
    return max(16, min(128, int(triton.next_power_of_2(value_dim))))


# --- recurrent state ------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["spins"])
def _step_states(
    view, v2p, slots, keep, inputs, pattern, expected, wrong, worst, unmapped,
    spins, slot_stride, elements, decay, tolerance,
    BLOCK: tl.constexpr, CHECK: tl.constexpr, UPDATE: tl.constexpr, PHYSICAL: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK elements of one slot, checked, changed and written back in place."""
    row = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    virtual = tl.load(slots + row)
    place = _place_of(v2p, virtual, virtual >= 0, PHYSICAL)
    if piece == 0:
        tl.atomic_add(unmapped + row, 1, mask=place < 0)
    element = piece * BLOCK + tl.arange(0, BLOCK)
    there = tl.where(place >= 0, elements, 0)
    mask = element < there
    kept = element < tl.where(tl.load(keep + row) != 0, there, 0)
    address = view + (place * slot_stride + element)
    old = tl.load(address, mask=kept, other=0.0).to(tl.float32)
    shape = tl.load(pattern + element, mask=mask, other=0.0)
    if CHECK:
        right = tl.load(expected + row) * shape
        error = tl.abs(old - right)
        # Written so that a NaN is wrong, and worst of all.
        good = error <= tolerance * tl.abs(right)
        bad = tl.sum((kept & (good == 0)).to(tl.int32), axis=0)
        error = tl.where(kept, tl.where(error == error, error, float("inf")), 0.0)
        # Floats that are not negative are ordered like their bits.
        bits = tl.max(error, axis=0).to(tl.int32, bitcast=True)
        tl.atomic_add(wrong + row, bad, mask=bad > 0)
        tl.atomic_max(worst + row, bits, mask=bits > 0)
    if UPDATE:
        new = decay * old + tl.load(inputs + row) * shape
        # Between reading and writing: where a copy of the slot would miss the change.
        # One answer for all elements: a mask of its own for each would split the stores.
        until = tl.where(_waited(place, spins), there, 0)
        tl.store(address, new.to(view.dtype.element_ty), mask=element < until)


def state_step(
    view_state: torch.Tensor,
    v2p: torch.Tensor | None,
    slots: torch.Tensor,
    *,
    keep: torch.Tensor,
    inputs: torch.Tensor | None,
    pattern: torch.Tensor,
    decay: float,
    unmapped: torch.Tensor,
    expected: torch.Tensor | None = None,
    tolerance: float = 0.0,
    wrong: torch.Tensor | None = None,
    worst: torch.Tensor | None = None,
    slow: int = 0,
) -> None:
    """Read, change and write the recurrent state of each request of a batch, in place.

    `view_state` (slots, *shape), a slot's elements contiguous, any float type; `slots` (batch,) int64,
    virtual (physical where `v2p` is None), no slot twice. The change is the rank-one step of a linear
    recurrence: `state = decay × state + inputs[i] × pattern[element]`, computed in float32; `pattern`
    (elements,) float32, `inputs` (batch,) float32. Where `keep[i]` (int64) is 0 the old state is not
    read and counts as zeros.

    With `expected` (batch,) float32 the old state is compared before it is changed: elements of slot
    `i` further than the share `tolerance` from `expected[i] × pattern` are counted in `wrong` (batch,)
    int32, and `worst` (batch,) float32 is raised to the largest difference. `inputs` None only
    compares. `unmapped` (batch,) int32 counts slots without a page; they stay untouched.
    """
    batch = slots.numel()
    if batch == 0:
        return
    elements = view_state[0].numel()
    assert view_state[0].is_contiguous() and pattern.numel() == elements
    block = min(STATE_BLOCK, triton.next_power_of_2(elements))
    check = expected is not None
    assert not check or (wrong is not None and worst is not None)
    _step_states[(batch, triton.cdiv(elements, block))](
        view_state, slots if v2p is None else v2p, slots, keep,
        pattern if inputs is None else inputs, pattern,
        expected if expected is not None else pattern,
        wrong if wrong is not None else unmapped,
        worst.view(torch.int32) if worst is not None else unmapped, unmapped,
        slow * SPINS_PER_SLOW, view_state.stride(0), elements, decay, tolerance,
        BLOCK=block, CHECK=check, UPDATE=inputs is not None, PHYSICAL=v2p is None, num_warps=4,
    )  # fmt: skip


def _rows_of(table_rows: torch.Tensor | None, page_table: torch.Tensor) -> torch.Tensor:
    if table_rows is not None:
        return table_rows
    return torch.arange(page_table.shape[0], device=page_table.device)


def _row_elements(view: torch.Tensor, rows: torch.Tensor) -> int:
    """Elements of one token's row, after looking that a kernel may treat them as one run."""
    assert view[0, 0].is_contiguous() and rows.is_contiguous(), "rows are contiguous"
    assert view.shape[2:] == rows.shape[1:] and view.dtype == rows.dtype
    return view[0, 0].numel()
