"""`bandscope top --serve`: what is started, who may connect, and what is said when it cannot be."""

from __future__ import annotations

import asyncio
import builtins
import shlex
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from bandscope.allocator.errors import ConfigError
from bandscope.tui import main as program
from bandscope.tui.top import serving
from bandscope.tui.top.serving import comes_from_here, command_of, make_server, options_of
from tests.allocator.arenas import P3
from tests.inspect_.traces import record

pytestmark = pytest.mark.usefixtures("plain_surroundings")


def called(*arguments: object) -> int:
    """The exit status of the program."""
    with pytest.raises(SystemExit) as exited:
        program.main(["top", *map(str, arguments)])
    assert isinstance(exited.value.code, int)
    return exited.value.code


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return record(tmp_path / "a run; with 'signs'", P3, operations=20).path


def test_what_a_window_starts_is_the_same_screen(
    monkeypatch: pytest.MonkeyPatch, trace: Path
) -> None:
    """The same trace and options, safe from the shell, without --serve."""
    asked: list[tuple[list[str], str, int]] = []
    monkeypatch.setattr(serving, "serve", lambda *told: asked.append(told))
    given = ["--theme", "light", "--at", "12", "--refresh", "0.5", "--ascii"]
    with pytest.raises(SystemExit) as exited:
        program.main(["top", str(trace), "--serve", "--port", "9001", *given])
    assert exited.value.code == 0
    ((arguments, host, port),) = asked
    assert (host, port) == ("localhost", 9001)
    words = shlex.split(command_of(arguments))
    assert words[0] == sys.executable and words[3:5] == ["top", str(trace)]
    assert sorted(words[5:]) == sorted(given)


def test_options_that_were_not_given_are_left_to_the_settings() -> None:
    assert options_of(None, None, None, {"--theme": None, "--at": None}) == []
    assert options_of(None, False, None, {}) == ["--unicode"]


def test_a_missing_extra_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    real = builtins.__import__

    def lacking(name: str, *rest: Any) -> Any:
        if name.startswith("textual_serve"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", lacking)
    assert called(trace, "--serve") == 2
    said = capsys.readouterr().err
    assert "bandscope[serve]" in said and said.count("\n") == 1


def test_a_trace_that_is_none_is_not_served(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert called(tmp_path / "nothing", "--serve") == 2
    assert "nothing" in capsys.readouterr().err


@pytest.mark.parametrize(("origin", "asked", "host", "allowed"), [
    ("http://localhost:8000", "localhost:8000", "localhost", True),
    ("http://127.0.0.1:8000", "127.0.0.1:8000", "127.0.0.1", True),
    ("http://localhost:8000", "localhost:8000", "127.0.0.1", True),
    ("http://evil.example", "localhost:8000", "localhost", False),
    ("http://localhost:9999", "localhost:8000", "localhost", False),
    ("http://evil.example:8000", "evil.example:8000", "localhost", False),
    ("null", "localhost:8000", "localhost", False),
    (None, "localhost:8000", "localhost", False),
    ("http://localhost:8000", None, "localhost", False),
    ("http://machine:8000", "machine:8000", "0.0.0.0", True),
    ("http://evil.example", "machine:8000", "0.0.0.0", False),
])  # fmt: skip
def test_only_its_own_pages_may_connect(
    origin: str | None, asked: str | None, host: str, allowed: bool
) -> None:
    assert comes_from_here(origin, asked, host) is allowed


def test_the_page_and_the_door(trace: Path) -> None:
    """The page is given out; a foreign page gets no screen, and no process is started for it."""
    pytest.importorskip("textual_serve")
    from aiohttp import ClientSession
    from aiohttp.test_utils import TestServer

    started: list[str] = []

    async def script() -> None:
        server = make_server([str(trace)], "localhost", 8000)
        server.command = "false"
        async with TestServer(await server._make_app()) as at, ClientSession() as client:
            async with client.get(at.make_url("/")) as page:
                assert page.status == 200 and "bandscope top" in await page.text()
            headers = {"Origin": "http://evil.example"}
            async with client.get(at.make_url("/ws"), headers=headers) as refused:
                assert refused.status == 403
            own = f"http://127.0.0.1:{at.port}"
            async with client.ws_connect(at.make_url("/ws"), headers={"Origin": own}):
                started.append(own)

    asyncio.run(script())
    assert len(started) == 1


def test_a_port_that_is_taken(trace: Path) -> None:
    pytest.importorskip("textual_serve")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 cannot be used"):
            serving.serve([str(trace)], "127.0.0.1", port)
