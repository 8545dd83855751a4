"""Everything on docs/ci.md, done in order: from a capture to a failing test and a mended one."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bandscope.tui.main import main
from tests.conftest import CHECKOUT
from tests.project.test_plugin import loaded

PAGE = CHECKOUT / "docs" / "ci.md"


def blocks() -> list[tuple[str, str]]:
    """Every fenced block of the page that is to be done, as (language, text)."""
    found = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [(language, text) for language, text in found if language in ("sh", "python")]


class Reader:
    """Does what the page says, in one folder. `failures`: how often pytest failed, `statuses`: how each
    command line and program ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.statuses: dict[str, list[int]] = {}
        self.pytest_said: list[str] = []

    def read(self, language: str, text: str) -> None:
        """Do one block."""
        if language == "sh":
            for line in text.splitlines():
                self._command(line)
        elif text.startswith("# engine.py, mended"):
            _, method = text.split("\n", 1)
            path = self.folder / "engine.py"
            old = path.read_text(encoding="utf-8")
            start = old.index("    def abort")
            path.write_text(old[:start] + method, encoding="utf-8")
        elif match := re.match(r"# (\w+\.py)\n", text):
            (self.folder / match[1]).write_text(text, encoding="utf-8")
        else:
            self._end("program", lambda: exec(compile(text, "program", "exec"), {}))

    def _command(self, line: str) -> None:
        words = shlex.split(line)
        if words[0] == "bandscope":
            self._end(line, lambda: main(words[1:]))
            return
        assert words[:3] == ["python", "-m", "pytest"], line
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT / ".src")}
        done = subprocess.run(
            [sys.executable, *words[1:], *loaded(), "-p", "no:cacheprovider"],
            cwd=self.folder, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        self.pytest_said.append(done.stdout + done.stderr)
        self.statuses.setdefault(line, []).append(done.returncode)

    def _end(self, line: str, run: object) -> None:
        try:
            run()  # type: ignore[operator]
        except SystemExit as ended:
            self.statuses.setdefault(line, []).append(int(ended.code or 0))
        else:
            self.statuses.setdefault(line, []).append(0)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """The page, done."""
    folder = tmp_path_factory.mktemp("ci")
    reader = Reader(folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        for language, text in blocks():
            reader.read(language, text)
    finally:
        os.chdir(before)
    return reader


def test_every_command_ends_as_the_page_says(done: Reader) -> None:
    by_hand = {"program": [0, 1]}  # the capture; the planted fault
    tests = "python -m pytest -q --bandscope-artifacts artifacts"
    by_hand[tests] = [1, 0]  # before and after it was mended
    for line, statuses in done.statuses.items():
        assert statuses == by_hand.get(line, [0]), f"{line}: {statuses}\n{done.pytest_said}"
    assert len(done.statuses) >= 12


def test_the_failing_test_says_what_the_page_says(done: Reader) -> None:
    first, second = done.pytest_said
    assert "1 failed, 2 passed" in first
    assert "FAILED test_engine.py::test_aborted_requests_do_too" in first
    assert re.search(r"leak: request 1 still holds \d+ pages of full .*, since Extend at event", first)
    assert "3 passed" in second


def test_what_the_page_makes_is_there(done: Reader) -> None:
    corpus = done.folder / "corpus"
    assert sorted(path.name for path in corpus.iterdir()) == ["part.program.json", "part.trace"]
    suite = ElementTree.parse(done.folder / "replay.xml").getroot().find("testsuite")
    assert suite is not None and (suite.get("tests"), suite.get("failures")) == ("2", "0")
    kept = next((done.folder / "artifacts").iterdir())
    assert sorted(path.name for path in kept.iterdir()) == ["arena-1.trace", "report.txt"]


def test_the_workflow_is_made_of_what_was_done(done: Reader) -> None:
    text = PAGE.read_text(encoding="utf-8")
    workflow = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    assert len(workflow) == 1
    runs = re.findall(r"- run: (.*)", workflow[0])
    assert "bandscope replay corpus --device sim --junit replay.xml" in runs
    assert runs[1] in done.statuses
