"""Compiles every kernel for one GPU architecture with no GPU; run as a program by the test.

    python tests/allocator/compile_kernels.py 90

Prints one JSON object: per kernel variant the registers, spilled bytes, and the memory
instructions. Runs in a process of its own, because Triton is either compiling or interpreting.
"""

from __future__ import annotations

import collections
import inspect
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from bandscope.allocator.device import forward, kernels

I64, I32, F32, P64, P32, F16 = "i64", "i32", "fp32", "*i64", "*i32", "*bf16"
MOVE = {"arena": P64, "sources": P64, "destinations": P64}
PF32 = "*fp32"
ATTENTION = {
    "query": F16, "key_view": F16, "value_view": F16, "v2p": P64, "page_table": P32,
    "table_rows": P64, "lengths": P64, "out": PF32, "unmapped": P32,
    "table_width": I32, "window": I32, "slow": I32, "scale_log2": F32,
    "key_page_stride": I32, "key_slot_stride": I32, "key_head_stride": I32,
    "value_page_stride": I32, "value_slot_stride": I32, "value_head_stride": I32,
}  # fmt: skip
ROWS = {
    "key_view": F16, "value_view": F16, "v2p": P64, "page_table": P32, "table_rows": P64,
    "requests": P64, "positions": P64, "keys": F16, "values": F16, "unmapped": P32,
    "count": I32, "table_width": I32, "spins": I32,
    "key_page_stride": I32, "key_slot_stride": I32, "value_page_stride": I32,
    "value_slot_stride": I32,
}  # fmt: skip
STATES = {
    "view": PF32, "v2p": P64, "slots": P64, "keep": P64, "inputs": PF32, "pattern": PF32,
    "expected": PF32, "wrong": P32, "worst": P32, "unmapped": P32,
    "spins": I32, "slot_stride": I32, "elements": I32, "decay": F32, "tolerance": F32,
}  # fmt: skip
# Variants that engines meet: (kernel, signature, constants, arguments that are multiples of 16).
VARIANTS: dict[str, tuple[Any, dict[str, str], dict[str, Any], tuple[str, ...]]] = {
    "move 1 KiB": (
        kernels._move_rows,
        {**MOVE, "count": I32, "page_words": I32},
        {"ROWS": 4, "WORDS": 128, "ALIGN": 16},
        ("arena", "sources", "destinations", "page_words"),
    ),
    "move 1 KiB, pages as int32": (
        kernels._move_rows,
        {**MOVE, "sources": P32, "destinations": P32, "count": I32, "page_words": I32},
        {"ROWS": 4, "WORDS": 128, "ALIGN": 16},
        ("arena", "sources", "destinations", "page_words"),
    ),
    "move 64 KiB, pages as int32": (
        kernels._move_pieces,
        {**MOVE, "sources": P32, "destinations": P32, "pieces": I32, "page_words": I32},
        {"WORDS": 512, "EVEN": True, "ALIGN": 16},
        ("arena", "sources", "destinations", "page_words"),
    ),
    "move 1,152 B": (
        kernels._move_rows,
        {**MOVE, "count": I32, "page_words": I32},
        {"ROWS": 2, "WORDS": 256, "ALIGN": 16},
        ("arena", "sources", "destinations", "page_words"),
    ),
    "move 64 KiB": (
        kernels._move_pieces,
        {**MOVE, "pieces": I32, "page_words": I32},
        {"WORDS": 512, "EVEN": True, "ALIGN": 16},
        ("arena", "sources", "destinations", "page_words"),
    ),
    "move 18,432 B": (
        kernels._move_pieces,
        {**MOVE, "pieces": I32, "page_words": I32},
        {"WORDS": 512, "EVEN": False, "ALIGN": 16},
        ("arena", "sources", "destinations", "page_words"),
    ),
    "fill": (
        kernels._fill_pieces,
        {"arena": P64, "pages": P64, "pieces": I32, "page_words": I32, "value": I64},
        {"WORDS": 512, "ALIGN": 16},
        ("arena", "pages", "page_words"),
    ),
    "publish": (
        kernels._publish_rows,
        {"v2p": P64, "p2v": P64, "virtual": P32, "physical": P32, "count": I32},
        {"BLOCK": 256},
        ("v2p", "p2v", "virtual", "physical"),
    ),
    "translate": (
        kernels._translate_tokens,
        {
            "v2p": P64, "tokens": P64, "rows": P64, "unmapped": P32, "count": I32,
            "page_size": I32,
        },
        {"BLOCK": 512},
        (),
    ),
    "stamp": (
        kernels._stamp_rows,
        {
            "arena": P64, "pages": P64, "slots": P64, "stamps": P64, "salts": P64, "wrong": P32,
            "count": I32, "row_count": I32, "page_words": I32, "entry_words": I32,
            "first_word": I32, "row_distance": I32,
        },
        {"CHECK": True, "BLOCK": 32, "ROWS": 32},
        (),
    ),
    "digest": (
        kernels._digest_pieces,
        {"arena": P64, "pages": P64, "digests": P64, "pieces": I32, "page_words": I32},
        {"WORDS": 512, "ALIGN": 16},
        ("arena", "page_words"),
    ),
    "attention, 64 query and 8 KV heads of 64": (
        forward._paged_attention,
        ATTENTION,
        {
            "PAGE_SIZE": 16, "KV_HEADS": 8, "GROUP": 8, "KEY_DIM": 64, "VALUE_DIM": 64,
            "HEADS": forward.HEADS_PER_TILE, "TOKENS": forward.TOKENS_PER_TILE,
            "KEY_BLOCK": forward.key_block(64), "VALUE_BLOCK": forward.value_block(64),
            "PHYSICAL": False, "KEY_PRECISION": "tf32",
        },
        ("query", "key_view", "value_view", "out", "key_page_stride", "key_slot_stride",
         "key_head_stride", "value_page_stride", "value_slot_stride", "value_head_stride"),
    ),
    "attention through physical pages": (
        forward._paged_attention,
        {**ATTENTION, "page_table": P64},
        {
            "PAGE_SIZE": 16, "KV_HEADS": 8, "GROUP": 4, "KEY_DIM": 64, "VALUE_DIM": 64,
            "HEADS": forward.HEADS_PER_TILE, "TOKENS": forward.TOKENS_PER_TILE,
            "KEY_BLOCK": forward.key_block(64), "VALUE_BLOCK": forward.value_block(64),
            "PHYSICAL": True, "KEY_PRECISION": "tf32",
        },
        ("query", "key_view", "value_view", "page_table", "out", "key_page_stride",
         "key_slot_stride", "key_head_stride", "value_page_stride", "value_slot_stride",
         "value_head_stride"),
    ),
    "write rows of 8 KV heads of 64": (
        forward._write_rows,
        ROWS,
        {
            "PAGE_SIZE": 16, "KEY_ELEMENTS": 512, "VALUE_ELEMENTS": 512, "TOKENS": 16,
            "BLOCK": 256, "PHYSICAL": False,
        },
        ("key_view", "value_view", "keys", "values", "key_page_stride", "key_slot_stride",
         "value_page_stride", "value_slot_stride"),
    ),
    "write latent rows of 576": (
        forward._write_rows,
        ROWS,
        {
            "PAGE_SIZE": 64, "KEY_ELEMENTS": 576, "VALUE_ELEMENTS": 0, "TOKENS": 16,
            "BLOCK": 256, "PHYSICAL": False,
        },
        ("key_view", "value_view", "keys", "values", "key_page_stride", "key_slot_stride",
         "value_page_stride", "value_slot_stride"),
    ),
    "step bfloat16 states": (
        forward._step_states,
        {**STATES, "view": F16},
        {"BLOCK": forward.STATE_BLOCK, "CHECK": True, "UPDATE": True, "PHYSICAL": False},
        ("view", "pattern", "slot_stride", "elements"),
    ),
    "step float32 states": (
        forward._step_states,
        STATES,
        {"BLOCK": forward.STATE_BLOCK, "CHECK": True, "UPDATE": True, "PHYSICAL": False},
        ("view", "pattern", "slot_stride", "elements"),
    ),
    "check float32 states": (
        forward._step_states,
        STATES,
        {"BLOCK": forward.STATE_BLOCK, "CHECK": True, "UPDATE": False, "PHYSICAL": True},
        ("view", "pattern", "slot_stride", "elements"),
    ),
}  # fmt: skip


def compile_variant(name: str, architecture: int) -> dict[str, Any]:
    """Registers, spills and memory instructions of one variant."""
    kernel, signature, constants, multiples = VARIANTS[name]
    whole = {**signature, **dict.fromkeys(constants, "constexpr")}
    names = list(whole)
    source = ASTSource(
        fn=kernel,
        signature=whole,
        constexprs=constants,
        attrs={(names.index(argument),): [["tt.divisibility", 16]] for argument in multiples},
    )
    target = GPUTarget("cuda", architecture, 32)
    compiled = triton.compile(source, target=target, options={"num_warps": 4})
    takes_architecture = bool(inspect.signature(get_ptxas).parameters)
    ptxas = get_ptxas(architecture) if takes_architecture else triton.knobs.nvidia.ptxas
    suffix = "a" if architecture >= 90 else ""
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        ptx.write_text(compiled.asm["ptx"])
        cubin.write_bytes(compiled.asm["cubin"])
        command = [ptxas.path, "-v", f"--gpu-name=sm_{architecture}{suffix}", str(ptx)]
        log = subprocess.run(
            [*command, "-o", f"{cubin}2"], capture_output=True, text=True, check=True
        ).stderr
        listing = subprocess.run(
            [triton.knobs.nvidia.nvdisasm.path, "-c", str(cubin)], capture_output=True, text=True
        ).stdout
    number = {
        key: int(match[1]) if (match := re.search(pattern, log)) else 0
        for key, pattern in (
            ("registers", r"Used (\d+) registers"),
            ("spill_stores", r"(\d+) bytes spill stores"),
            ("spill_loads", r"(\d+) bytes spill loads"),
        )
    }
    memory = collections.Counter(re.findall(r"\b((?:LDG|STG)\.[\w.]+)", listing))
    return {**number, "memory": dict(memory)}


if __name__ == "__main__":
    wanted = int(sys.argv[1])
    print(json.dumps({name: compile_variant(name, wanted) for name in VARIANTS}))
