"""The programs in the documentation run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.conftest import CHECKOUT


def python_blocks(name: str) -> list[str]:
    """Every fenced Python program of a page under docs/."""
    text = (CHECKOUT / "docs" / name).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.parametrize("name", ["engine.md"])
def test_programs_in_the_docs_run(name: str) -> None:
    """Each program ends well and says that it served something."""
    blocks = python_blocks(name)

    assert len(blocks) == 1
    for program in blocks:
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
        )

        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("served ")
