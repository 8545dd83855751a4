"""Every key of the screen: what it does, and how the help says it. Bindings are made of this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Key:
    """`keys`: Textual's names of them; `shown`: as people know them; `name`: of the action, in the
    settings."""

    keys: str
    shown: str
    action: str
    help: str
    name: str


GROUPS: tuple[tuple[str, tuple[Key, ...]], ...] = (
    (
        "Time",
        (
            Key("space", "space", "ask('pause')", "pause, and go on", "pause"),
            Key("l,end", "l or End", "ask('live')", "back to the newest event", "live"),
            Key("home", "Home", "go(0)", "to the first event", "first"),
            Key("left,comma", "Left or ,", "step('event', False)", "one event back", "event-back"),
            Key("right,full_stop", "Right or .", "step('event', True)", "one event on", "event-on"),
            Key(
                "shift+left,less_than_sign", "Shift Left or <", "step('operation', False)",
                "one operation back", "operation-back",
            ),
            Key(
                "shift+right,greater_than_sign", "Shift Right or >", "step('operation', True)",
                "one operation on", "operation-on",
            ),
            Key(
                "left_square_bracket", "[", "step('ticket', False)",
                "to the launch before", "launch-back",
            ),
            Key(
                "right_square_bracket", "]", "step('ticket', True)",
                "to the next launch", "launch-on",
            ),
            Key("g", "g", "jump", "jump to an event or a time, like 1200, 1.5s, 20ms, end", "jump"),
            Key("b", "b", "ask('bookmark')", "set a bookmark here, or remove it", "bookmark"),
            Key("apostrophe", "'", "ask('next bookmark')", "to the next bookmark", "next-bookmark"),
            Key(
                "m", "m", "ask('mark')",
                "compare with this instant from now on, or no more", "mark",
            ),
            Key("x", "x", "compare", "compare with an event, a time, or another trace", "compare"),
            Key(
                "left_curly_bracket", "{", "window(False)",
                "less time in waterfall, sparklines", "less-time",
            ),
            Key("right_curly_bracket", "}", "window(True)", "more time in them", "more-time"),
        ),
    ),
    (
        "Arena",
        (
            Key(
                "u,ctrl+left", "u or Ctrl Left", "ask('move', -1)",
                "cursor one character to the left", "left",
            ),
            Key(
                "i,ctrl+right", "i or Ctrl Right", "ask('move', 1)",
                "cursor one character to the right", "right",
            ),
            Key("U", "U", "ask('move', -10)", "ten characters to the left", "far-left"),
            Key("I", "I", "ask('move', 10)", "ten characters to the right", "far-right"),
            Key("left_parenthesis", "(", "ask('page', -1)", "cursor one page down", "page-down"),
            Key("right_parenthesis", ")", "ask('page', 1)", "cursor one page up", "page-up"),
            Key("o", "o", "ask('band', 1)", "cursor to the next band", "next-band"),
            Key(
                "plus,equals_sign", "+", "ask('zoom', 1)",
                "half as many bytes, around the cursor", "zoom-in",
            ),
            Key("minus", "-", "ask('zoom', -1)", "twice as many bytes", "zoom-out"),
            Key("0", "0", "ask('zoom', 0)", "the whole arena", "zoom-all"),
        ),
    ),
    (
        "Lists",
        (
            Key("tab", "Tab", "tab(1)", "next list", "next-list"),
            Key("shift+tab", "Shift Tab", "tab(-1)", "list before", "list-before"),
            Key("1", "1", "open('events')", "events", "events"),
            Key("2", "2", "open('leases')", "leases, and requests that hold pages", "leases"),
            Key("3", "3", "open('tickets')", "tickets and barriers", "tickets"),
            Key("4", "4", "open('checks')", "checks", "checks"),
            Key("5", "5", "open('refusals')", "refusals", "refusals"),
            Key("6", "6", "open('page')", "all about the page under the cursor", "page"),
            Key("7", "7", "open('request')", "the pages of its request, in every band", "request"),
            Key("8", "8", "open('compare')", "what differs from the other instant", "compared"),
            Key("9", "9", "open('ranks')", "the ranks of this run side by side", "ranks"),
            Key("d", "d", "drill", "to the request of the chosen row or page: its pages", "drill"),
            Key("backspace", "Backspace", "return", "to the list before d or Enter", "back"),
            Key("up", "Up", "row(-1)", "one row up (events: goes there)", "row-up"),
            Key("down", "Down", "row(1)", "one row down", "row-down"),
            Key("pageup", "Page Up", "page(-1)", "a page of rows up", "rows-up"),
            Key("pagedown", "Page Down", "page(1)", "a page of rows down", "rows-down"),
            Key(
                "enter", "Enter", "enter",
                "to the event, page or trace of the chosen row", "enter",
            ),
            Key("slash", "/", "search", "search: words, band= kind= request= pages=", "search"),
            Key("n", "n", "ask('again', True)", "next match", "next-match"),
            Key("N", "N", "ask('again', False)", "match before", "match-before"),
            Key("escape", "Esc", "ask('stop search')", "stop a search", "stop-search"),
            Key("f", "f", "filter", "show only events like this; empty: all", "filter"),
            Key("c", "c", "ask('check')", "check invariants, and races before this event", "check"),
        ),
    ),
    (
        "Program",
        (
            Key("p", "p", "pick", "choose among the recorders that run", "pick"),
            Key("a", "a", "arena(1)", "next rank, or next recorder that runs", "next-arena"),
            Key("A", "A", "arena(-1)", "the one before", "arena-before"),
            Key(
                "r", "r", "attach",
                "the same command again, when this process has ended", "attach",
            ),
            Key(
                "e", "e", "export",
                "write the picture, the list or the trace around here", "export",
            ),
            Key("S", "S", "save", "save theme, characters, rate and keys as settings", "save"),
            Key("t", "t", "theme", "next theme: dark, light, high-contrast", "theme"),
            Key("question_mark", "?", "help", "this help", "help"),
            Key("q", "q", "quit", "quit", "quit"),
        ),
    ),
)
KEYS = tuple(key for _, keys in GROUPS for key in keys)


def spell_key(name: str) -> str:
    """A key as people know it: `ctrl+left` → `Ctrl Left`, `comma` → `,`."""
    return " ".join(_SPELLED.get(part) or _title(part) for part in name.split("+"))


def _title(part: str) -> str:
    return part if len(part) == 1 else part.replace("_", " ").title()


_SPELLED = {
    "comma": ",", "full_stop": ".", "less_than_sign": "<", "greater_than_sign": ">", "slash": "/",
    "left_square_bracket": "[", "right_square_bracket": "]", "apostrophe": "'", "minus": "-",
    "left_curly_bracket": "{", "right_curly_bracket": "}", "left_parenthesis": "(", "plus": "+",
    "right_parenthesis": ")", "question_mark": "?", "space": "space", "pageup": "Page Up",
    "pagedown": "Page Down", "escape": "Esc", "semicolon": ";", "colon": ":", "equals_sign": "=",
}  # fmt: skip


Groups = tuple[tuple[str, tuple[Key, ...]], ...]


def with_keys(overrides: Mapping[str, tuple[str, ...]]) -> Groups:
    """The groups with other keys for some actions, by the names of those."""
    return tuple(
        (
            group,
            tuple(
                replace(
                    key, keys=",".join(overrides[key.name]),
                    shown=" or ".join(map(spell_key, overrides[key.name])),
                )
                if key.name in overrides
                else key
                for key in keys
            ),
        )
        for group, keys in GROUPS
    )  # fmt: skip


MOUSE = (
    ("click on the map", "cursor to that page"),
    ("click on a tab or row", "open it, go there"),
    ("wheel", "rows up and down"),
    ("Ctrl+P", "command palette"),
)
