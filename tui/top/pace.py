"""How often the list of events is made anew while more come than anybody can read."""

from __future__ import annotations

from bandscope.tui.top.snapshot import Lists

_PICTURES = 3  # that show one list


class Pace:
    """Remembers the list of the picture before. `stale`: whether it is older than its picture, so
    that another picture has to follow."""

    def __init__(self) -> None:
        self._lists: Lists | None = None
        self._position = self._age = 0

    @property
    def stale(self) -> bool:
        """Whether the list of the last picture was an older one."""
        return self._age > 0

    def forget(self) -> None:
        """The next picture gets a list of its own: something was asked for."""
        self._lists, self._age = None, 0

    def keep(self, lists: Lists, position: int) -> Lists:
        """This is the list of the picture at a position."""
        self._lists, self._position, self._age = lists, position, 0
        return lists

    def kept(self, position: int, rows: int) -> Lists | None:
        """The list of the picture before, when it may stand for the one at `position`, further on: it
        would have nothing in common with a new one, and was shown in fewer than three pictures. None
        when a new one is due."""
        lists = self._lists
        if lists is None or lists.about or len(lists.rows) < rows:
            return None
        if position - self._position <= rows or self._age == _PICTURES - 1:
            return None
        self._position, self._age = position, self._age + 1
        return lists
