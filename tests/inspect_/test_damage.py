"""Every cut and every flipped bit of a trace: nothing is raised, the damage is named, the rest reads."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.inspect_.damaging import Bench, make_clean

MEMORY = Path("/dev/shm")
TINY = {"operations": 40, "keyframe_every": 30}
# What a trace may be before it is damaged.
TRACES: dict[str, dict[str, Any]] = {
    "two segments": {},
    "tiny": TINY,
    "not closed": {**TINY, "close": False},
    "two segments, sealed": {"sealed": True},
    "sealed and tiny": {**TINY, "sealed": True},
}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """In memory, where there is such a place: thousands of files are written."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def benches(folder: Path) -> dict[str, Bench]:
    result = {}
    for name, options in TRACES.items():
        own = folder / name
        own.mkdir()
        result[name] = Bench(make_clean(own, **options), own)
    return result


def sizes(bench: Bench) -> Iterator[tuple[str, int]]:
    """The files and the bytes of each that hold something (and some more of one that is not closed)."""
    for name, data in bench.clean.files.items():
        yield name, min(len(data), len(data.rstrip(b"\0")) + 70)


@pytest.mark.parametrize("name", ["tiny", "sealed and tiny"])
def test_every_cut_at_the_end_and_a_sample_of_the_others(
    benches: dict[str, Bench], name: str
) -> None:
    for file, size in sizes(benches[name]):
        for cut in (*range(0, size, 37), *range(max(0, size - 300), size)):
            benches[name].check_cut(file, cut)


@pytest.mark.parametrize(
    ("name", "flips"), [("two segments", 450), ("tiny", 1400), ("two segments, sealed", 250)]
)
def test_a_sample_of_flipped_bits(benches: dict[str, Bench], name: str, flips: int) -> None:
    rng = random.Random(1)
    places = list(sizes(benches[name]))
    for _ in range(flips):
        file, size = rng.choice(places)
        benches[name].check_flip(file, rng.randrange(8 * size))


@pytest.mark.parametrize("name", TRACES)
def test_every_bit_of_the_heads_and_of_the_last_block(benches: dict[str, Bench], name: str) -> None:
    for file, size in sizes(benches[name]):
        for bit in (*range(0, 8 * 64, 17), *range(8 * (size - 64), 8 * size, 17)):
            benches[name].check_flip(file, bit)


@pytest.mark.parametrize("name", TRACES)
def test_a_file_that_is_gone(benches: dict[str, Bench], name: str) -> None:
    for file in benches[name].clean.files:
        benches[name].check_missing(file)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACES)
def test_every_single_cut(benches: dict[str, Bench], name: str) -> None:
    for file, size in sizes(benches[name]):
        for cut in range(size):
            benches[name].check_cut(file, cut)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "step"), [(n, 1 if "two" not in n else 19) for n in TRACES])
def test_every_single_flipped_bit(benches: dict[str, Bench], name: str, step: int) -> None:
    for file, size in sizes(benches[name]):
        for bit in range(0, 8 * size, step):
            benches[name].check_flip(file, bit)
