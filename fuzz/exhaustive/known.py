"""The states that a search has met, and how each was first reached."""

from __future__ import annotations

import hashlib
from array import array

NO_PARENT = (1 << 32) - 1


def digest_of(name: bytes) -> bytes:
    """What is kept of a canonical name."""
    return hashlib.blake2b(name, digest_size=16).digest()


class KnownStates:
    """States by number, in the order in which they were met: of each a digest of 16 bytes, the state it
    was reached from, and the place of the step in that state's list."""

    def __init__(self) -> None:
        self.digests: set[bytes] = set()
        self._parent, self._ordinal = array("L"), array("H")
        self._mix = 0

    def note(self, name: bytes, parent: int, ordinal: int) -> int | None:
        """The number of a state that is new, None for a known one."""
        digest = digest_of(name)
        if digest in self.digests:
            return None
        self.digests.add(digest)
        self._mix ^= int.from_bytes(digest, "big")
        self._parent.append(parent)
        self._ordinal.append(ordinal)
        return len(self._parent) - 1

    def path(self, number: int) -> list[int]:
        """The places of the steps that lead to a state from the first one."""
        path = []
        while self._parent[number] != NO_PARENT:
            path.append(self._ordinal[number])
            number = self._parent[number]
        return path[::-1]

    @property
    def fingerprint(self) -> str:
        """Of the set of states, whatever their order."""
        return f"{self._mix:032x}"
