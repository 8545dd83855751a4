"""Devices do what they are asked, byte for byte, and say in one sentence what they cannot do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from bandscope.allocator.arena import Arena
from bandscope.allocator.device import cpu, open_device
from bandscope.allocator.device.cpu import CpuDevice
from bandscope.allocator.device.protocol import Device
from bandscope.allocator.errors import DeviceError, MisuseError
from bandscope.allocator.plan import plan_from_sizes
from tests.allocator.arenas import LAYOUTS, RandomEngine, small_arena

GPU = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ],
)
TOTAL_BYTES = 10_240
PAGE_BYTES = [24, 12, 1000]  # of 8-byte words, of 4-byte words, and large


@pytest.fixture(params=["cpu", GPU])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    opened = open_device(request.param)
    opened.allocate(TOTAL_BYTES, PAGE_BYTES, [50, 60, 5])
    yield opened
    opened.synchronize()


def bytes_of(device: Device) -> np.ndarray:
    assert device.buffer is not None
    device.synchronize()
    result: np.ndarray = device.buffer.cpu().numpy()
    return result


def set_bytes(device: Device, content: np.ndarray) -> None:
    assert device.buffer is not None
    device.synchronize()
    device.buffer.copy_(torch.from_numpy(content))
    device.synchronize()


def mirror(device: Device, band: int) -> list[int]:
    rows = device.mirror(band)
    assert rows is not None
    device.synchronize()
    result: list[int] = rows.cpu().tolist()
    return result


def inverse_mirror(device: Device, band: int) -> list[int]:
    rows = device.inverse_mirror(band)
    assert rows is not None
    device.synchronize()
    result: list[int] = rows.cpu().tolist()
    return result


def assert_mirrors_equal_the_books(arena: Arena) -> None:
    """Both tables of every band, row by row; hence they are inverse of each other."""
    for band in arena.books.bands:
        places = band.table.place_of
        expected = np.where(places >= 0, band.physical(places), -1)
        assert mirror(arena.device, band.index) == expected.tolist()
        virtual = band.table.virtual_at
        inverse = np.full(arena.total_bytes // band.page_bytes, -1)
        inverse[band.physical(np.arange(virtual.size))] = virtual
        assert inverse_mirror(arena.device, band.index) == inverse.tolist()


def test_memory_starts_zeroed_and_tables_unmapped(device: Device) -> None:
    """A fresh arena shows nothing of whoever had the memory before."""
    assert device.host_waits == 0
    assert bytes_of(device).tolist() == [0] * TOTAL_BYTES
    assert [mirror(device, band) for band in range(3)] == [[-1] * 50, [-1] * 60, [-1] * 5]
    pages = [TOTAL_BYTES // size for size in PAGE_BYTES]
    assert [inverse_mirror(device, band) for band in range(3)] == [[-1] * count for count in pages]


@pytest.mark.parametrize("band", [0, 1, 2])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("call", ["move", "copy"])
def test_moves_copy_whole_pages_and_nothing_else(
    device: Device, band: int, share: float, call: str
) -> None:
    """Random disjoint batches, shuffled, from none to half of all pages, against NumPy."""
    rng = np.random.default_rng([band, int(share * 10)])
    content = rng.integers(0, 256, TOTAL_BYTES, dtype=np.uint8)
    size = PAGE_BYTES[band]
    pages = rng.permutation(TOTAL_BYTES // size)
    count = int(share * pages.size)
    sources, destinations = pages[:count], pages[count : 2 * count]
    set_bytes(device, content)
    expected = content.copy()
    for source, target in zip(sources, destinations, strict=True):
        expected[target * size : (target + 1) * size] = content[source * size : (source + 1) * size]
    getattr(device, call)(band, sources, destinations)

    assert (bytes_of(device) == expected).all()


@pytest.mark.parametrize("band", [0, 1, 2])
@pytest.mark.parametrize("value", [0, 0x5A, 0x7F, 0x80, 0xFF])
def test_fills_set_every_byte_of_their_pages(device: Device, band: int, value: int) -> None:
    """First and last page included; neighbours keep theirs."""
    content = np.random.default_rng(band).integers(0, 256, TOTAL_BYTES, dtype=np.uint8)
    size = PAGE_BYTES[band]
    last = TOTAL_BYTES // size - 1
    pages = np.array([last, 0, last // 2])
    set_bytes(device, content)
    expected = content.copy()
    for page in pages:
        expected[page * size : (page + 1) * size] = value
    device.fill(band, pages, value)
    device.fill(band, pages[:0], 1)

    assert (bytes_of(device) == expected).all()


def test_publishing_writes_the_rows_it_names(device: Device) -> None:
    """Later rows replace earlier ones; other rows and other bands keep theirs."""
    device.publish(0, np.array([3, 49, 0, 7]), np.array([30, 49, -1, 8]))
    device.publish(0, np.array([3, 4, 7, 6]), np.array([-1, 425, 30, 8]))
    device.publish(2, np.array([], np.int64), np.array([], np.int64))
    expected = [-1] * 50
    expected[49], expected[4], expected[7], expected[6] = 49, 425, 30, 8
    inverse = [-1] * 426
    inverse[49], inverse[425], inverse[30], inverse[8] = 49, 4, 7, 6

    assert mirror(device, 0) == expected
    assert mirror(device, 1) == [-1] * 60
    assert mirror(device, 2) == [-1] * 5
    assert inverse_mirror(device, 0) == inverse
    assert set(inverse_mirror(device, 1) + inverse_mirror(device, 2)) == {-1}


def test_arguments_may_be_reused_after_the_call(device: Device) -> None:
    """The device has copied the page numbers when a call returns."""
    sources, targets = np.array([1, 2]), np.array([3, 4])
    content = np.arange(TOTAL_BYTES).astype(np.uint8)
    set_bytes(device, content)
    device.move(2, sources, targets)
    sources[:], targets[:] = 5, 6

    assert (bytes_of(device)[3000:5000] == content[1000:3000]).all()
    assert (bytes_of(device)[6000:7000] == content[6000:7000]).all()


def test_a_forward_is_launched_run_and_completed(device: Device) -> None:
    """Work of a forward sees what was issued before it; then its ticket is complete."""
    device.fill(2, np.array([2]), 9)
    device.launch(1)
    assert device.buffer is not None
    with device.forward(1):
        device.buffer[3000:4000] = device.buffer[2000:3000]
    device.order_behind_reads(1)
    device.order_behind(1)
    device.fill(2, np.array([2]), 1)
    device.wait(1)

    assert device.is_complete(1)
    assert (bytes_of(device)[3000:4000] == 9).all()
    assert (bytes_of(device)[2000:3000] == 1).all()


def test_batches_larger_than_the_staging_buffer_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A move of many staging buffers, the last one partly filled, loses no page."""
    monkeypatch.setattr(cpu, "_STAGING_BYTES", 100)
    for size in (7, 24, 1000):
        device = CpuDevice()
        device.allocate(TOTAL_BYTES, [size], [1])
        content = np.random.default_rng(size).integers(0, 256, TOTAL_BYTES, dtype=np.uint8)
        set_bytes(device, content)
        half = TOTAL_BYTES // size // 2
        device.move(0, np.arange(half), np.arange(half, 2 * half))

        found = bytes_of(device)
        assert (found[half * size : 2 * half * size] == content[: half * size]).all()
        assert (found[: half * size] == content[: half * size]).all()
        assert (found[2 * half * size :] == content[2 * half * size :]).all()


@pytest.mark.parametrize("name", ["cpu", GPU])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_mirrors_equal_the_books_after_a_launch(layout: str, name: str) -> None:
    """Random operations on a real device: each launch finds every row of both tables up to date,
    restored states included."""
    for seed in range(8 if name == "cpu" else 2):
        rng = random.Random(f"mirror/{layout}/{seed}")
        arena = small_arena(LAYOUTS[layout], page_size=2, device=name, compact_hole_share=0.0)
        engine = RandomEngine(rng)
        states: list[dict[str, Any]] = []
        waits = 0
        for _ in range(8):
            for _ in range(rng.choice([1, 5, 20])):
                engine.step(arena)
            engine.tickets.append(arena.launch(engine.running))
            assert arena.device.host_waits == waits
            assert_mirrors_equal_the_books(arena)
            states.append(arena.snapshot())
            waits = arena.device.host_waits  # reading the mirrors waited, the arena did not
        for state in rng.sample(states, 3):
            arena.restore(state)
            assert_mirrors_equal_the_books(arena)


def test_an_arena_beyond_the_hosts_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is allocated, with both figures and what to do, in one sentence."""
    monkeypatch.setattr(cpu, "available_host_bytes", lambda: 4095)
    plan = plan_from_sizes([("mamba", 256), ("full", 256)])

    with pytest.raises(DeviceError) as raised:
        Arena(plan, 4096, device="cpu")
    message = str(raised.value)
    assert message.startswith("an arena of 4,096 bytes was asked for on the CPU, but 4,095 bytes")
    assert message.endswith("or use --device none to keep the books only")
    assert "\n" not in message
    assert Arena(plan, 3840, device="cpu").buffer.numel() == 3840
    monkeypatch.setattr(cpu, "available_host_bytes", lambda: None)
    assert Arena(plan, 4096, device="cpu").buffer.numel() == 4096


def test_a_petabyte_is_refused_on_the_cpu_and_planned_without_a_device() -> None:
    """The books of an arena of any size fit; its bytes need not."""
    plan = plan_from_sizes([("mamba", 1 << 40), ("full", 1 << 34)])

    with pytest.raises(DeviceError, match="asked for on the CPU"):
        Arena(plan, 1 << 50, device="cpu")
    arena = Arena(plan, 1 << 50, device="none")
    assert arena.admit(0).ok and arena.extend(0, 10).ok
    assert arena.check() == []


def test_no_device_keeps_books_and_does_nothing() -> None:
    """Every call is accepted, there are no bytes and no mirror, and work is complete at once."""
    device = open_device("none")
    device.allocate(1 << 50, [1 << 30], [4])
    device.move(0, np.array([1]), np.array([2]))
    device.fill(0, np.array([1]), 0)
    device.publish(0, np.array([1]), np.array([1]))
    device.launch(1)
    with device.forward(1):
        pass
    device.order_behind(1)
    device.order_behind_reads(1)
    device.wait(1)
    device.synchronize()

    assert (device.name, device.buffer) == ("none", None)
    assert device.mirror(0) is None and device.inverse_mirror(0) is None
    assert device.is_complete(1)
    assert device.host_waits == 0


@pytest.mark.parametrize("name", ["", "gpu", "CPU", "cuda:0"])
def test_an_unknown_device_is_refused_with_the_names(name: str) -> None:
    """The message repeats the name and lists the devices there are."""
    with pytest.raises(DeviceError) as raised:
        open_device(name)

    assert str(raised.value) == (
        f"device {name!r} was asked for, but the devices are auto, cpu, cuda, none"
    )


def test_a_missing_gpu_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for CUDA without one says how to find out why; `auto` takes the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    with pytest.raises(DeviceError) as raised:
        open_device("cuda")
    assert str(raised.value) == (
        "the CUDA device was asked for, but torch sees no GPU; run `bandscope doctor` to see why, "
        "or use --device cpu"
    )
    assert open_device("auto").name == "cpu"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("busy", [False, True])
def test_uploads_of_every_size_arrive_whole(busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists that fill, overflow and outrun the upload buffer, also while a stream that is busy keeps
    every copy waiting, arrive as they were when they were sent."""
    from bandscope.allocator.device import cuda

    monkeypatch.setattr(cuda, "_UPLOAD_NUMBERS", 256)
    device = cuda.CudaDevice()
    device.allocate(1 << 20, [256], [4096])
    rng = np.random.default_rng(busy)
    expected = np.full(4096, -1)
    waits = device.host_waits
    if busy:
        with torch.cuda.stream(device.schedule):
            torch.cuda._sleep(200_000_000)
    for size in (0, 1, 31, 32, 33, 64, 128, 129, 500, 1, 64, 64, 64, 64, 1, 2, 3, 96, 40, 40, 40):
        virtual = rng.permutation(4096)[:size]
        free = np.setdiff1d(np.arange(4096), np.setdiff1d(expected, expected[virtual]))
        physical = rng.permutation(free)[:size]
        expected[virtual] = physical
        device.publish(0, virtual, physical)
        virtual[:], physical[:] = 7, 7

    assert device.host_waits == waits
    assert mirror(device, 0) == expected.tolist()
    inverse = np.full(4096, -1)
    inverse[expected[expected >= 0]] = np.flatnonzero(expected >= 0)
    assert inverse_mirror(device, 0) == inverse.tolist()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_streams_are_three_and_apart() -> None:
    """Scheduling, forwards and copies never share a stream, nor use the default one."""
    from bandscope.allocator.device.cuda import CudaDevice

    device = CudaDevice()
    streams = {stream.cuda_stream for stream in (device.schedule, device.forwards, device.copies)}

    assert len(streams) == 3
    assert torch.cuda.default_stream().cuda_stream not in streams


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_an_arena_beyond_the_gpus_memory_is_refused() -> None:
    """One byte more than is free is refused, before anything is allocated."""
    device = open_device("cuda")
    total = torch.cuda.get_device_properties(0).total_memory + 1

    with pytest.raises(DeviceError, match="bytes are free there; make --arena-bytes smaller"):
        device.allocate(total, [1024], [1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_barrier_holds_a_write_back_until_the_forward_has_read() -> None:
    """A slow forward reads a page; a fill ordered behind it, issued at once, does not overtake."""
    device = open_device("cuda")
    device.allocate(1 << 20, [1 << 10], [4])
    device.fill(0, np.array([5]), 3)
    device.launch(1)
    assert device.buffer is not None
    with device.forward(1):
        torch.cuda._sleep(200_000_000)
        seen = device.buffer[5 << 10 : 6 << 10].clone()
    device.order_behind(1)
    device.fill(0, np.array([5]), 4)
    assert not device.is_complete(1)
    device.synchronize()

    assert device.is_complete(1)
    assert (seen.cpu() == 3).all()
    assert (device.buffer[5 << 10 : 6 << 10].cpu() == 4).all()


def test_tokens_are_translated_by_the_mirror(device: Device) -> None:
    """Mapped ids get their row; negative and unmapped ones row 0, and are counted."""
    device.publish(0, np.array([3, 7]), np.array([30, 12]))
    device.synchronize()
    where = device.mirror(0)
    assert where is not None
    tokens = torch.tensor([12, 13, 15, 28, -1, 16], device=where.device)
    rows = device.translate(0, tokens, 4)

    assert rows.tolist() == [120, 121, 123, 48, 0, 0]
    assert device.unmapped_tokens() == 2


@pytest.mark.parametrize("name", ["cpu", GPU])
def test_an_arena_translates_what_a_request_holds_and_refuses_the_rest(name: str) -> None:
    """Virtual ids stay the same while pages move; trimmed and released ids are refused in debug."""
    arena = small_arena(LAYOUTS["P3"], device=name, debug=True)
    for request in range(3):
        arena.admit(request)
        arena.extend(request, 14)
    ids = torch.from_numpy(arena.token_ids(2)).to(arena.buffer.device)
    arena.release(0)
    arena.release(1)
    arena.compact(urgent=True)
    arena.launch([2])

    assert ids.tolist() == arena.token_ids(2).tolist()
    pages, _ = arena.pages_of(2, "full")
    expected = [int(pages[token // 4]) * 4 + token % 4 for token in range(14)]
    assert arena.translate("full", ids).tolist() == expected
    arena.trim_window([2])
    arena.launch([2])
    with pytest.raises(MisuseError, match="not mapped in band window_8"):
        arena.translate("window_8", ids)
    arena.release(2)
    arena.launch([])
    with pytest.raises(MisuseError, match="14 of 14 token ids are not mapped in band full"):
        arena.translate("full", ids)
