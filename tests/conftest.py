"""Shared by all tests: where optional real data lies, and how a skip says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

# Triton reads this when it is first imported, so it stands before anything that imports it. With a
# GPU the kernels are compiled and run there; `kernel_mode` in test reports says which it was.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Workers of xdist share the cores: each with as many threads as there are cores would be in each
# other's way. For processes that tests start, too.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)

CHECKOUT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real traces and model configurations; tests that need it skip where it is absent."""
    root = Path(os.environ.get("BANDSCOPE_SHARED", CHECKOUT.parent / "shared")) / "data"
    if not (root / "README.md").exists():
        pytest.skip(f"no real data at {root}; set BANDSCOPE_SHARED to the folder that holds data/")
    return root


def pytest_report_header() -> str:
    """Which way Triton's kernels run in this session."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return "Triton kernels: " + ("interpreted" if interpreted else "compiled for the GPU")


@pytest.fixture(scope="session")
def kernel_device() -> torch.device:
    """Where kernels run: the GPU, or the CPU when Triton interprets. Never one silently for the
    other: without a GPU the interpreter must have been asked for."""
    if torch.cuda.is_available():
        assert os.environ.get("TRITON_INTERPRET") != "1", "a GPU is here, but kernels are interpreted"
        return torch.device("cuda")
    assert os.environ.get("TRITON_INTERPRET") == "1"
    return torch.device("cpu")
