"""A whole arena on a GPU: no call waits for the device, and the bytes are those of the CPU."""

from __future__ import annotations

import random

import pytest
import torch

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from tests.allocator.arenas import LAYOUTS, small_arena

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def random_operations(name: str, count: int) -> list[ops.Operation]:
    """Operations that a small arena mostly serves, in an order that fragments it."""
    generator = random.Random(name)
    running: list[int] = []
    chosen: list[ops.Operation] = []
    for number in range(count):
        roll = generator.random()
        if roll < 0.25 or not running:
            chosen.append(ops.Admit(number))
            running.append(number)
        elif roll < 0.5:
            chosen.append(ops.Extend(generator.choice(running), generator.randint(1, 9)))
        elif roll < 0.65:
            chosen.append(ops.Decode((generator.choice(running),)))
        elif roll < 0.75:
            chosen.append(ops.TrimWindow((generator.choice(running),)))
        elif roll < 0.9:
            chosen.append(ops.Release(running.pop(generator.randrange(len(running)))))
        else:
            chosen.append(ops.Compact(urgent=generator.random() < 0.5))
    return chosen


def serve(arena: Arena, operations: list[ops.Operation]) -> None:
    """Apply all; after each, a forward writes a byte of their own into every page of one request."""
    for number, operation in enumerate(operations):
        arena.apply(operation)
        for request in list(arena.books.ledger.row_of)[:1]:
            ticket = arena.launch([request])
            with arena.device.forward(ticket):
                for band in arena.plan.bands:
                    pages, _ = arena.pages_of(request, band.name)
                    size = band.page_bytes
                    for page in pages.tolist():
                        arena.buffer[page * size : (page + 1) * size].fill_(number % 251)
            arena.device.wait(ticket)
            arena.complete(ticket)


def live_bytes(arena: Arena) -> dict[tuple[int, str], bytes]:
    """The content of every request in every band."""
    arena.device.synchronize()
    content = {}
    for request in arena.books.ledger.row_of:
        for band in arena.plan.bands:
            pages, _ = arena.pages_of(request, band.name)
            table = arena.buffer[: arena.total_bytes // band.page_bytes * band.page_bytes]
            rows = table.view(-1, band.page_bytes)[torch.from_numpy(pages).to(table.device)]
            content[request, band.name] = rows.cpu().numpy().tobytes()
    return content


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_same_operations_give_the_same_bytes_as_on_the_cpu(name: str) -> None:
    """Digest and content agree after hundreds of operations with moves and reused pages."""
    operations = random_operations(name, 250)
    arenas = [small_arena(LAYOUTS[name], device=device) for device in ("cpu", "cuda")]
    for arena in arenas:
        serve(arena, operations)

    assert arenas[0].digest() == arenas[1].digest()
    assert live_bytes(arenas[0]) == live_bytes(arenas[1])
    assert arenas[1].check() == []


def test_no_allocator_call_waits_for_the_device() -> None:
    """With torch set to raise on any implicit synchronisation, and with its own counter."""
    arena = small_arena(LAYOUTS["P3"], device="cuda")
    arena.device.synchronize()
    waits = arena.device.host_waits
    torch.cuda.set_sync_debug_mode("error")
    try:
        for operation in random_operations("no waits", 400):
            arena.apply(operation)
            running = list(arena.books.ledger.row_of)[:3]
            ticket = arena.launch(running)
            with arena.device.forward(ticket):
                pass
            if ticket % 3:
                arena.complete(ticket)
        arena.compact(urgent=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert arena.device.host_waits == waits


def test_streams_are_never_the_same() -> None:
    """Schedule, forward and copy streams have handles of their own."""
    device = small_arena(LAYOUTS["P2w"], device="cuda").device
    handles = {stream.cuda_stream for stream in (device.schedule, device.forwards, device.copies)}  # type: ignore[attr-defined]

    assert len(handles) == 3
