"""The checkout's shape: what shadows what, who imports whom, what is shipped and pinned."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import bandscope
from tests.conftest import CHECKOUT

PARTS = ("allocator", "inspect", "tui", "fuzz")
# Who may import whom; a part may always import itself.
ALLOWED = {
    "allocator": set(),
    "inspect": {"allocator"},
    "fuzz": {"allocator", "inspect"},
    "tui": {"allocator", "inspect", "fuzz"},
}
LINES_MAX = 450
# Written so that this file does not match itself.
PRIVATE_PATH = re.compile(r"(?<![\w.])/(?:home|work|root|Users|tmp)/\w")


def run_python(*arguments: str, source: bool = False) -> subprocess.CompletedProcess[str]:
    """A python started in the checkout, as a user would; `source` lets it find `bandscope`."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if source:
        environment["PYTHONPATH"] = str(CHECKOUT / ".src")
    return subprocess.run(
        [sys.executable, *arguments], cwd=CHECKOUT, env=environment, capture_output=True, text=True
    )


def python_files(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((CHECKOUT / folder).rglob("*.py"))]
    assert found
    return found


def project_files() -> list[Path]:
    """Files that are, or would be, under version control."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=CHECKOUT, capture_output=True, text=True,
    )  # fmt: skip
    if listing.returncode:
        pytest.skip("not a git checkout, so which files belong to it is not known")
    paths = [CHECKOUT / line for line in listing.stdout.splitlines()]
    return [path for path in paths if path.is_file()]


def imports(source: str) -> Iterator[str]:
    """Every absolute module name that `source` imports, also inside functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module is not None
            # The names too: `from bandscope import fuzz` is an import of bandscope.fuzz.
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def bare_imports(source: str) -> list[str]:
    """Imports of a part by the name of its folder, which would load its modules a second time."""
    return [
        name for name in imports(source)
        if name.split(".")[0] in ("allocator", "tui", "fuzz")
        # `inspect` alone is the standard module; it has no modules of its own.
        or (name.startswith("inspect.") and (CHECKOUT / (name.replace(".", "/") + ".py")).exists())
    ]


def upward_imports(part: str, source: str) -> list[str]:
    """Imports that the order of the parts forbids in a module of `part`."""
    parts = {name: name.split(".")[1] for name in imports(source) if re.match(r"bandscope\.", name)}
    return [
        name for name, other in parts.items()
        if other in PARTS and other != part and other not in ALLOWED[part]
    ]


# --- the folder named like a standard module ------------------------------------------------------


def test_inspect_is_the_standard_module_in_the_checkout() -> None:
    found = run_python("-c", "import inspect; inspect.signature; print(inspect.__file__)")
    assert found.returncode == 0, found.stderr
    assert not Path(found.stdout.strip()).is_relative_to(CHECKOUT / "inspect")


@pytest.mark.parametrize("module", ["pytest", "pip"])
def test_tools_start_in_the_checkout(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed in this environment")
    found = run_python("-m", module, "--version")
    assert found.returncode == 0, found.stderr
    assert module in found.stdout + found.stderr


def test_the_inspect_folder_has_no_init_module() -> None:
    assert not (CHECKOUT / "inspect" / "__init__.py").exists()


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_a_relative_link(part: str) -> None:
    link = CHECKOUT / ".src" / "bandscope" / part
    assert link.is_symlink()
    assert os.readlink(link) == f"../../{part}"
    assert link.resolve() == CHECKOUT / part


def test_nothing_else_is_in_the_source_folder() -> None:
    names = {path.name for path in (CHECKOUT / ".src" / "bandscope").iterdir()}
    assert names - {"__pycache__"} == {*PARTS, "__init__.py", "py.typed"}


# --- imports --------------------------------------------------------------------------------------


def test_no_part_is_imported_by_its_folder_name() -> None:
    found = {
        str(path.relative_to(CHECKOUT)): names
        for path in python_files(*PARTS, "tests", "benchmarks", "docs")
        if (names := bare_imports(path.read_text()))
    }
    assert not found


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import allocator", 1),
        ("def f():\n    from fuzz.workload import run", 2),
        ("import tui.main as main", 1),
        ("from inspect.counters import Counters", 1),
        ("import inspect\nfrom inspect import signature", 0),
        ("from bandscope.fuzz import workload", 0),
        ("from . import fuzz", 0),
    ],
)
def test_bare_imports_are_recognised(source: str, count: int) -> None:
    assert len(bare_imports(source)) == count


@pytest.mark.parametrize("part", PARTS)
def test_no_part_imports_upwards(part: str) -> None:
    found = {
        str(path.relative_to(CHECKOUT)): names
        for path in python_files(part)
        if (names := upward_imports(part, path.read_text()))
    }
    assert not found


@pytest.mark.parametrize(
    ("part", "source", "allowed"),
    [
        ("allocator", "from bandscope.inspect.counters import Counters", False),
        ("allocator", "import bandscope.tui", False),
        ("inspect", "def f():\n    from bandscope import fuzz", False),
        ("fuzz", "from bandscope.tui.units import spell_bytes", False),
        ("inspect", "from bandscope.allocator import events", True),
        ("fuzz", "from bandscope.inspect.counters import Counters", True),
        ("tui", "import bandscope.fuzz.workload.run", True),
        ("allocator", "import inspect", True),
    ],
)
def test_upward_imports_are_recognised(part: str, source: str, allowed: bool) -> None:
    assert (not upward_imports(part, source)) == allowed


def test_the_import_contract_is_kept() -> None:
    pytest.importorskip("importlinter")
    command = "from importlinter.cli import lint_imports_command as command; command()"
    found = run_python("-c", command, "--no-cache", source=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "1 kept, 0 broken" in found.stdout


def test_importing_the_package_leaves_torch_alone() -> None:
    found = run_python(
        "-c",
        "import sys, bandscope; print(sorted({'numpy', 'torch', 'triton'} & set(sys.modules)))",
        source=True,
    )
    assert (found.returncode, found.stdout.strip()) == (0, "[]"), found.stderr


@pytest.mark.parametrize("name", bandscope.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(bandscope, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = bandscope.nonsense


# --- files ----------------------------------------------------------------------------------------


def test_no_module_is_long() -> None:
    lengths = {
        str(path.relative_to(CHECKOUT)): len(path.read_text().splitlines())
        for path in python_files(*PARTS)
    }
    assert not {name: length for name, length in lengths.items() if length > LINES_MAX}


def test_every_public_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(CHECKOUT))
        for path in python_files(*PARTS)
        if (source := path.read_text()).strip() and not path.name.startswith("_")
        and not ast.get_docstring(ast.parse(source))
    ]
    assert not silent


def test_no_file_names_a_private_folder() -> None:
    assert PRIVATE_PATH.search("see " + "/" + "home/somebody/file")
    assert not PRIVATE_PATH.search("fuzz/work/loads and https://example.org/work/x")
    found = [
        f"{path.relative_to(CHECKOUT)}: {line.strip()}"
        for path in project_files()
        for line in path.read_text(errors="replace").splitlines()
        if PRIVATE_PATH.search(line)
    ]
    assert not found


# --- what is pinned and run -----------------------------------------------------------------------


def constraints() -> dict[str, str]:
    lines = (line.split("#")[0].strip() for line in _read("constraints.txt").splitlines())
    return dict(line.split("==") for line in lines if line)


def test_constraints_pin_every_dependency_and_name_no_file() -> None:
    pinned = constraints()
    project = tomllib.loads(_read("pyproject.toml"))["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = {re.split(r"[<>=;\[ ]", requirement)[0] for requirement in wanted}
    assert not names - set(pinned)
    assert pinned["torch"] == "2.13.0"
    assert not [version for version in pinned.values() if not re.fullmatch(r"[\w.]+", version)]


def test_the_script_of_the_pyproject_is_there() -> None:
    scripts = tomllib.loads(_read("pyproject.toml"))["project"]["scripts"]
    for target in scripts.values():
        module, name = target.split(":")
        assert callable(getattr(importlib.import_module(module), name))


def test_the_checks_find_the_one_test_line_of_the_readme() -> None:
    path = CHECKOUT / ".ci" / "run"
    assert os.access(path, os.X_OK)
    assert subprocess.run(["bash", "-n", str(path)]).returncode == 0
    pattern = re.search(r"grep -E '(.*)' README\.md", path.read_text())
    assert pattern is not None
    lines = re.findall(pattern[1], _read("README.md"), re.MULTILINE)
    assert len(lines) == 1
    for words in ("-c constraints.txt", "-e '.[dev]'", ".venv/bin/python -m pytest -q"):
        assert words in lines[0]


def _read(name: str) -> str:
    return (CHECKOUT / name).read_text()
