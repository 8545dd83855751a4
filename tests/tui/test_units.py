"""Figures are short and right, at the edges between units too."""

from __future__ import annotations

import pytest

from bandscope.tui.units import spell_bytes, spell_count, spell_seconds, spell_share


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (1, "1 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"),
        (1 << 20, "1.0 MiB"), (120 << 30, "120.0 GiB"), (3 << 40, "3.0 TiB"),
        (5000 << 40, "5000.0 TiB"), (-2048, "-2.0 KiB"),
    ],
)  # fmt: skip
def test_bytes(size: int, text: str) -> None:
    """Binary units, one decimal, and nothing beyond TiB."""
    assert spell_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"), (0.0, "0 µs"), (0.000_25, "250 µs"), (0.0123, "12.3 ms"), (1.0, "1.0 s"),
        (59.0, "59.0 s"), (60.0, "1 min 0 s"), (75.4, "1 min 15 s"), (3599.6, "1 h 0 min"),
        (3600.0, "1 h 0 min"), (36_061.0, "10 h 1 min"),
    ],
)  # fmt: skip
def test_seconds(seconds: float | None, text: str) -> None:
    """Micro- to hours; a missing figure is a dash."""
    assert spell_seconds(seconds) == text


def test_counts_and_shares() -> None:
    """Thousands are separated; a share without a whole is a dash."""
    assert spell_count(1234567) == "1,234,567"
    assert spell_count(0) == "0"
    assert spell_share(3, 4) == "75.0 %"
    assert spell_share(0, 4) == "0.0 %"
    assert spell_share(1, 0) == "–"
