"""Saved settings: `top.toml` in the user's configuration folder, read at the start, written when the
person asks for it and never otherwise.

```toml
theme = "light"
ascii = false
refresh = 0.5

[keys]
pause = "f2"
next-match = ["n", "f3"]
```
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bandscope.allocator.errors import ConfigError

THEME_NAMES = ("dark", "light", "high-contrast")
REFRESH_MIN, REFRESH_MAX = 0.1, 10.0
_FIELDS = ("theme", "ascii", "refresh", "keys")


@dataclass(frozen=True)
class Settings:
    """What is not None was chosen. `keys`: by the name of an action, Textual's names of its keys."""

    theme: str | None = None
    ascii: bool | None = None
    refresh: float | None = None
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def settings_path() -> Path:
    """`$XDG_CONFIG_HOME/bandscope/top.toml`, in `~/.config` where that is not set."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "bandscope" / "top.toml"


def load(path: Path) -> Settings:
    """The settings of a file; none where there is no file. `ConfigError` names the line or the key
    that is wrong."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Settings()
    except OSError as error:
        raise ConfigError(
            f"the settings {path} cannot be read ({error.strerror}); make them readable, or remove them"
        ) from error
    try:
        told = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the settings {path} are no TOML: {error}; correct that, or remove the file"
        ) from error
    for name in told:
        if name not in _FIELDS:
            raise _wrong(path, name, f"is no setting; the settings are {', '.join(_FIELDS)}")
    return Settings(
        _theme(path, told.get("theme")),
        _ascii(path, told.get("ascii")),
        _refresh(path, told.get("refresh")),
        _keys(path, told.get("keys", {})),
    )


def _wrong(path: Path, name: str, what: str) -> ConfigError:
    return ConfigError(f"the settings {path} have {name}, which {what}; correct it, or remove it")


def _theme(path: Path, value: Any) -> str | None:
    if value is not None and value not in THEME_NAMES:
        raise _wrong(path, f"theme = {value!r}", f"is none of {', '.join(THEME_NAMES)}")
    return value  # type: ignore[no-any-return]


def _ascii(path: Path, value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise _wrong(path, f"ascii = {value!r}", "is neither true nor false")
    return value


def _refresh(path: Path, value: Any) -> float | None:
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not REFRESH_MIN <= value <= REFRESH_MAX:
        raise _wrong(path, f"refresh = {value!r}", "is no number of seconds from 0.1 to 10")
    return float(value)


def _keys(path: Path, told: Any) -> dict[str, tuple[str, ...]]:
    from bandscope.tui.top.keys import KEYS

    if not isinstance(told, dict):
        raise _wrong(path, f"keys = {told!r}", "is no table; write [keys] on a line of its own")
    names = [key.name for key in KEYS]
    found: dict[str, tuple[str, ...]] = {}
    for name, value in told.items():
        if name not in names:
            raise _wrong(path, f"keys.{name}", f"is no action; the actions are {', '.join(names)}")
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not values:
            raise _wrong(path, f"keys.{name} = {value!r}", "is neither a key nor a list of keys")
        found[name] = tuple(_key(path, name, one) for one in values)
    taken = dict(_FIXED)
    for key in KEYS:
        for one in found.get(key.name) or key.keys.split(","):
            if one in taken:
                raise ConfigError(
                    f"the settings {path} give the key {one} to {taken[one]} and to {key.name}; give "
                    "one of them another key in [keys]"
                )
            taken[one] = key.name
    return found


# Keys of every Textual program.
_FIXED = {"ctrl+p": "the command palette", "ctrl+q": "the end", "ctrl+c": "copying"}
_NAME = re.compile(r"((ctrl|shift|alt)\+)*([a-z][a-z0-9_]*|[A-Z0-9])")


def _key(path: Path, name: str, value: Any) -> str:
    """Textual's name of a key: of a character, or as it is where it is a name."""
    from textual.binding import Binding

    wrong = _wrong(path, f"keys.{name} = {value!r}", "is no key, like x, f5, ctrl+left or space")
    if not isinstance(value, str):
        raise wrong
    if len(value) == 1:
        if not value.isprintable():
            raise wrong
        if value == ",":
            return "comma"
        return next(iter(Binding.make_bindings([Binding(value, "")]))).key
    if not _NAME.fullmatch(value):
        raise wrong
    return value


def save(path: Path, settings: Settings) -> None:
    """Write the settings, all or nothing; `ConfigError` says why that failed."""
    lines = []
    for name in ("theme", "ascii", "refresh"):
        value = getattr(settings, name)
        if value is not None:
            lines.append(f"{name} = {json.dumps(value)}")
    if settings.keys:
        lines += ["", "[keys]"]
        lines += [f"{name} = {json.dumps(list(keys))}" for name, keys in settings.keys.items()]
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text("\n".join(lines) + "\n", encoding="utf-8")
        os.replace(draft, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise ConfigError(
            f"the settings could not be written to {path} ({error.strerror}); make that folder "
            "writable, or set XDG_CONFIG_HOME to one that is"
        ) from error
