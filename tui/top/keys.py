"""Every key of the screen: what it does, and how the help says it. Bindings are made of this."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Key:
    """`keys`: Textual's names of them; `shown`: as people know them."""

    keys: str
    shown: str
    action: str
    help: str


GROUPS: tuple[tuple[str, tuple[Key, ...]], ...] = (
    (
        "Time",
        (
            Key("space", "space", "ask('pause')", "pause, and go on"),
            Key("l,end", "l, End", "ask('live')", "back to the newest event"),
            Key("home", "Home", "go(0)", "to the first event"),
            Key("comma", ",", "step('event', False)", "one event back"),
            Key("full_stop", ".", "step('event', True)", "one event on"),
            Key("less_than_sign", "<", "step('operation', False)", "one operation back"),
            Key("greater_than_sign", ">", "step('operation', True)", "one operation on"),
            Key("left_square_bracket", "[", "step('ticket', False)", "to the launch before"),
            Key("right_square_bracket", "]", "step('ticket', True)", "to the next launch"),
            Key("g", "g", "jump", "jump to an event or a time, like 1200, 1.5s, 20ms, end"),
            Key("b", "b", "ask('bookmark')", "set a bookmark here, or remove it"),
            Key("apostrophe", "'", "ask('next bookmark')", "to the next bookmark"),
            Key("left_curly_bracket", "{", "window(False)", "less time in waterfall, sparklines"),
            Key("right_curly_bracket", "}", "window(True)", "more time in them"),
        ),
    ),
    (
        "Arena",
        (
            Key("left", "Left", "ask('move', -1)", "cursor one character to the left"),
            Key("right", "Right", "ask('move', 1)", "cursor one character to the right"),
            Key("shift+left", "Shift Left", "ask('move', -10)", "ten characters to the left"),
            Key("shift+right", "Shift Right", "ask('move', 10)", "ten characters to the right"),
            Key("left_parenthesis", "(", "ask('page', -1)", "cursor one page down"),
            Key("right_parenthesis", ")", "ask('page', 1)", "cursor one page up"),
            Key("o", "o", "ask('band', 1)", "cursor to the next band"),
            Key("plus,equals_sign", "+", "ask('zoom', 1)", "half as many bytes, around the cursor"),
            Key("minus", "-", "ask('zoom', -1)", "twice as many bytes"),
            Key("0", "0", "ask('zoom', 0)", "the whole arena"),
        ),
    ),
    (
        "Lists",
        (
            Key("tab", "Tab", "tab(1)", "next list"),
            Key("shift+tab", "Shift Tab", "tab(-1)", "list before"),
            Key("1", "1", "open('events')", "events"),
            Key("2", "2", "open('leases')", "leases, and requests that hold pages"),
            Key("3", "3", "open('tickets')", "tickets and barriers"),
            Key("4", "4", "open('checks')", "checks"),
            Key("5", "5", "open('refusals')", "refusals"),
            Key("up", "Up", "row(-1)", "one row up (events: goes there)"),
            Key("down", "Down", "row(1)", "one row down"),
            Key("pageup", "Page Up", "page(-1)", "a page of rows up"),
            Key("pagedown", "Page Down", "page(1)", "a page of rows down"),
            Key("enter", "Enter", "enter", "to the event of the chosen row"),
            Key("slash", "/", "search", "search: words, band= kind= request= pages="),
            Key("n", "n", "ask('again', True)", "next match"),
            Key("N", "N", "ask('again', False)", "match before"),
            Key("f", "f", "filter", "show only events like this; empty: all"),
            Key("c", "c", "ask('check')", "check invariants, and races before this event"),
        ),
    ),
    (
        "Program",
        (
            Key("p", "p", "pick", "choose among the recorders that run"),
            Key("t", "t", "theme", "next theme: dark, light, high-contrast"),
            Key("question_mark", "?", "help", "this help"),
            Key("q", "q", "quit", "quit"),
        ),
    ),
)
KEYS = tuple(key for _, keys in GROUPS for key in keys)
MOUSE = (
    ("click on the map", "cursor to that page"),
    ("click on a tab or row", "open it, go there"),
    ("wheel", "rows up and down"),
    ("Ctrl+P", "command palette"),
)
