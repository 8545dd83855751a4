"""How a fault is planted: the code of single functions of the allocator is replaced, and put back.

An edit names a function (`books.Books.drop`, below `bandscope.allocator`), a text of its source that
stands there exactly once, and what stands there instead. The function object stays the same, only
its code changes, so that every reference to it (a table of handlers, a name imported elsewhere, an
arena that lives already) has the fault, and afterwards nothing is different. A text that is not found
exactly once is an error, so that a fault never silently stops applying when the allocator changes.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

PACKAGE = "bandscope.allocator"

Edit = tuple[str, str, str]  # function, text that stands there once, text instead
Plant = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Fault:
    """One planted fault.

    `name`: unique, in words with hyphens. `group`: the part of the list it belongs to. `source`: the
    scenario, public report or rule it stands for. `what`: one sentence, what is wrong. `plant()`: a
    context in which every arena that is built or used has the fault; not for several threads.
    """

    name: str
    group: str
    source: str
    what: str
    plant: Plant


class StaleFaultError(Exception):
    """A fault that no longer fits the allocator's source; the message says which text is missing."""


def edited(*edits: Edit) -> Plant:
    """A plant that applies these edits, each to the text as the edits before it left it."""

    @contextmanager
    def plant() -> Iterator[None]:
        texts: dict[str, str] = {}
        for target, old, new in edits:
            text = texts.get(target) or source_of(target)
            if text.count(old) != 1:
                raise StaleFaultError(
                    f"{old!r} is {text.count(old)} times in {target}, not once; bring the fault up "
                    "to date with the allocator"
                )
            texts[target] = text.replace(old, new)
        functions = {target: function_at(target) for target in texts}
        codes = {target: _compiled(target, text) for target, text in texts.items()}
        before = {target: function.__code__ for target, function in functions.items()}
        try:
            for target, function in functions.items():
                function.__code__ = codes[target]
            yield
        finally:
            for target, function in functions.items():
                function.__code__ = before[target]

    return plant


def replaced(target: str, value: Any) -> Plant:
    """A plant that gives a module constant (`band._HOLE_BYTE`) another value."""
    module_name, name = target.rsplit(".", 1)

    @contextmanager
    def plant() -> Iterator[None]:
        module = importlib.import_module(f"{PACKAGE}.{module_name}")
        before = getattr(module, name)
        setattr(module, name, value)
        try:
            yield
        finally:
            setattr(module, name, before)

    return plant


def function_at(target: str) -> FunctionType:
    """The function `module.function`, `module.Class.method` or the getter of a property."""
    module_name, *names = target.split(".")
    owner: Any = importlib.import_module(f"{PACKAGE}.{module_name}")
    for name in names:
        owner = vars(owner)[name]
    found = owner.fget if isinstance(owner, property) else owner
    if not isinstance(found, FunctionType):
        raise StaleFaultError(f"{target} is no function of {PACKAGE}; bring the fault up to date")
    return found


@functools.cache
def source_of(target: str) -> str:
    """The source of a function, indented as in its file."""
    return inspect.getsource(function_at(target))


@functools.cache
def _compiled(target: str, text: str) -> CodeType:
    function = function_at(target)
    if function.__closure__:
        raise StaleFaultError(f"{target} is a closure, whose code cannot be replaced")
    lines = text.splitlines(keepends=True)
    while lines[0].lstrip().startswith("@"):  # the object stays: it is decorated already
        del lines[0]
    text = "".join(lines)
    body = "if True:\n" + text if text[0].isspace() else text
    namespace: dict[str, Any] = {}
    exec(compile(body, f"<fault in {target}>", "exec"), function.__globals__, namespace)
    made = namespace[function.__name__]
    assert isinstance(made, FunctionType)
    if made.__defaults__ != function.__defaults__:
        raise StaleFaultError(f"the defaults of {target} differ; edit its body instead")
    return made.__code__
