"""How figures are written for people: bytes, counts and times in a few characters."""

from __future__ import annotations


def spell_bytes(size: float) -> str:
    """1536 → `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def spell_count(count: float) -> str:
    """12345 → `12,345`."""
    return f"{count:,.0f}"


def spell_seconds(seconds: float | None) -> str:
    """0.0123 → `12.3 ms`, 75 → `1 min 15 s`; None → `–`."""
    if seconds is None:
        return "–"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def spell_share(part: float, whole: float) -> str:
    """3 of 4 → `75.0 %`; `–` without a whole."""
    return f"{100 * part / whole:.1f} %" if whole else "–"
