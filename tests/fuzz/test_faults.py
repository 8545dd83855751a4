"""Every planted fault applies, changes what an arena does, and is completely undone."""

from __future__ import annotations

import importlib
import pkgutil
import re
from types import FunctionType
from typing import Any

import pytest

import bandscope.allocator
from bandscope.fuzz import faults
from bandscope.fuzz.faults import FAULTS, StaleFaultError
from bandscope.fuzz.faults.planting import Fault, edited, replaced
from tests.fuzz import cache_walks, fault_walks

GROUPS = {"A", "B", "C", "D", "order", "tables", "boundary", "misuse", "cache"}
every_fault = pytest.mark.parametrize("name", FAULTS)

# The walk in which a fault shows, for those that show late. Only saves time: see `difference`.
HINTS: dict[str, int] = {
    "row-recycled-with-its-trim-cursor": 12,
    "compaction-ignores-the-gate": 11,
    "gate-opens-with-a-second-close": 23,
    "two-copies-to-one-page": 8,
    "cap-ignored": 19,
    "cap-off-by-one": 19,
    "relocation-moves-everything": 12,
    "moves-to-pending-pages-of-an-end": 14,
    "sources-are-holes-at-once": 22,
    "sources-wait-for-nobody": 22,
    "frontier-pulled-past-pending-pages": 8,
    "coarse-barrier-asks-nothing": 9,
    "floor-forgets-the-page-grids": fault_walks.SIZES,
    "first-end-of-two-leases-frees": 11,
    "release-ends-leases": 21,
    "lease-without-its-last-page": 11,
    "lease-takes-the-generation-of-another": 11,
    "closed-gate-hides-leases": 11,
    "pages-freed-beside-a-pinned-one-are-lost": 11,
    "left-place-stays-mapped": 22,
    "holes-of-a-moved-block-miscounted": 19,
    "restore-forgets-barriers": 7,
    "window-trimmed-a-token-late": 30,
    "request-outgrows-its-row": 39,
    "lease-ended-by-another": 8,
    "lease-of-a-trimmed-page": 97,
    "match-over-a-tombstone": 2,
    "match-without-a-slot": 33,
    "admission-evicts-the-state-it-copies": 66,
    "admission-counts-its-own-match": 33,
    "evicted-slots-leak": 11,
    "grafts-a-page-too-far": 45,
    "grafts-only-where-nobody-holds": 16,
    "checkpoint-of-another-slot": 20,
}


def allocator_modules() -> list[Any]:
    """Every module of the allocator that this machine can import."""
    found = []
    for info in pkgutil.walk_packages(bandscope.allocator.__path__, "bandscope.allocator."):
        try:
            found.append(importlib.import_module(info.name))
        except ImportError:  # Triton is not everywhere
            continue
    return found


def fingerprint() -> dict[str, Any]:
    """What every name of the allocator stands for: objects, and the code and defaults of functions."""
    seen: dict[str, Any] = {}

    def note(where: str, value: Any) -> None:
        seen[where] = value if isinstance(value, bytes | int | float | str | tuple) else id(value)
        inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if isinstance(inner, FunctionType):
            seen[f"{where} code"] = (inner.__code__, inner.__defaults__, inner.__kwdefaults__)
        elif isinstance(value, dict):
            for key, item in value.items():
                if isinstance(item, FunctionType):
                    note(f"{where}[{key!r}]", item)

    for module in allocator_modules():
        for name, value in vars(module).items():
            note(f"{module.__name__}.{name}", value)
            if isinstance(value, type) and value.__module__ == module.__name__:
                for inner, member in vars(value).items():
                    note(f"{module.__name__}.{name}.{inner}", member)
    return seen


def test_there_are_faults_of_every_kind() -> None:
    """Of every group; each scenario A to D, each class M that applies, and ten rules of order."""
    assert len(FAULTS) >= 45
    assert {fault.group for fault in FAULTS.values()} == GROUPS
    sources = " ".join(fault.source for fault in FAULTS.values())
    named = set(re.findall(r"\b[A-DM]\d+\b", sources))
    scenarios = {f"{group}{n}" for group, last in zip("ABCD", (7, 5, 4, 3), strict=True)
                 for n in range(1, last + 1)}  # fmt: skip
    assert scenarios | {f"M{n}" for n in range(1, 14) if n != 12} <= named
    rows = {int(n) for text in re.findall(r"rows? ([\d, and]+)", sources)
            for n in re.findall(r"\d+", text)}  # fmt: skip
    assert rows >= set(range(1, 11))


def test_a_fault_is_named_and_told_in_one_sentence() -> None:
    """Names are distinct, also between modules; `what` is one sentence."""
    listed = [fault for module in faults._MODULES for fault in module.FAULTS]
    assert len(listed) == len({fault.name for fault in listed}) == len(FAULTS)
    assert len({fault.what for fault in listed}) == len(listed)
    for name, fault in FAULTS.items():
        assert name == fault.name and re.fullmatch(r"[a-z]+(-[a-z]+)+", name)
        assert re.fullmatch(r"[A-Z][^.]*\.", fault.what), name
        assert fault.source


@pytest.fixture(scope="module")
def intact() -> dict[str, Any]:
    """The fingerprint of the allocator as it is."""
    return fingerprint()


@every_fault
def test_a_fault_is_planted_and_completely_undone(name: str, intact: dict[str, Any]) -> None:
    """Under it some code of the allocator is another; after it, also after an error, none is."""
    with FAULTS[name].plant():
        assert fingerprint() != intact
    assert fingerprint() == intact
    with pytest.raises(KeyError), FAULTS[name].plant():
        raise KeyError(name)
    assert fingerprint() == intact


@every_fault
def test_a_fault_changes_what_an_arena_does(name: str) -> None:
    """A walk of an intact arena, walked again under the fault, goes another way; and without the
    fault it goes the same way again."""
    if FAULTS[name].group == "cache":
        shown = cache_walks.difference(FAULTS[name], HINTS.get(name, 0))
        assert shown is not None, f"{name} is no fault: nothing that can be observed differs"
        known = cache_walks.walk(shown.walk)
        walker = cache_walks.Walker(known.layout)
        for step, seen in zip(known.steps[: shown.step + 1], known.seen, strict=False):
            assert walker.observe(step)[1] == seen
        return
    shown = fault_walks.difference(FAULTS[name], HINTS.get(name, -1))

    assert shown is not None, f"{name} is no fault: nothing that can be observed differs"
    if shown.walk in range(fault_walks.WALKS) or shown.walk in fault_walks.BY_HAND:
        known = fault_walks.walk(shown.walk)
        arena = fault_walks.arena_of(shown.walk)
        for index, step in enumerate(known.steps[: shown.step + 1]):
            assert fault_walks.observe(arena, step) == known.seen[index]


# The list of docs/prefix.md: each has a fault that stands for it.
ASKED_FOR = {
    1: "match-not-held", 2: "held-pages-evicted", 3: "duplicate-released-twice",
    4: "graft-not-done", 5: "graft-without-renaming-writes", 6: "working-slot-given-away",
    7: "checkpoint-copied-too-early", 8: "window-reach-a-page-short", 9: "match-over-a-tombstone",
    10: "split-loses-leases", 11: "trim-frees-shared-pages", 12: "release-drops-shared-pages",
    13: "admission-evicts-the-state-it-copies", 14: "stall-publishes", 15: "evicted-ids-leak",
}  # fmt: skip


def test_the_faults_of_the_prefix_cache_are_planted() -> None:
    """The fifteen that were asked for, and as many again."""
    cache = {name for name, fault in FAULTS.items() if fault.group == "cache"}
    assert sorted(ASKED_FOR) == list(range(1, 16)) and set(ASKED_FOR.values()) <= cache
    assert len(cache) >= 40


def test_an_intact_arena_goes_the_same_way_again() -> None:
    """No walk breaks an invariant, and an empty plant shows no difference."""
    nothing = Fault("nothing", "none", "none", "Nothing.", edited())
    for number in range(4):
        assert not any(seen.broken for seen in cache_walks.walk(number).seen)
    assert cache_walks.difference(nothing, walks=range(4)) is None
    for number in (*fault_walks.BY_HAND, *range(12)):
        assert not any(seen.broken for seen in fault_walks.walk(number).seen)
    assert fault_walks.difference(nothing, walks=range(12)) is None


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("books.Books.drop", "no such text", ""), "is 0 times in books.Books.drop"),
        (("books.Books.drop", "band", ""), "times in books.Books.drop, not once"),
        (("books.Books.gate", "", ""), "gate"),
        (("band.LIVE", "", ""), "band.LIVE is no function"),
    ],
)
def test_an_edit_that_no_longer_applies_is_an_error_and_plants_nothing(
    edit: tuple[str, str, str], message: str
) -> None:
    """Also as the second of two edits."""
    before = fingerprint()
    good = ("books.Books.settle", "self.reclaim()", "pass")
    for plant in (edited(edit), edited(good, edit)):
        with pytest.raises((StaleFaultError, KeyError), match=message), plant():
            raise AssertionError("it was planted")
        assert fingerprint() == before


def test_two_edits_of_one_function_both_apply_and_references_to_it_see_them() -> None:
    """A handler in its table, a method of an arena that lives already, and a constant."""
    from bandscope.allocator import band, handlers
    from bandscope.allocator import operations as ops

    with edited(
        ("handlers.set_gate", "op.closed", "not op.closed"),
        ("handlers.set_gate", "return DONE", "return Outcome(True, 'edited')"),
    )():
        arena = fault_walks.arena_of(0)
        outcome = handlers.HANDLERS[ops.SetGate](arena.books, ops.SetGate(True))
        assert outcome.value == "edited" and not arena.books.gate_closed
    assert arena.apply(ops.SetGate(True)).value is None and arena.books.gate_closed
    with replaced("band.NONE", 7)():
        assert band.NONE == 7
    assert band.NONE.size == 0
