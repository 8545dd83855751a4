"""What a hostile run asks of a prefix cache: keys, publications, checkpoints, evictions."""

from __future__ import annotations

import dataclasses
from random import Random

from bandscope.allocator import operations as ops
from bandscope.fuzz.generate.mix import Mix
from bandscope.fuzz.generate.notes import Notes, Request
from bandscope.fuzz.generate.sequences import Key, Sequences
from bandscope.fuzz.program import Step

EVERYTHING = 1 << 20  # more pages than any band has


class CacheMakers:
    """Makes steps for `notes`, by `mix`. `intent`: what the last step was made for."""

    def __init__(self, notes: Notes, mix: Mix, random: Random) -> None:
        self.notes = notes
        self.mix = mix
        self.random = random
        self._roll = random.random
        self.intent = ""
        self._last_request = -1  # that a step was about
        self._sequences = Sequences(notes, mix, random.random)

    def _one(self) -> Request:
        running = self.notes.running
        if self._roll() < self.mix.focus:
            request = running[0]
        else:
            request = running[int(self._roll() * len(running))]
        self._last_request = request.number
        return request

    def _ticket_name(self) -> int:
        notes = self.notes
        name = notes.next_ticket
        notes.next_ticket = name + 1
        return name

    def _keyed(self, operation: ops.Admit) -> ops.Admit:
        """An admission with a key, mostly, and now and then a limit."""
        roll, notes = self._roll, self.notes
        if roll() >= self.mix.keyed:
            return operation
        self.intent = "admit: with a key"
        key = self._sequences.next()
        told = key
        if roll() < 0.1:  # the rest comes when it is published
            told = key[: int(roll() * (len(key) + 1))]
        limit = None
        if roll() < self.mix.limited:
            covered = len(told) // notes.unit * notes.page_size
            page = notes.page_size
            limits = (covered - 1, covered - 1, covered - page, 0, 1, page, covered // 2, covered + page)
            limit = max(0, limits[int(roll() * len(limits))])
        return dataclasses.replace(operation, key=told, limit_tokens=limit)

    def _useful_tokens(self, request: Request) -> int:
        """So many that the request comes to the end of its key, to the grid, or a page further."""
        notes, roll = self.notes, self._roll()
        if roll < 0.5:
            missing = notes.covered(request) - request.length
            if missing > 0:
                self.intent = "extend: to the end of its key"
                return missing
        if roll < 0.8 and notes.grid:
            self.intent = "extend: to the grid"
            return notes.grid - request.length % notes.grid
        self.intent = "extend: a page further"
        return notes.page_size * (1 + int(self._roll() * 2)) - request.length % notes.page_size

    def _key_on(self, request: Request) -> Key:
        """How the key of a request goes on for a publication: so that it names all whole pages that were
        computed, mostly."""
        roll = self._roll()
        tokens = self.notes.whole(request)
        if roll < 0.05:
            return ()
        if roll < 0.15:
            tokens += self.notes.page_size * int(self._roll() * 4)
        key = self._sequences.further(request, tokens)
        if roll > 0.95:
            key = key[: int(self._roll() * (len(key) + 1))]
        self._sequences.remember(request.key + key)
        return key

    def _publish(self) -> Step | None:
        notes = self.notes
        if not notes.running:
            return None
        request = self._one()
        if self._roll() < 0.85 and notes.whole(request) <= request.shared:
            # Somebody else has more to give; failing that, more is computed.
            fit = [known for known in notes.running if notes.whole(known) > known.shared]
            if not fit:
                return self._compute(request)
            request = fit[int(self._roll() * len(fit))]
            self._last_request = request.number
        self.intent = "publish"
        return Step(ops.Publish(request.number, self._key_on(request)))

    def _compute(self, request: Request) -> Step | None:
        """What a request still lacks before it has something to publish."""
        notes = self.notes
        if request.launched == request.length:
            return Step(ops.Extend(request.number, self._useful_tokens(request)))
        if len(notes.in_flight) >= self.mix.in_flight_max:
            return None
        self.intent = "launch: to publish"
        return Step(ops.Launch((request.number,)), self._ticket_name())

    def _checkpoint(self) -> Step | None:
        notes = self.notes
        if not notes.grid:
            return self._publish()
        fit = [request for request in notes.running if request.slots]
        if not fit:
            return None
        legal = [r for r in fit if r.length and r.launched == r.length and not r.length % notes.grid]
        if not legal:
            request = fit[int(self._roll() * len(fit))]
            if request.length and not request.length % notes.grid:
                return self._compute(request)
            self.intent = "extend: to the grid"
            tokens = notes.grid - request.length % notes.grid
            return Step(ops.Extend(request.number, tokens))
        request = legal[int(self._roll() * len(legal))]
        self._last_request = request.number
        self.intent = "checkpoint"
        key = self._sequences.further(request, request.length)
        self._sequences.remember(request.key + key)
        return Step(ops.Checkpoint(request.number, key))

    def _evict(self) -> Step | None:
        notes, roll = self.notes, self._roll()
        bands = len(notes.bands)
        self.intent = "evict"
        pages = [0] * bands
        index = int(self._roll() * bands)
        if roll < 0.4:  # of one band
            pages[index] = 1 + int(self._roll() * 4)
        elif roll < 0.7:
            pages = [int(self._roll() * 3) for _ in notes.bands]
        elif roll < 0.85:
            self.intent = "evict: everything"
            pages = [EVERYTHING] * bands
        elif roll < 0.95:
            self.intent = "evict: a band"
            pages[index] = EVERYTHING
        return Step(ops.Evict(tuple(pages)))

    def _leaving(self, operation: ops.Release) -> ops.Release:
        """A release that publishes, as often as the mix says. What leaves may come back."""
        request = self.notes.by_number[operation.request]
        self._sequences.remember(request.key)
        if self._roll() >= self.mix.keeps:
            return operation
        self.intent = f"{self.intent}, published"
        return dataclasses.replace(operation, publish=True, key=self._key_on(request))
