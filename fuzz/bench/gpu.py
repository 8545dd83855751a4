"""The arena on a GPU: absolute figures, whole calls included, against the targets of the design.

Copies move random bytes, page lists are drawn afresh, and the device-to-device copy that ratios refer
to is measured in the same run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.device import kernels
from bandscope.allocator.plan import plan_from_sizes
from bandscope.fuzz.bench.books import PAGE_BYTES, pushed_float
from bandscope.fuzz.bench.rows import Row, median_seconds

GIB = 1 << 30
MOVED_BYTES = 4 * GIB
# Page sizes and the share of copy bandwidth to reach; the last is a recurrent-state slot.
MOVE_TARGETS = (
    (1024, 92.0), (4096, 95.0), (24_576, 95.0), (65_536, 95.0), (98_304, 95.0),
    (1 << 20, 97.0), (77_266_944, 97.0),
)  # fmt: skip


def rows() -> Iterator[Row]:
    """Every row, as it is measured."""
    copy_rate = copy_bytes_per_second()
    yield Row("device-to-device copy, read + write", copy_rate / 1e12, "TB/s")
    yield from page_moves(copy_rate)
    for extent in (4096, 32_768, 131_072, 1 << 20):
        yield urgent_compaction(extent, copy_rate)
    yield float_relocation(copy_rate)
    yield from allocate_and_free()
    yield from publish_and_barrier()
    yield from overlap()


def device_seconds(call: Callable[[], object], repeats: int = 9) -> float:
    """Median device time of `call` on the current stream, between two events."""
    call()
    samples = []
    for _ in range(repeats):
        start = torch.cuda.Event(enable_timing=True)
        stop = torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        stop.record()
        stop.synchronize()
        samples.append(float(start.elapsed_time(stop)) / 1e3)
    return statistics.median(samples)


def copy_bytes_per_second() -> float:
    """Bytes read plus written per second by torch's own copy of 4 GiB of random bytes."""
    source = torch.empty(MOVED_BYTES // 8, dtype=torch.int64, device="cuda").random_()
    target = torch.empty_like(source)
    seconds = device_seconds(lambda: target.copy_(source))
    return 2 * MOVED_BYTES / seconds


def page_moves(copy_rate: float) -> Iterator[Row]:
    """The move kernel on 4 GiB of pages of every size: as a compaction lists them (random places,
    sources above destinations, both ascending) and in random order."""
    words = torch.empty(9 * GIB // 8, dtype=torch.int64, device="cuda").random_()
    generator = torch.Generator().manual_seed(0)
    for page_bytes, target in MOVE_TARGETS:
        pages = words.numel() * 8 // page_bytes
        count = min(pages // 2, MOVED_BYTES // page_bytes)
        drawn = torch.randperm(pages, generator=generator)[: 2 * count]
        ordered = drawn.sort().values
        for name, sources, destinations, goal in (
            ("a compaction's order", ordered[count:], ordered[:count], target),
            ("random order", drawn[:count], drawn[count:], None),
        ):
            from_pages, to_pages = sources.cuda(), destinations.cuda()
            seconds = device_seconds(
                lambda: kernels.move_pages(words, from_pages, to_pages, page_bytes)  # noqa: B023
            )
            table = words[: pages * page_bytes // 8].view(pages, -1)
            sample = torch.randint(0, count, (64,), device="cuda")
            assert torch.equal(table[from_pages[sample]], table[to_pages[sample]])
            words[: 1 << 20].random_()
            share = 100 * 2 * count * page_bytes / seconds / copy_rate
            yield Row(
                f"move {count:,} pages of {page_bytes:,} bytes, {name}",
                share,
                "% of copy",
                goal,
                at_least=True,
            )


def urgent_compaction(extent: int, copy_rate: float) -> Row:
    """An extent of `extent` pages of 1 KiB, half of them random holes, packed by one urgent call;
    clocked from the call until the device is done."""
    plan = plan_from_sizes([("window_128", PAGE_BYTES), ("full", PAGE_BYTES)])
    config = ArenaConfig(hand_out="none")
    arena = Arena(plan, (2 * extent + 4096) * PAGE_BYTES, device="cuda", config=config)
    arena.buffer.random_()
    generator = np.random.default_rng(extent)
    books = arena.books
    band = books.bands[books.full]
    moved = 0

    def scatter() -> None:
        """Half of a full extent, at random places (built in the books; bytes are what they are)."""
        for known in (*books.bands,):
            held = known.live_between(known.low, known.high)
            if held.size:
                virtual = known.table.unbind(known.table.virtual_at[held])
                del virtual
                known.drop(held, pending=False)
                known.absorb()
        places = band.take(extent, 0, extent)
        keep = np.sort(generator.permutation(extent)[: extent // 2])
        band.table.bind(np.arange(keep.size), places[keep])
        band.drop(np.setdiff1d(places, places[keep]), pending=False)
        band.absorb()
        torch.cuda.synchronize()

    def pack() -> None:
        nonlocal moved
        moved = arena.compact(urgent=True)
        torch.cuda.synchronize()

    seconds = median_seconds(pack, 15, before=scatter)
    copying = 2 * moved * PAGE_BYTES / copy_rate
    return Row(
        f"urgent compaction, extent of {extent:,} pages of 1 KiB, half holes ({moved:,} moves)",
        seconds * 1e3,
        "ms",
        1.0 if extent == 131_072 else None,
        note=f"pure copy {copying * 1e3:.3f} ms",
    )


def float_relocation(copy_rate: float) -> Row:
    """A float of 98,304 live pages moved half-way because the low end needs the bytes."""
    samples, moved = [], 0
    for attempt in range(7):
        arena, demand = pushed_float("cuda")
        arena.buffer.random_()
        before = arena.books.bands[1].low
        torch.cuda.synchronize()
        started = time.perf_counter()
        arena.books.make_room(demand)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        assert arena.books.bands[1].low > before
        moved = 49_460
        if attempt:
            samples.append(seconds)
        del arena
    copying = 2 * moved * PAGE_BYTES / copy_rate
    seconds = statistics.median(samples)
    return Row(
        "relocate a float of 98,304 live pages half-way, less pure copy time",
        (seconds - copying) * 1e3,
        "ms",
        1.0,
        note=f"whole call {seconds * 1e3:.3f} ms, pure copy {copying * 1e3:.3f} ms",
    )


def allocate_and_free() -> Iterator[Row]:
    """Call to return of taking and dropping pages of one request, hand-out zeroing included."""
    plan = plan_from_sizes([("mamba", 4096), ("full", 4096)])
    arena = Arena(plan, 2 * GIB, device="cuda")
    numbers = iter(range(1_000_000))
    running: list[int] = []

    def arrive() -> None:
        running.append(next(numbers))
        arena.admit(running[-1], state_slots=0)

    for count, allocate_target, free_target in ((1, None, None), (256, 30.0, 20.0), (4096, None, None)):
        allocating = median_seconds(
            lambda: arena.extend(running[-1], count),  # noqa: B023
            100,
            before=arrive,
            after=torch.cuda.synchronize,
        )
        freeing = median_seconds(
            lambda: arena.release(running.pop()), 100, after=torch.cuda.synchronize
        )
        yield Row(f"allocate {count:,} pages, call to return", allocating * 1e6, "µs", allocate_target)
        yield Row(f"free {count:,} pages, call to return", freeing * 1e6, "µs", free_target)
        while running:
            arena.release(running.pop())
    yield Row("host waits for the device in all of these calls", arena.device.host_waits, "", 0.0)


def publish_and_barrier() -> Iterator[Row]:
    """Launch with 256 changed table rows, and an urgent ordering behind launched work."""
    plan = plan_from_sizes([("window_128", 4096), ("full", 4096)])
    arena = Arena(plan, 2 * GIB, device="cuda")
    requests = list(range(256))
    for request in requests:
        arena.admit(request)
        arena.extend(request, 100)
    ticket = arena.launch(requests)

    def decode() -> None:
        nonlocal ticket
        with arena.device.forward(ticket):
            pass
        arena.complete(ticket)
        arena.decode(requests)
        torch.cuda.synchronize()

    def launch() -> None:
        nonlocal ticket
        ticket = arena.launch(requests)

    seconds = median_seconds(launch, 50, before=decode)
    yield Row("launch with 256 new pages in two bands (publish both tables)", seconds * 1e6, "µs")

    def relaunch() -> None:
        decode()
        launch()

    settling = median_seconds(lambda: arena.books.settle("bench"), 50, before=relaunch)
    yield Row("barrier behind launched work, call to return", settling * 1e6, "µs")


def overlap() -> Iterator[Row]:
    """A forward of some milliseconds alone, and with an urgent-size batch of moves beside it."""
    plan = plan_from_sizes([("window_128", PAGE_BYTES), ("full", PAGE_BYTES)])
    arena = Arena(plan, GIB, device="cuda", config=ArenaConfig(hand_out="none"))
    device = arena.device
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    generator = np.random.default_rng(0)
    pages = generator.permutation(1 << 19)[: 1 << 17]
    sources, destinations = np.sort(pages[: 1 << 16]), np.sort(pages[1 << 16 :])

    def run(with_moves: bool) -> None:
        ticket = arena.launch([])
        with device.forward(ticket):
            for _ in range(4):
                torch.mm(matrix, matrix)
        if with_moves:
            device.move(arena.books.full, sources + 1, destinations + 1)
        torch.cuda.synchronize()
        arena.complete(ticket)

    alone = median_seconds(lambda: run(False), 11)
    both = median_seconds(lambda: run(True), 11)

    def moves_only() -> None:
        device.move(arena.books.full, sources + 1, destinations + 1)
        torch.cuda.synchronize()

    moving = median_seconds(moves_only, 11)
    yield Row("forward alone", alone * 1e3, "ms")
    yield Row("65,536 moves of 1 KiB alone", moving * 1e3, "ms")
    yield Row(
        "forward with the moves beside it, against one after the other",
        both / (alone + moving),
        "×",
        note=f"{both * 1e3:.3f} ms together",
    )
