"""Traces of format 1 read the same for ever: the files in `fixtures/` were made once."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from bandscope.allocator.errors import TraceError
from bandscope.inspect.format import HEAD, RECORD, Kind
from bandscope.inspect.header import write_header
from bandscope.inspect.reader import Trace
from tests.inspect_.fixtures.facts import facts

FIXTURES = Path(__file__).parent / "fixtures"
CORPUS = Path(__file__).parents[1] / "corpus"
# Records that came with the prefix cache, after the fixtures were made.
OF_PREFIX_CACHE = {
    Kind.ADMIT_PREFIX, Kind.RELEASE_PREFIX, Kind.PUBLISH_PREFIX, Kind.CHECKPOINT, Kind.SHARE,
    Kind.EVICTION, Kind.STATE_COPY, Kind.GRAFT,
}  # fmt: skip
DOCUMENT = Path(__file__).parents[2] / "docs" / "trace-format.md"


@pytest.mark.parametrize("name", ["format1.trace", "format1.sealed.trace"])
def test_a_trace_of_format_1_says_what_it_said(name: str) -> None:
    trace = Trace(FIXTURES / name)
    told = json.loads((FIXTURES / "format1.facts.json").read_text(encoding="utf-8"))
    found = json.loads(json.dumps(facts(trace)))
    for part, stored in told.items():
        assert found[part] == stored, part
    assert set(found) == set(told) and trace.damages == []


def test_the_fixture_has_every_kind_of_record() -> None:
    trace = Trace(FIXTURES / "format1.trace")
    kinds = {kind for segment in trace.segments() for kind in segment.records["kind"].tolist()}
    assert kinds == set(map(int, Kind)) - OF_PREFIX_CACHE


def test_the_corpus_has_the_records_of_a_prefix_cache() -> None:
    kinds: set[int] = set()
    for name in ("walk-cached-state", "walk-cached-window"):
        trace = Trace(CORPUS / f"{name}.trace")
        assert trace.header["features"] == ["prefix cache"]
        kinds |= {kind for part in trace.segments() for kind in part.records["kind"].tolist()}
    assert kinds > OF_PREFIX_CACHE


def test_a_trace_that_uses_what_is_not_known_is_refused(tmp_path: Path) -> None:
    trace = Trace(FIXTURES / "format1.trace")
    shutil.copytree(trace.path, tmp_path / "later.trace")
    write_header(tmp_path / "later.trace", {**trace.header, "features": ["prefix cache", "tiers"]})
    with pytest.raises(TraceError, match="uses 'tiers', which this version does not know"):
        Trace(tmp_path / "later.trace")


def test_the_document_has_every_kind_by_its_number() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = {int(n): name for n, name in re.findall(r"^\| (\d+) \| `([A-Z_]+)` \|", text, re.M)}
    assert rows == {int(kind): kind.name for kind in Kind}


def test_the_worked_example_of_the_document_is_in_the_fixture() -> None:
    """Its bytes, and what it says they are."""
    text = DOCUMENT.read_text(encoding="utf-8")
    data = (FIXTURES / "format1.trace" / "000000.events").read_bytes()
    example = text[text.index("## Worked example") :]
    lines = re.findall(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} ?)+)$", example, re.M)
    assert len(lines) >= 10
    for offset, digits in lines:
        at, part = int(offset, 16), bytes.fromhex(digits)
        assert data[at : at + len(part)] == part, offset
    assert (HEAD.size, RECORD.size) == (60, 32)
