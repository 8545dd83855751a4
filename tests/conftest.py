"""Shared by all tests: where optional real data lies, and how a skip says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real traces and model configurations; tests that need it skip where it is absent."""
    root = Path(os.environ.get("BANDSCOPE_SHARED", CHECKOUT.parent / "shared")) / "data"
    if not (root / "README.md").exists():
        pytest.skip(f"no real data at {root}; set BANDSCOPE_SHARED to the folder that holds data/")
    return root
