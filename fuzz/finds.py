"""Finds as files: one program each, with what it breaks and the command that shows it.

The name of a file comes from the signature, so the same find from another night replaces nothing and is
not written twice.
"""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path
from typing import Any

import numpy

import bandscope
from bandscope.fuzz.campaign import Found
from bandscope.fuzz.execution import Find, execute
from bandscope.fuzz.program import Program, read_program, write_program
from bandscope.inspect.header import revision

SUFFIX = ".program.json"


def file_name(find: Find) -> str:
    """The file's name for a find: its invariant, operation, and a hash of its signature."""
    digest = hashlib.blake2b(find.signature.encode(), digest_size=4).hexdigest()
    return f"{find.invariant}-{find.operation.lower()}-{digest}{SUFFIX}"


def write_find(folder: Path, found: Found) -> Path:
    """Write a shrunk find to `folder`, unless a file of that signature is there; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(found.find)
    if not path.exists():
        write_program(path, found.program, **facts(found.find, path.name))
    return path


def facts(find: Find, name: str) -> dict[str, Any]:
    """What a file says beside its program."""
    return {
        "found": find.to_json(),
        "signature": find.signature,
        "reproduce": f"bandscope fuzz reproduce {name}",
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Of Bandscope, its revision where it is a checkout, NumPy and Python."""
    return {
        "bandscope": bandscope.__version__,
        "revision": revision() or "",
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def read_corpus(folder: Path) -> list[Program]:
    """The programs of a folder, in the order of their names."""
    return [read_program(path)[0] for path in sorted(folder.glob(f"*{SUFFIX}"))]


def reproduce(path: Path, *, device: str = "sim") -> tuple[Program, Find | None]:
    """Run the program of a file with every check at every step; what it breaks now."""
    program, _ = read_program(path)
    return program, execute(program, device=device, full_every=1).find
