"""Plausible serving: continuous batching as an engine does it, every operation legal.

One tick: what has finished leaves, completed forwards are told, waiting requests enter, one prompt goes
on by a chunk or all that decode go on by a token, the forward is launched, windows are trimmed. Now and
then pages are leased, the gate is closed for a transfer, holes are closed. A refusal is answered as an
engine would: somebody gives way, a lease ends, the gate opens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from bandscope.allocator import operations as ops
from bandscope.fuzz.generate.mix import Mix
from bandscope.fuzz.generate.notes import Notes, Request
from bandscope.fuzz.generate.phases import exponential
from bandscope.fuzz.generate.sequences import Key, Sequences
from bandscope.fuzz.program import Step

# (prompt, output) in pages, on average; how many ticks in 100 somebody arrives.
PHASES = {
    "steady": (3.0, 3.0, 40),
    "fill": (6.0, 12.0, 90),
    "drain": (1.0, 0.5, 2),
    "long prompts": (40.0, 2.0, 25),
    "many short": (0.6, 1.0, 90),
    "long outputs": (1.0, 30.0, 50),
}


class Serving:
    """Makes steps for `notes`. `intent`: what the last one was made for."""

    def __init__(self, notes: Notes, mix: Mix, random: Random) -> None:
        self.notes = notes
        self.mix = mix
        self.random = random
        self._roll = random.random
        self.intent = ""
        self._computed: tuple[int, ...] = ()  # requests whose tokens the next forward computes
        self._phase = PHASES["steady"]
        self._closed_ticks = 0
        self._most_tokens = max(1, notes.usable_bytes // notes.token_bytes) * notes.page_size
        self._chunk = random.choice((1, 2, 4, 16, 1 << 20)) * notes.page_size
        self._batch_max = mix.requests_max + 1
        self._compact_every = random.choice((3, 7, 20, 1 << 20))
        self._lease_every = random.choice((5, 15, 1 << 20))
        self._ticks = self._ticks_forever()
        self._sequences = Sequences(notes, mix, random.random)
        self._retracted: list[Key] = []
        self._each_forward = notes.cached and mix.keeps < 0.9  # publishes, not the end alone
        # Where nothing else needs doing the engine asks for a little compaction.
        self._idle = Step(ops.Compact(max_moves=random.choice((None, 1, 8))))

    def begin(self, phase: str) -> None:
        """Go on in another phase, from the top of a tick: what runs may have changed."""
        self._phase = PHASES[phase]
        for request in self.notes.running:
            if not request.prompt_left and request.output_left <= 0:
                request.output_left = self._output()
        self._ticks = self._ticks_forever()

    def next(self) -> Step:
        """The next step."""
        return next(self._ticks)

    # --- one tick -----------------------------------------------------------------------------------

    def _ticks_forever(self) -> Iterator[Step]:
        tick = 0
        while True:
            tick += 1
            yield from self._leave()
            yield from self._enter()
            batch = self._next_chunk()
            self._computed = ()
            if batch is None:
                yield from self._decode()
            else:
                yield from self._prefill(batch)
            if self._computed:
                yield from self._forward(self._computed)
            yield from self._upkeep(tick)

    def _leave(self) -> Iterator[Step]:
        notes = self.notes
        depth = self.mix.in_flight_max
        while len(notes.in_flight) >= depth:
            self.intent = "complete"
            late = len(notes.in_flight) > 1 and self._roll() > max(0.9, self.mix.in_order)
            yield Step(ops.Complete(notes.in_flight[1 if late else 0]))
        done = [r.number for r in notes.running if not r.prompt_left and r.output_left <= 0]
        for number in done:
            self.intent = "release: finished"
            yield Step(self._finished(number) if notes.cached else ops.Release(number))
        if notes.running and self._roll() < 0.01:
            self.intent = "release: aborted"
            yield Step(ops.Release(self._any().number, "aborted"))

    def _enter(self) -> Iterator[Step]:
        notes = self.notes
        prompt, _, arrivals = self._phase
        while len(notes.running) < self._batch_max and (
            not notes.running or self._roll() * 100 < arrivals
        ):
            tokens, output = self._tokens(prompt), self._output()
            if notes.running and not self._expects_room(tokens + output):
                return
            number = notes.next_request
            notes.next_request = number + 1
            self.intent = "admit"
            admission = ops.Admit(number, 2 if self._roll() < 0.05 else 1)
            if notes.cached:
                key = self._prompt()
                tokens = max(1, len(key) // notes.unit * notes.page_size)
                admission = replace(admission, key=key, limit_tokens=tokens - 1)
            yield Step(admission)
            request = notes.by_number.get(number)
            if request is None:  # memory is waited for
                if notes.reason != "memory" or not notes.running:
                    yield from self._make_way(None)
                return
            request.prompt_left = tokens - request.length
            request.output_left = output

    def _expects_room(self, tokens: int) -> bool:
        """Whether one more request of so many tokens will fit beside what the others still want. Now and
        then the engine is too sure of itself."""
        if self._roll() < 0.1:
            return True
        notes = self.notes
        wanted = sum([r.prompt_left + r.output_left // 2 for r in notes.running]) + tokens
        pages = wanted // notes.page_size + len(notes.running) + 1
        return pages * notes.token_bytes + notes.state_bytes <= notes.free_bytes()

    def _next_chunk(self) -> Request | None:
        for request in self.notes.running:
            if request.prompt_left:
                return request
        return None

    def _prefill(self, request: Request) -> Iterator[Step]:
        tokens = min(request.prompt_left, self._chunk)
        if self.notes.grid:  # a chunk ends on the grid, so that the state there can be kept
            tokens = min(tokens, self.notes.grid - request.length % self.notes.grid)
        for _ in range(len(self.notes.running) + 2):
            self.intent = "extend: prefill"
            yield Step(ops.Extend(request.number, tokens))
            if not self.notes.reason:
                request.prompt_left -= tokens
                self._computed = (request.number,)
                return
            if self.notes.reason == "memory" and self._decoding():
                yield from self._decode()  # it waits, the others go on
                return
            yield from self._make_way(request)
            if request.number not in self.notes.by_number:
                return

    def _decode(self) -> Iterator[Step]:
        while True:
            batch = self._decoding()
            if not batch:
                return
            self.intent = "decode"
            numbers = tuple([request.number for request in batch])
            yield Step(ops.Decode(numbers))
            if not self.notes.reason:
                for request in batch:
                    request.output_left -= 1
                self._computed = numbers
                return
            yield from self._make_way(None)

    def _decoding(self) -> list[Request]:
        return [request for request in self.notes.running if not request.prompt_left]

    def _forward(self, numbers: tuple[int, ...]) -> Iterator[Step]:
        notes = self.notes
        name = notes.next_ticket
        notes.next_ticket = name + 1
        self.intent = "launch"
        yield Step(ops.Launch(numbers), name)
        if notes.windows:
            self.intent = "trim"
            yield Step(ops.TrimWindow(numbers))
        if notes.cached:
            yield from self._publish(numbers)

    def _publish(self, numbers: tuple[int, ...]) -> Iterator[Step]:
        """What the forward computed goes to the cache, with the state where it lies on the grid."""
        notes = self.notes
        for number in numbers:
            request = notes.by_number[number]
            on_grid = notes.grid and request.slots and not request.length % notes.grid
            if on_grid and request.launched == request.length:
                self.intent = "checkpoint"
                yield Step(ops.Checkpoint(number, self._sequences.further(request, request.length)))
            elif self._each_forward and notes.whole(request) > request.shared:
                self.intent = "publish"
                key = self._sequences.further(request, notes.whole(request))
                yield Step(ops.Publish(number, key))

    def _finished(self, number: int) -> ops.Release:
        request = self.notes.by_number[number]
        key = self._sequences.further(request, self.notes.whole(request))
        self._sequences.remember(request.key + key)
        return ops.Release(number, publish=True, key=key)

    def _prompt(self) -> Key:
        if self._retracted and self._roll() < 0.8:
            return self._retracted.pop()
        return self._sequences.next()

    def _upkeep(self, tick: int) -> Iterator[Step]:
        notes = self.notes
        if not notes.running or not tick % self._compact_every:
            self.intent = "compact"
            yield self._idle
        if not tick % self._lease_every:
            yield from self._transfer()
        if notes.closed:
            self._closed_ticks += 1
            if self._closed_ticks > 3:
                yield from self._open()
        if notes.running and self._roll() < 0.03:
            self.intent = "reserve"
            state = self._roll() < 0.3
            if notes.cached and self._roll() < 0.3:
                self.intent = "evict"
                yield Step(ops.Evict(tuple(int(self._roll() * 3) for _ in notes.bands)))
                self.intent = "reserve"
            yield Step(ops.Reserve(tuple(1 if state else int(b.kind != "state") for b in notes.bands)))

    # --- transfers, and answers to refusals ---------------------------------------------------------

    def _transfer(self) -> Iterator[Step]:
        """A host copy or a transfer begins, or the oldest ends."""
        notes = self.notes
        if len(notes.leases) >= self.mix.leases_max:
            yield from self._end_oldest()
        if not notes.running:
            return
        request = self._any()
        band = notes.bands[int(self._roll() * len(notes.bands))]
        if band.kind == "state":
            first, stop = 0, request.slots
        else:
            first, stop = notes.first_kept(request, band.window_length), notes.pages(request)
        if first >= stop:
            return
        transfer = self._roll() < 0.5
        if transfer and self._roll() < 0.3 and not notes.closed:
            self.intent = "gate: close"
            self._closed_ticks = 0
            yield Step(ops.SetGate(True))
        name = notes.next_lease
        notes.next_lease = name + 1
        self.intent = "lease"
        holder, purpose = ("peer", "transfer") if transfer else ("host", "host copy")
        deadline = notes.in_flight[-1] if notes.in_flight else None
        lease = ops.Lease(request.number, band.name, first, stop, holder, purpose, deadline)
        yield Step(lease, name)

    def _end_oldest(self) -> Iterator[Step]:
        name, holder = self.notes.leases[0]
        self.intent = "end lease"
        yield Step(ops.EndLease(name, holder))

    def _open(self) -> Iterator[Step]:
        self.intent = "gate: open"
        yield Step(ops.SetGate(False))

    def _make_way(self, wanting: Request | None) -> Iterator[Step]:
        """Something is given up for whoever was refused: a gate, a lease, the newest other request;
        when nobody else is left, the request itself."""
        notes = self.notes
        if notes.reason == "gate" and notes.closed:
            yield from self._open()
            return
        if notes.leases and (notes.reason == "pins" or not notes.running):
            yield from self._end_oldest()
            return
        others = [request for request in notes.running if request is not wanting]
        if others:
            self.intent = "release: retracted"
            newest = max(others, key=lambda request: request.number)
            if notes.cached:
                self._retracted.append(newest.key)
            yield Step(ops.Release(newest.number, "retracted"))
        elif wanting is not None:
            self.intent = "release: aborted"
            yield Step(ops.Release(wanting.number, "aborted"))

    def _any(self) -> Request:
        running = self.notes.running
        return running[int(self._roll() * len(running))]

    def _output(self) -> int:
        # Each takes a tick, so they are few where pages are large.
        return 1 + min(self._tokens(self._phase[1]), int(self._roll() * 60))

    def _tokens(self, pages: float) -> int:
        """A length around `pages`, exponential; a few requests of it fit into the arena."""
        tokens = exponential(self._roll()) * pages * self.notes.page_size
        return 1 + int(min(tokens, self._most_tokens * (0.2 + 0.5 * self._roll())))
