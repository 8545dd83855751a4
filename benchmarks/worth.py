"""What one arena buys: models × traces at three sizes, against separate pools with three splits.

Run from the checkout: `python benchmarks/worth.py --traces DIR [--requests 600] [--workers 2]`, with
the public traces in DIR (pairs whose trace is not there are left out, and said so). Every cell serves
the same requests from one shared arena, and from pools of the same bytes: default ratios, bad ratios,
and the best that a search over this very trace finds. Requests arrive `--speedup` times as fast as in
the trace, so that memory decides, not arrivals. Prints Markdown; `--json FILE` keeps every number.

Sizes are in requests: an arena of size k has the bytes that k mean requests need at their peak.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bandscope.allocator.demand import peak_demand
from bandscope.allocator.errors import BandscopeError
from bandscope.allocator.families import declare_model
from bandscope.allocator.plan import StoragePlan, plan_storage
from bandscope.allocator.sizing import check_one_request_floor
from bandscope.fuzz.workload.run import Run
from bandscope.fuzz.workload.run_config import RunConfig
from bandscope.fuzz.workload.source import open_workload

SIZES = (6, 16, 48)
SHIFT = "synthetic:profile=shift-shared,requests=2000"


@dataclass(frozen=True)
class Pair:
    """A model and a trace; `file` in the folder of traces, or a synthetic workload."""

    model: str
    form: str
    file: str = ""
    evict: str = "lru"
    most: int = 1 << 30  # requests: prompts of 100,000 tokens are served for long

    @property
    def name(self) -> str:
        trace = self.file.split(".")[0] or "shifting workload"
        return f"{self.model} · {trace}"

    def workload(self, traces: Path) -> str:
        return f"{self.form}:{traces / self.file}" if self.file else self.form


PAIRS = (
    Pair("gpt-oss-20b", "mooncake", "mooncake_conversation.jsonl.gz", "joint_lru"),
    Pair("gpt-oss-20b", SHIFT, evict="joint_lru"),
    Pair("gemma-3-27b", "azure", "azure_2023_conv.csv"),
    Pair("qwen3-next-80b-a3b", "mooncake", "mooncake_conversation.jsonl.gz"),
    Pair("qwen3-next-80b-a3b", "azure", "azure_2023_code.csv"),
    Pair("qwen3-next-80b-a3b", SHIFT),
    Pair("inkling", "agentic", "agentic_coding_48.jsonl.gz", most=40),
    Pair("inkling", SHIFT),
)


def arena_bytes(plan: StoragePlan, workload: str, requests: int, size: int) -> int:
    """Bytes of `size` mean requests at their peaks, over the first requests of a workload."""
    pages = [
        peak_demand(plan, request.prompt_tokens, max(1, request.output_tokens))
        for request in itertools.islice(open_workload(workload), requests)
    ]
    sizes = np.array([band.page_bytes for band in plan.bands])
    return plan.sink_bytes + int(size * (np.array(pages) @ sizes).mean())


def serve(pair: Pair, traces: Path, size: int, requests: int, speedup: float) -> dict[str, Any]:
    """One cell: the arena and the three splits; `error` where nothing can be served at all."""
    started = time.perf_counter()
    requests = min(requests, pair.most)
    told: dict[str, Any] = {"pair": pair.name, "size": size, "requests": requests}
    try:
        plan = plan_storage(declare_model(pair.model), page_size=16)
        total = arena_bytes(plan, pair.workload(traces), requests, size)
        check_one_request_floor(plan, total)
        told["arena_bytes"] = total
        run = Run(
            replace(
                RunConfig(model=pair.model, workload=pair.workload(traces), device="none"),
                arena_bytes=told["arena_bytes"],
                requests=requests,
                speedup=speedup,
                prefix_cache=True,
                evict=pair.evict,
                baseline=True,
                check_every=1 << 30,
            )
        )
        run.serve()
        run.compare()
        data = run.to_json()
    except BandscopeError as error:
        return told | {"error": str(error)}
    told["violations"] = data["checks"]["violations"]
    told["rows"] = [
        {"memory": "one arena", "split": "shared", "moved": _moved(data)}
        | data["results"]
    ] + [
        {"memory": name, "split": _split(plan, base["shares"]), "moved": 0} | base["results"]
        for name, base in data["baselines"].items()
    ]
    return told | {"seconds": time.perf_counter() - started}


def _moved(data: dict[str, Any]) -> int:
    return sum(band["bytes_moved"] for band in data["counters"]["bands"].values())


def _split(plan: StoragePlan, shares: list[float]) -> str:
    return ", ".join(f"{b.name} {s:.0%}" for b, s in zip(plan.bands, shares, strict=True))


def markdown(cells: list[dict[str, Any]]) -> Iterator[str]:
    yield (
        "| Model · trace | Size | Memory | Split (bytes) | Tokens/s | Concurrency mean / peak "
        "| Hit rate | Retracted | Refused, clipped | Moved |"
    )
    yield "|" + " - |" * 10
    for cell in cells:
        first = f"{cell['pair']} | {cell['size']} ({cell.get('arena_bytes', 0) / 2**30:.1f} GiB)"
        if "error" in cell:
            yield f"| {first} | {cell['error']} | | | | | | | |"
            continue
        for row in cell["rows"]:
            tokens = row["prompt_tokens"] + row["generated_tokens"]
            lost = sum(row["aborts"].values())
            yield (
                f"| {first} | {row['memory']} | {row['split']} | "
                f"{tokens / row['clock_seconds']:,.0f} | "
                f"{row['concurrency_mean']:.1f} / {row['concurrency_peak']} | {row['hit_rate']:.1%} | "
                f"{row['retractions']} | {lost}, {row['clipped_outputs']} | "
                f"{row['moved'] / 2**30:.1f} GiB |"
            )
            first = " | "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--speedup", type=float, default=20.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pairs", default="", help="only pairs whose name has this in it")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    chosen = [pair for pair in PAIRS if asked.pairs in pair.name]
    missing = [p for p in chosen if p.file and not (asked.traces / p.file).exists()]
    for pair in missing:
        print(f"left out, its trace is not there: {pair.name}")
    cells: dict[tuple[str, int], dict[str, Any]] = {}
    with ProcessPoolExecutor(asked.workers) as pool:
        jobs = [
            pool.submit(serve, pair, asked.traces, size, asked.requests, asked.speedup)
            for size in reversed(SIZES)
            for pair in chosen
            if pair not in missing
        ]
        for job in as_completed(jobs):
            cell = job.result()
            cells[cell["pair"], cell["size"]] = cell
            print(f"  {cell['pair']} · {cell['size']}: {cell.get('seconds', 0):.0f} s", flush=True)
            if asked.json:
                asked.json.write_text(json.dumps(list(cells.values())))
    order = [cells[p.name, size] for p in chosen if p not in missing for size in SIZES]
    print("\n".join(markdown(order)))


if __name__ == "__main__":
    main()
