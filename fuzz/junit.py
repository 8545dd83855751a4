"""Results as JUnit XML, which every CI system shows: one suite, a case per result."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

# What XML 1.0 has no place for, whatever a trace from a stranger or a path may hold, and the control
# characters that it has a place for but a terminal would obey.
_UNFIT = re.compile("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Case:
    """One result. A `failure` is what was looked for, an `error` a case that could not be tried;
    `told`: what happened, the first as the message; `kind`: a word for it; `file`: what was tried;
    `seconds`: how long that took."""

    classname: str
    name: str
    seconds: float
    verdict: Literal["passed", "failure", "error"] = "passed"
    told: Sequence[str] = ()
    kind: str = ""
    file: str = ""


def junit(suite: str, cases: Sequence[Case], started: str = "") -> str:
    """The document; `started`: when, in UTC as ISO 8601. What XML cannot hold becomes `?`."""
    root = ElementTree.Element("testsuites")
    told = _add(
        root,
        "testsuite",
        name=suite,
        tests=str(len(cases)),
        failures=str(sum(case.verdict == "failure" for case in cases)),
        errors=str(sum(case.verdict == "error" for case in cases)),
        skipped="0",
        time=f"{sum(case.seconds for case in cases):.3f}",
        timestamp=started.rstrip("Z"),
    )
    for case in cases:
        element = _add(
            told, "testcase", classname=case.classname, name=case.name, file=case.file,
            time=f"{case.seconds:.3f}",
        )  # fmt: skip
        if case.verdict != "passed":
            message = case.told[0] if case.told else ""
            found = _add(element, case.verdict, message=message, type=case.kind)
            found.text = _clean("\n".join(case.told))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _add(parent: ElementTree.Element, tag: str, **attributes: str) -> ElementTree.Element:
    """A new child; attributes without a value are left out."""
    given = {name: _clean(value) for name, value in attributes.items() if value}
    return ElementTree.SubElement(parent, tag, given)


def _clean(text: str) -> str:
    return _UNFIT.sub("?", text)
