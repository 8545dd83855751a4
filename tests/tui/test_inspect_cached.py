"""`bandscope inspect` and `bandscope replay` on traces of arenas with a prefix cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bandscope.tui import main as program
from tests.allocator.arenas import P3
from tests.inspect_.cached import record_cached
from tests.inspect_.traces import record

Call = Callable[..., str]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One with a cache, and one without."""
    folder = tmp_path_factory.mktemp("cached")
    with_cache: Path = record_cached(folder / "run", "P3", seed=3, operations=500).path
    return with_cache, record(folder / "plain", P3, seed=3, operations=200).path


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs the program; returns what it printed."""

    def run(*arguments: object) -> str:
        monkeypatch.setenv("COLUMNS", "160")
        monkeypatch.setattr("sys.argv", ["bandscope", *map(str, arguments)])
        with pytest.raises(SystemExit):
            program.main()
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("stats",), ("PublishPrefix", "evicted", "prefix cache", "pages shared", "pages evicted for")),
        (("stats",), ("grafted",)),
        (("at", "end"), ("of these cached", "shared")),
        (("leaks",), ("Pages of the prefix cache",)),
    ],
)
def test_the_cache_is_told_where_there_is_one(
    traces: tuple[Path, Path], call: Call, command: tuple[str, ...], said: tuple[str, ...]
) -> None:
    name, *more = command
    with_cache, plain = (call("inspect", name, trace, *more) for trace in traces)
    for words in said:
        assert words in " ".join(with_cache.split()), words
        assert words not in " ".join(plain.split()), words
    assert "request -2" not in with_cache


def test_other_orders_of_eviction_in_a_table(traces: tuple[Path, Path], call: Call) -> None:
    asked = ("replay", traces[0], "--mode", "what-if", "--evict", "joint_lru")
    text = " ".join(call(*asked).split())
    assert "joint_lru" in text and all(word in text for word in ("hit", "evicted", "stalls"))
    rows = json.loads(call(*asked, "--json"))
    assert "hit_tokens" in json.dumps(rows)
    without = call("replay", traces[1], "--mode", "what-if", "--max-moves", "1")
    assert "evicted" not in without and "stalls" not in without
