"""The pytest plugin: arenas that are recorded and checked, and a test that fails when one is not right.

Loaded by every pytest run in an environment that has Bandscope, so it imports nothing until a test asks
for an arena: by the fixture `bandscope_arena`, or, with `--bandscope`, by building one itself.

Checked when the test's body is over: every invariant of the books and of the trace, every race, and that
nothing is held any more (`@pytest.mark.bandscope_allow_leak` says that this is meant). A test that
already failed stays failed for its own reason, and the report stands below it.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from bandscope.fuzz.pytest_session import ArenaFactory, TestSession

MARKER = "bandscope_allow_leak"
_MARKER_LINE = (
    f'{MARKER}(reason="", until="never"): pages may be held when the test ends; with '
    'until="teardown" everything is judged after the fixtures of the test are torn down'
)
_SESSION: pytest.StashKey[TestSession] = pytest.StashKey()
_WATCHER: pytest.StashKey[Any] = pytest.StashKey()
_UNTIL = ("never", "teardown")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--bandscope` and where artefacts go."""
    group = parser.getgroup("bandscope", "arenas that are recorded and checked")
    group.addoption(
        "--bandscope",
        action="store_true",
        help="record and check every arena that a test builds, not only those of bandscope_arena",
    )
    group.addoption(
        "--bandscope-artifacts",
        metavar="DIR",
        default=None,
        help="keep the trace and the report of every failed test here, in a folder per test",
    )


def pytest_configure(config: pytest.Config) -> None:
    """The marker; with `--bandscope`, the watch over every arena."""
    config.addinivalue_line("markers", _MARKER_LINE)
    if config.getoption("--bandscope"):
        from bandscope.fuzz.pytest_session import WatchEveryArena

        config.stash[_WATCHER] = watcher = WatchEveryArena()
        watcher.begin()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Let arenas be built as ever."""
    watcher = config.stash.get(_WATCHER, None)
    if watcher is not None:
        watcher.end()


@pytest.fixture
def bandscope_arena(request: pytest.FixtureRequest) -> Generator[ArenaFactory, None, None]:
    """A function that makes arenas which are recorded and checked; see `ArenaFactory`."""
    session = _session(request.node)
    yield session.factory
    if session.judged_at_teardown:
        problem = session.judge()
        if problem:
            pytest.fail(problem, pytrace=False)
    session.close()


def _session(item: pytest.Item) -> TestSession:
    session = item.stash.get(_SESSION, None)
    if session is None:
        from bandscope.fuzz.pytest_session import TestSession

        marker = item.get_closest_marker(MARKER)
        until = "never" if marker is None else marker.kwargs.get("until", "never")
        if until not in _UNTIL:
            pytest.fail(f"{MARKER} has until={until!r}; it is one of {', '.join(_UNTIL)}", pytrace=False)
        artifacts = item.config.getoption("--bandscope-artifacts")
        session = item.stash[_SESSION] = TestSession(
            folder=_scratch(item),
            artifacts=None if artifacts is None else _folder_of(Path(artifacts), item.nodeid),
            leak_allowed=marker is not None and until == "never",
            judged_at_teardown=until == "teardown",
        )
    return session


def _scratch(item: pytest.Item) -> Path:
    """A new folder among pytest's own temporary ones."""
    factory: pytest.TempPathFactory = item.config._tmp_path_factory  # type: ignore[attr-defined]
    return factory.mktemp("bandscope")


def _folder_of(artifacts: Path, nodeid: str) -> Path:
    """A folder for a test that no other test has, whatever its parameters are called."""
    name = re.sub(r"[^\w.=-]+", "-", nodeid).strip("-.")
    if name != nodeid or len(name) > 150:
        import zlib

        name = f"{name[:150]}-{zlib.crc32(nodeid.encode()):08x}"
    return artifacts / name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Judge the arenas of a test when its body is over."""
    watcher = item.config.stash.get(_WATCHER, None)
    if watcher is not None:
        watcher.session = lambda: _session(item)
    try:
        result = yield
    except BaseException as error:
        session = item.stash.get(_SESSION, None)
        if session is not None and not isinstance(error, pytest.skip.Exception):
            item.add_report_section("call", "bandscope", session.judge_failed())
        raise
    finally:
        if watcher is not None:
            watcher.session = None
    session = item.stash.get(_SESSION, None)
    if session is not None and not session.judged_at_teardown:
        problem = session.judge()
        if problem:
            pytest.fail(problem, pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """Let go of arenas that no fixture made."""
    try:
        return (yield)
    finally:
        session = item.stash.get(_SESSION, None)
        if session is not None:
            session.close()
            del item.stash[_SESSION]
