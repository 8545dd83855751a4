"""What the program does beside showing: other arenas, exports, settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from textual.app import App

from bandscope.allocator.errors import ConfigError, TraceError
from bandscope.inspect.reader import as_json
from bandscope.inspect.registry import Running
from bandscope.tui.top.look import PLAIN, Glyphs
from bandscope.tui.top.paint import Ui
from bandscope.tui.top.ranks import ranks_of
from bandscope.tui.top.saving import FACTS, FORMS, PICTURE, free_path, parse_form, write_new
from bandscope.tui.top.screens import PromptScreen, by_run
from bandscope.tui.top.settings import Settings, save, settings_path
from bandscope.tui.top.snapshot import Snapshot


class Errands(App[None]):
    """The part of the program that goes elsewhere, or writes something because it was told to."""

    ui: Ui
    glyphs: Glyphs
    settings: Settings
    snapshot: Snapshot | None
    _path: Path | None
    _words: str
    _ring: list[Path]
    _find: Callable[[], Sequence[Running]]

    def show_trace(self, path: Path) -> None:
        """Show a trace."""
        raise NotImplementedError

    def action_ask(self, what: str, value: Any = None) -> None:
        """A question to the source."""
        raise NotImplementedError

    def _draw(self) -> None:
        raise NotImplementedError

    # --- other arenas -----------------------------------------------------------------------------

    def action_arena(self, steps: int) -> None:
        """Another rank of this run, or another recorder that runs."""
        if self._path is None:
            return
        here = (self._path if self.snapshot is None else Path(self.snapshot.path)).resolve()
        running = [entry.trace for entry in by_run(self._find())]
        # Those that were shown once stay in the ring, so that one comes back to them.
        for path in (here, *ranks_of(here), *running):
            if path.resolve() not in self._ring:
                self._ring.append(path.resolve())
        if len(self._ring) < 2:
            self._say("no other rank of this run and no other recorder of yours is there")
            return
        self.show_trace(self._ring[(self._ring.index(here) + steps) % len(self._ring)])

    def action_attach(self) -> None:
        """The process that runs the same command again."""
        if self.snapshot is None:
            return
        if self.snapshot.successor:
            self.show_trace(Path(self.snapshot.successor))
        elif self.snapshot.ending == "running":
            self._say("this process still runs: nothing to attach to")
        else:
            self._say("nobody runs the same command now; p lists who runs")

    # --- files ------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        """Words at the bottom, until something else is asked."""
        self._words = text
        self.ui = replace(self.ui, trouble=text)
        self._draw()

    def action_export(self) -> None:
        """Ask in which form."""

        def typed(text: str | None) -> None:
            if text is None or self.snapshot is None:
                return
            try:
                form, events = parse_form(text)
            except TraceError as error:
                self._say(str(error))
                return
            if form in (PICTURE, FACTS):
                self.call_after_refresh(self._write, form)  # without the prompt in the picture
            else:
                self.action_ask("export", (form, events))

        self.push_screen(PromptScreen(f"write {', '.join(FORMS)} (slice 2000: so many events)"), typed)

    def _write(self, form: str) -> None:
        snapshot = self.snapshot
        if snapshot is None:
            return
        try:
            path = free_path(Path.cwd(), snapshot.path, snapshot.position, f".{form}")
            if form == PICTURE:
                write_new(path, self.export_screenshot())
            else:
                write_new(path, as_json(snapshot.to_json()) + "\n")
        except TraceError as error:
            self._say(str(error))
        else:
            self._say(f"written to {path}")

    def action_save(self) -> None:
        """Save the settings that are in force."""
        path = settings_path()
        chosen = replace(
            self.settings, theme=self.theme, ascii=self.glyphs is PLAIN
        )
        try:
            save(path, chosen)
        except ConfigError as error:
            self._say(str(error))
        else:
            self._say(f"settings saved to {path}")
