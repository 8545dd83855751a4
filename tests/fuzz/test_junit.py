"""The one writer of JUnit XML: what any reader of XML takes, whatever was found."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from bandscope.fuzz.junit import Case, junit


def written(*cases: Case) -> ElementTree.Element:
    """The suite, as it is read from the bytes of a file."""
    (suite,) = ElementTree.fromstring(junit("a suite", cases).encode())
    return suite


@pytest.mark.parametrize("where", ["name", "told", "file", "classname"])
def test_any_character_can_be_written_anywhere(where: str) -> None:
    """What XML cannot hold, and what a terminal would obey, is replaced; all else is kept."""
    unfit = [*range(9), *range(11, 32), *range(127, 160), 0xD800, 0xDFFF, 0xFFFE, 0xFFFF]
    for code in unfit:
        strange = f"a{chr(code)}b"
        values = {"name": "a", "classname": "a"} | {
            where: (strange,) if where == "told" else strange
        }
        suite = written(Case(seconds=0.0, verdict="failure", **values))  # type: ignore[arg-type]
        found = suite[0][0].get("message") if where == "told" else suite[0].get(where)
        assert found == "a?b", hex(code)
    kept = "tab\tline\n\xa0é≠\ud7ff\ue000\ufffd\U0001f600 <&>\"'"
    suite = written(Case("a", "b", 0.0, "error", (kept,)))
    assert suite[0][0].text == suite[0][0].get("message") == kept


def test_what_is_not_known_is_not_said() -> None:
    odd = Case("where", "other", 2.0, "error", ("one", "two"), "odd")
    suite = written(Case("where", "what", 1.25), odd)
    assert suite.attrib == {
        "name": "a suite", "tests": "2", "failures": "0", "errors": "1", "skipped": "0",
        "time": "3.250",
    }  # fmt: skip
    assert suite[0].attrib == {"classname": "where", "name": "what", "time": "1.250"}
    assert suite[1][0].attrib == {"message": "one", "type": "odd"} and suite[1][0].text == "one\ntwo"
