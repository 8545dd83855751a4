"""Saved settings and keys of the live screen."""

from __future__ import annotations

import random
import string
from pathlib import Path
from typing import Any

import pytest

from bandscope.allocator.errors import ConfigError
from bandscope.tui.main import main
from bandscope.tui.top.app import TopApp
from bandscope.tui.top.keys import KEYS, spell_key, with_keys
from bandscope.tui.top.look import PLAIN
from bandscope.tui.top.screens import help_lines
from bandscope.tui.top.settings import Settings, load, save, settings_path
from bandscope.tui.top.snapshot import Snapshot
from tests.allocator.arenas import P3
from tests.inspect_.traces import record
from tests.tui.test_top_app import FakeSource, play, text_of


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings file, in a folder of its own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = settings_path()
    assert path == tmp_path / "config" / "bandscope" / "top.toml"
    path.parent.mkdir(parents=True)
    return path


def test_without_a_file_nothing_is_set(config: Path) -> None:
    assert load(config) == Settings()


def test_the_folder_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings_path() == tmp_path / ".config" / "bandscope" / "top.toml"


def test_everything_that_can_be_set(config: Path) -> None:
    config.write_text(
        'theme = "light"\nascii = true\nrefresh = 2\n[keys]\npause = "f2"\nlive = ["L", ",", "ctrl+l"]\n'
        'event-back = ["left", "B"]\n'
    )
    assert load(config) == Settings(
        "light", True, 2.0,
        {"pause": ("f2",), "live": ("L", "comma", "ctrl+l"), "event-back": ("left", "B")},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("theme = dark", "line 1"),
        ("ascii = true\ntheme == 3", "line 2"),
        ("theme = 'pink'", "theme = 'pink'"),
        ("theme = 3", "theme = 3"),
        ("ascii = 'yes'", "ascii = 'yes'"),
        ("refresh = 20", "refresh = 20"),
        ("refresh = nan", "refresh = nan"),
        ("refresh = true", "refresh = True"),
        ("colour = 1", "colour"),
        ("keys = 3", "keys = 3"),
        ("[keys]\nfly = 'x'", "keys.fly"),
        ("[keys]\npause = 3", "keys.pause = 3"),
        ("[keys]\npause = []", "keys.pause = []"),
        ("[keys]\npause = ['']", "keys.pause = ''"),
        ("[keys]\npause = 'no such key'", "keys.pause = 'no such key'"),
        ("[keys]\npause = \"\\u0007\"", "keys.pause"),
        ("[keys]\npause = 'q'", "the key q to pause and to quit"),
        ("[keys]\npause = 'ctrl+p'", "the key ctrl+p to the command palette and to pause"),
        ("[keys]\nhelp = ['f1', 'f1']", "the key f1 to help and to help"),
    ],
)
def test_a_bad_file_names_what_is_wrong(
    config: Path, text: str, named: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config.write_text(text)
    with pytest.raises(ConfigError) as found:
        load(config)
    assert named in str(found.value) and str(config) in str(found.value)
    with pytest.raises(SystemExit) as ended:
        main(["top", str(tmp_path / "any.trace"), "--once"])
    told = capsys.readouterr()
    assert ended.value.code == 2 and told.out == ""
    assert told.err.count("\n") == 1 and named in told.err


def test_bytes_that_are_no_text(config: Path) -> None:
    config.write_bytes(b"theme = '\xff'")
    with pytest.raises(ConfigError, match="no TOML"):
        load(config)
    config.unlink()
    config.mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        load(config)


def test_what_is_saved_is_read_again(config: Path) -> None:
    rng = random.Random(7)
    names = [key.name for key in KEYS]
    for _ in range(30):
        free = [f"f{number}" for number in range(1, 13)] + list("éñ")
        rng.shuffle(free)
        keys = {name: (free.pop(),) for name in sorted(rng.sample(names, 5))}
        settings = Settings(
            rng.choice([None, "dark", "light"]), rng.choice([None, True, False]),
            rng.choice([None, 0.5, 3.0]), keys,
        )  # fmt: skip
        save(config, settings)
        again = load(config)
        assert again == Settings(settings.theme, settings.ascii, settings.refresh, again.keys)
        assert list(again.keys) == list(keys) and again == load(config)
    assert [path.name for path in config.parent.iterdir()] == ["top.toml"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="could not be written"):
        save(tmp_path / "file" / "top.toml", Settings())


# --- in force -------------------------------------------------------------------------------------


def test_other_keys_do_what_they_are_given(snapshot: Snapshot) -> None:
    source = FakeSource(snapshot)
    settings = Settings(keys={"pause": ("f2", "comma"), "event-back": ("left",), "help": ("f1",)})

    async def script(app: TopApp, pilot: Any) -> None:
        for name in ("f2", "comma"):
            source.asked.clear()
            await pilot.press(name)
            assert source.asked == [("pause", None)]
        source.asked.clear()
        await pilot.press("space", "question_mark")
        assert source.asked == []
        assert "f1 help" in text_of(app).lower() and ", pause" in text_of(app)
        await pilot.press("f1")
        assert "F2 or ," in text_of(app) and "F1" in text_of(app)

    play(source, script, settings=settings, size=(120, 100))


def test_the_help_names_every_key_in_force() -> None:
    overrides = {"pause": ("f2", "comma"), "quit": ("ctrl+x",), "search": ("S",)}
    groups = with_keys(overrides)
    said = "\n".join("".join(text for text, _ in line) for line in help_lines(80, PLAIN, groups))
    for _, keys in groups:
        for key in keys:
            assert key.shown in said and key.help in said
            for one in overrides.get(key.name, ()):
                assert spell_key(one) in key.shown
    assert "F2 or ," in said and "Ctrl x" in said and "   space " not in said


def test_names_of_actions_are_unique_and_plain() -> None:
    names = [key.name for key in KEYS]
    assert len(names) == len(set(names))
    assert all(set(name) <= set(string.ascii_lowercase + "-") for name in names)


def test_settings_are_written_when_asked_and_only_then(config: Path, snapshot: Snapshot) -> None:
    settings = Settings(refresh=3.0, keys={"pause": ("f2",)})

    async def script(app: TopApp, pilot: Any) -> None:
        await pilot.press("t", "question_mark", "q", "f2")
        assert not config.exists()
        await pilot.press("S")
        assert f"settings saved to {config}"[:60] in text_of(app)

    play(FakeSource(snapshot), script, settings=settings, size=(200, 40))
    assert load(config) == Settings("light", False, 3.0, {"pause": ("f2",)})


def test_settings_that_cannot_be_written_are_one_sentence(
    config: Path, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.parent.rmdir()
    config.parent.parent.rmdir()
    config.parent.parent.write_text("")

    async def script(app: TopApp, pilot: Any) -> None:
        await pilot.press("S")
        assert "could not be written" in text_of(app)

    play(FakeSource(snapshot), script, size=(240, 40))


def test_the_command_line_wins_over_the_file(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text("ascii = true\n")
    path = str(record(tmp_path / "run", P3, operations=40).path)
    for arguments, plain in ((["--once"], True), (["--once", "--unicode"], False)):
        with pytest.raises(SystemExit):
            main(["top", path, *arguments])
        assert capsys.readouterr().out.isascii() is plain
