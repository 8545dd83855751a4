"""The results of a corpus as JUnit XML, which every CI system shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from bandscope.allocator.errors import TraceError
from bandscope.fuzz.replay_corpus import DIVERGED, UNUSABLE, CaseResult


def junit(results: Sequence[CaseResult], device: str) -> str:
    """One suite with a case per result: a divergence is a failure, an unusable file an error."""
    suite = ElementTree.Element(
        "testsuite",
        name="bandscope replay",
        tests=str(len(results)),
        failures=str(sum(result.status == DIVERGED for result in results)),
        errors=str(sum(result.status == UNUSABLE for result in results)),
        skipped="0",
        time=f"{sum(result.seconds for result in results):.3f}",
    )
    for result in results:
        name = result.path.name if result.number == 1 else f"{result.path.name}, pass {result.number}"
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"bandscope.replay.{device}",
            name=name,
            file=str(result.path),
            time=f"{result.seconds:.3f}",
        )
        if result.status != "same":
            kind = "failure" if result.status == DIVERGED else "error"
            told = ElementTree.SubElement(
                case, kind, message=_clean(result.message), type=result.status
            )
            told.text = _clean(result.message)
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def write_junit(path: Path, results: Sequence[CaseResult], device: str) -> None:
    """Write it to a file, whole or not at all."""
    draft = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(junit(results, device), encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise TraceError(
            f"the JUnit file {path} could not be written ({error.strerror or error}); name a file in a "
            "folder that can be written"
        ) from error


def _clean(text: str) -> str:
    """XML has no place for control characters, which a trace from a stranger may hold."""
    return "".join(c if c in "\n\t" or (c.isprintable() and c.isascii()) or ord(c) > 159 else "?"
                   for c in text if not 0xD800 <= ord(c) <= 0xDFFF)  # fmt: skip
