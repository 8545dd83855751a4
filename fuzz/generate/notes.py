"""What the generator knows: which requests, tickets and leases there are, and how full it may be.

Made from steps and outcomes alone. The estimate of what is free is naive on purpose (no page grid, no
pins, no pending pages): it serves to aim at "exactly full", not to predict.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bandscope.allocator import operations as ops
from bandscope.allocator.operations import Outcome
from bandscope.fuzz.program import Layout, Step

FRESH_REQUEST = 100  # numbers below are the hot ones


class Request:
    """A running request: `length` tokens with room, state `slots`, and its length when a forward took
    it last (`launched`) and when its windows were trimmed last (`trimmed`). `prompt_left` and
    `output_left`: tokens that it still wants (serving). With a prefix cache: its `key` so far, and the
    tokens that it shares (`shared`)."""

    __slots__ = (
        "at", "key", "launched", "length", "number", "output_left", "prompt_left", "shared", "slots",
        "trimmed",
    )  # fmt: skip

    def __init__(self, number: int, slots: int, at: int) -> None:
        self.number = number
        self.slots = slots
        self.length = 0
        self.trimmed = 0
        self.launched = 0
        self.at = at  # its index among those that run
        self.prompt_left = 0
        self.output_left = 0
        self.key: tuple[int, ...] = ()
        self.shared = 0


class Notes:
    """Notes of one run over an arena of `layout`.

    `running` and `numbers`: the requests that run, in parallel lists of no particular order.
    `in_flight`, `leases`: names, oldest first; a lease with its holder. `closed`: the gate. `stuck`:
    refusals for want of room since the last thing that took or gave some. `cached`: the arena has a
    prefix cache, whose keys have `unit` elements a page and whose checkpoints lie on `grid` tokens.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        plan = layout.plan()
        self.bands = plan.bands
        self.page_size = plan.page_size
        self.windows = [
            (band, band.window_length) for band in plan.bands if band.window_length is not None
        ]
        self.has_state = plan.has_state
        self.state_bytes = sum(band.page_bytes for band in plan.bands if band.kind == "state")
        self.token_bytes = sum(band.page_bytes for band in plan.bands if band.kind != "state")
        self.usable_bytes = layout.total_bytes - plan.sink_bytes
        config = layout.config
        self.cached = config.prefix_cache
        self.grid = config.checkpoint_grid_tokens
        self.unit = plan.page_size if config.prefix_keys == "tokens" else 1
        self.running: list[Request] = []
        self.numbers: list[int] = []
        self.by_number: dict[int, Request] = {}
        self.in_flight: list[int] = []
        self.leases: list[tuple[int, str]] = []
        self.closed = False
        self.stuck = 0
        self.reason = ""  # of the last refusal; empty when the last step was done
        self.last_request = -1  # released last
        self.last_ticket = 0  # completed last, by name
        self.last_lease = 0  # ended last, by name
        self.last_pin: ops.Lease | None = None
        self.next_request = FRESH_REQUEST
        self.next_ticket = 1
        self.next_lease = 1

    def note(self, step: Step, outcome: Outcome) -> None:
        """What became of a step."""
        if outcome.ok:
            self.reason = ""
            noted = _NOTED.get(type(step.operation))
            if noted is not None:
                noted(self, step, outcome)
            return
        self.reason = outcome.reason
        if outcome.reason != "misuse":
            self.stuck += 1

    # --- questions ----------------------------------------------------------------------------------

    def pages(self, request: Request) -> int:
        """Token pages of a request's own order."""
        return -(-request.length // self.page_size)

    def first_kept(self, request: Request, window_length: int | None) -> int:
        """The first page that a window band of this length keeps of a request."""
        if window_length is None:
            return 0
        return max(0, request.trimmed - window_length + 1) // self.page_size

    def covered(self, request: Request) -> int:
        """Tokens that the key of a request names."""
        return len(request.key) // self.unit * self.page_size

    def whole(self, request: Request) -> int:
        """Tokens of the whole pages that some forward has computed."""
        return request.launched // self.page_size * self.page_size

    def free_bytes(self) -> int:
        """About how many bytes no request holds. Goes over all that run: ask seldom."""
        held = 0
        for request in self.running:
            held += request.slots * self.state_bytes + self.pages(request) * self.token_bytes
            for band, length in self.windows:
                held -= self.first_kept(request, length) * band.page_bytes
        return max(0, self.usable_bytes - held)

    # --- what was done --------------------------------------------------------------------------------

    def _admitted(self, step: Step, outcome: Outcome) -> None:
        op: Any = step.operation
        request = Request(op.request, op.state_slots if self.has_state else 0, len(self.running))
        if self.cached:
            request.key = op.key
            matched = outcome.value or 0
            request.shared = request.length = request.launched = request.trimmed = matched
        self.running.append(request)
        self.numbers.append(op.request)
        self.by_number[op.request] = request
        self.stuck = 0

    def _extended(self, step: Step, outcome: Outcome) -> None:
        op: Any = step.operation
        self.by_number[op.request].length += op.tokens
        if op.tokens:
            self.stuck = 0

    def _decoded(self, step: Step, outcome: Outcome) -> None:
        op: Any = step.operation
        by_number = self.by_number
        for number in op.requests:
            by_number[number].length += 1

    def _trimmed(self, step: Step, outcome: Outcome) -> None:
        op: Any = step.operation
        by_number = self.by_number
        for number in op.requests:
            request = by_number[number]
            request.trimmed = request.length

    def _released(self, step: Step, outcome: Outcome) -> None:
        op: Any = step.operation
        gone = self.by_number.pop(op.request)
        self.last_request = op.request
        last = self.running.pop()
        self.numbers.pop()
        if last is not gone:  # the last one takes its place
            self.running[gone.at] = last
            self.numbers[gone.at] = last.number
            last.at = gone.at
        self.stuck = 0

    def _launched(self, step: Step, outcome: Outcome) -> None:
        op: Any = step.operation
        by_number = self.by_number
        for number in op.requests:
            request = by_number[number]
            request.launched = request.length
        if step.name is not None:
            self.in_flight.append(step.name)

    def _completed(self, step: Step, outcome: Outcome) -> None:
        op: Any = step.operation
        self.in_flight.remove(op.ticket)
        self.last_ticket = op.ticket

    def _leased(self, step: Step, outcome: Outcome) -> None:
        op: Any = step.operation
        if step.name is not None:
            self.leases.append((step.name, op.holder))
            self.last_pin = op

    def _lease_ended(self, step: Step, outcome: Outcome) -> None:
        op: Any = step.operation
        self.leases = [held for held in self.leases if held[0] != op.lease]
        self.last_lease = op.lease
        self.stuck = 0

    def _published(self, step: Step, outcome: Outcome) -> None:
        op: Any = step.operation
        if not outcome.value and type(op) is ops.Checkpoint:
            return  # it stalled: nothing happened
        request = self.by_number[op.request]
        request.key += op.key
        request.shared = max(request.shared, outcome.value or 0)
        self.stuck = 0

    def _evicted(self, step: Step, outcome: Outcome) -> None:
        if outcome.value:
            self.stuck = 0

    def _gate_set(self, step: Step, outcome: Outcome) -> None:
        op: Any = step.operation
        self.closed = op.closed
        self.stuck = 0


_NOTED: dict[type, Callable[[Notes, Step, Outcome], None]] = {
    ops.Admit: Notes._admitted,
    ops.Extend: Notes._extended,
    ops.Decode: Notes._decoded,
    ops.TrimWindow: Notes._trimmed,
    ops.Release: Notes._released,
    ops.Publish: Notes._published,
    ops.Checkpoint: Notes._published,
    ops.Evict: Notes._evicted,
    ops.Launch: Notes._launched,
    ops.Complete: Notes._completed,
    ops.Lease: Notes._leased,
    ops.EndLease: Notes._lease_ended,
    ops.SetGate: Notes._gate_set,
}
