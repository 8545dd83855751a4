"""A forward that computes through the arena, and compares with what should come out.

Every forward writes the keys and values of its new tokens through the device's own tables (the
mirror that `launch` published), lets the requests of its batch attend to their live context, and
takes their recurrent states one step further. A sample of the attention, and every state of the
chosen layers, is compared with what is known without the arena (`attention_reference`,
`attention_states`). A request that leaves is read whole once more.

All of it is issued on the forward stream, inside the ticket, so it overlaps the scheduler, and the
host waits for none of it: results arrive some steps later (`attention_results`). A page moved
wrongly, reused too early, or looked up in a table that was overwritten under the forward shows as
a wrong sum, a wrong state or an unmapped token, naming request, layer and ticket.

How fine it is. Inputs are exact (`attention_content`), and scores are small, so that all tokens of
a context weigh about the same, 1/length. One token whose key and value are another's moves some
element of the result by about 1/length or more: more than `TOLERANCE` in contexts of up to 30,000;
a wrong key alone in contexts of up to some 5,000. What is right is off by less than a tenth of it,
by float32 sums (`error_max` says by how much). How fine states are, `state_tolerance` says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from bandscope.allocator.arena import Arena
from bandscope.allocator.device import forward as kernels
from bandscope.allocator.errors import ConfigError
from bandscope.fuzz.workload.attention_batch import Batch, BatchTables, Span
from bandscope.fuzz.workload.attention_layers import (
    Attended,
    TokenLayer,
    attend,
    token_layers,
    write_tokens,
)
from bandscope.fuzz.workload.attention_reference import right_attention
from bandscope.fuzz.workload.attention_results import Checked, Findings, WrongResult
from bandscope.fuzz.workload.attention_states import CheckedState, States
from bandscope.fuzz.workload.uploads import upload

TOLERANCE = 3e-5


@dataclass
class AttentionForward:
    """The scheduler's forward.

    `layers_per_band`: layers of each band that take part, first and last among them.
    `sample_requests` of the batch, chosen at random, are compared at most, while the allowance of
    `reference_tokens` of context per step lasts: a longer context is compared all the same, and the
    steps after it pay its debt. `attend_all`: the others attend to their context too, and must meet
    no unmapped token and nothing but numbers. `fetch_steps`: steps between two copies of the
    results to the host. `slow` stretches the kernels (see `allocator.device.forward`).

    None stands for 2 layers, 16,384 tokens and True; on the CPU, where Triton interprets, for 1
    layer, 64 tokens and False.

    `rows_written`: keys, values and states. `rows_checked`: tokens of context whose attention was
    compared, times layers, and states.
    """

    arena: Arena
    layers_per_band: int | None = None
    sample_requests: int = 4
    reference_tokens: int | None = None
    attend_all: bool | None = None
    fetch_steps: int = 64
    slow: int = 0
    seed: int = 0
    rows_written: int = field(default=0, init=False)
    rows_checked: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._where = self.arena.buffer.device
        _check_interpreter(self._where)
        on_cpu = self._where.type == "cpu"
        per_band = self.layers_per_band or (1 if on_cpu else 2)
        self._tokens_per_step = self.reference_tokens or (64 if on_cpu else 16_384)
        self._attend_all = not on_cpu if self.attend_all is None else self.attend_all
        self._random = np.random.Generator(np.random.PCG64(self.seed))
        self._layers = token_layers(self.arena, per_band)
        self._states = States(self.arena, per_band)
        self._tables = BatchTables(self.arena)
        self._findings = Findings()
        self._allowance = 0  # tokens that may still be compared in this step; below 0: a debt
        self._ticket = 0
        self._steps = 0
        # The patterns of states were made on the current stream; forwards run on another.
        self.arena.device.synchronize()

    @property
    def mismatch_count(self) -> int:
        """Wrong results that have arrived so far."""
        return self._findings.mismatch_count

    @property
    def mismatches(self) -> list[WrongResult]:
        """The first of them."""
        return self._findings.mismatches

    @property
    def error_max(self) -> float:
        """The largest difference of attention that was within the tolerance."""
        return self._findings.error_max

    # --- the scheduler's forward ------------------------------------------------------------------

    def entering(self, request: int, key: np.ndarray | None, tokens: int) -> None:
        """Content is the request's own here: `Run` refuses this check with a prefix cache."""

    def run(self, ticket: int, spans: list[Span]) -> None:
        """Write the rows of the spans in every chosen layer, step the states, attend; compare."""
        device = self.arena.device
        self._ticket = ticket
        # Everything, uploads too, inside: on the forward stream, so that it is in order and scratch
        # memory is not given away under it.
        with device.forward(ticket):
            batch = self._tables.batch(spans)
            for layer in self._layers:
                self._write(layer, batch)
            self._keep_states(batch.requests.tolist(), self._states.step(batch, self.slow))
            self.rows_written += len(spans) * len(self._states.rows)
            order = self._random.permutation(len(spans))
            compared = self._affordable(batch.stops[order].tolist())
            chosen = order if self._attend_all else order[:compared]
            results = self._attend(batch, chosen)
            _tell_tables_read(device, ticket)  # no kernel after this one reads tables
            self._compare(batch, chosen, compared, results)
            self._steps += 1
            if self._steps % self.fetch_steps == 0:
                self._findings.send()
        self._findings.judge(wait=False)

    def leaving(self, request: int, tokens: int) -> None:
        """Check all that the request still holds, through the host's tables: pages may have moved
        since the newest launch, and the device hears of that at the next.

        The reads join the newest ticket, which the pages freed next are stamped with. Where that
        ticket counts as settled already, the scheduler's next writes are ordered behind the reads.
        """
        device = self.arena.device
        if tokens == 0 or self._ticket == 0:
            return
        device.launch(self._ticket)  # behind moves issued since
        with device.forward(self._ticket):
            self._keep_states([request], self._states.leaving(request))
            for layer in self._layers:
                self._check_leaving(layer, request, tokens)
        if not self.arena.books.tickets.unsettled:
            device.order_behind(self._ticket)

    def fetch(self) -> None:
        """Bring what was found since the last time to the host, and name what is wrong. Waits."""
        if self._findings:
            with self.arena.device.forward(self._ticket):
                self._findings.send()
        self._findings.judge(wait=True)

    # --- its parts --------------------------------------------------------------------------------

    def _write(self, layer: TokenLayer, batch: Batch) -> None:
        mirror = self.arena.device.mirror(layer.band_index)
        unmapped = write_tokens(layer, batch, mirror, self.slow)
        self.rows_written += batch.positions.numel() * (1 if layer.latent else 2)
        errors = torch.zeros_like(unmapped, dtype=torch.float64)
        self._keep(layer, "write", batch.requests.tolist(), errors, unmapped)

    def _attend(self, batch: Batch, chosen: np.ndarray) -> list[Attended]:
        """Attention of the chosen requests, in every layer."""
        picked = upload(chosen, self._where)
        requests, stops = batch.requests_there[picked], batch.stops_there[picked]
        rows = batch.rows_there[picked]
        return [
            attend(
                layer, requests, stops, self.arena.device.mirror(layer.band_index),
                batch.page_table, rows, window=layer.band.window_length, slow=self.slow,
            )  # fmt: skip
            for layer in self._layers
        ]

    def _affordable(self, lengths: list[int]) -> int:
        """How many of these contexts are compared in this step, from the first on."""
        self._allowance = min(self._allowance, 0) + self._tokens_per_step
        count = 0
        while count < min(self.sample_requests, len(lengths)) and self._allowance > 0:
            self._allowance -= lengths[count]
            count += 1
        return count

    def _compare(
        self, batch: Batch, chosen: np.ndarray, compared: int, results: list[Attended]
    ) -> None:
        """Compare the first `compared` of the chosen requests; of the others NaN shows."""
        requests, lengths = batch.requests[chosen].tolist(), batch.stops[chosen].tolist()
        for layer, attended in zip(self._layers, results, strict=True):
            # NaN where the arena held no number, otherwise 0.
            errors = (attended.out.double() * 0).amax(dim=(1, 2))
            for number in range(compared):
                length = lengths[number]
                first = layer.first_attended(length)
                errors[number] = self._error(
                    layer, attended, number, requests[number], first, length
                )
            self._keep(layer, "attention", requests, errors, attended.unmapped)

    def _check_leaving(self, layer: TokenLayer, request: int, tokens: int) -> None:
        pages, first_page = self.arena.pages_of(request, layer.band.name)
        # A window may have been trimmed to what the token after the last one attends to.
        first = max(layer.first_attended(tokens), first_page * layer.band.page_size)
        if first == tokens:
            return
        there = upload(np.array([request, tokens, 0]), self._where)
        table = upload(np.concatenate([np.full(first_page, -1), pages])[None, :], self._where)
        attended = attend(
            layer, there[:1], there[1:2], None, table.contiguous(), there[2:],
            window=None if first == 0 else tokens - first,
        )  # fmt: skip
        error = self._error(layer, attended, 0, request, first, tokens)
        self._keep(layer, "attention", [request], error[None], attended.unmapped)

    def _error(
        self,
        layer: TokenLayer,
        attended: Attended,
        number: int,
        request: int,
        first: int,
        stop: int,
    ) -> torch.Tensor:
        """The largest difference of result `number` from what is right, a scalar on the device."""
        right = right_attention(layer, attended.queries[number], request, first, stop)
        self.rows_checked += stop - first
        return (attended.out[number].double() - right).abs().amax()

    def _keep(
        self,
        layer: TokenLayer,
        what: str,
        requests: list[int],
        errors: torch.Tensor,
        unmapped: torch.Tensor,
    ) -> None:
        self._findings.keep(
            Checked(
                self._ticket, requests, layer.band.name, layer.layer, what, TOLERANCE, errors,
                unmapped,
            )  # fmt: skip
        )

    def _keep_states(self, requests: list[int], checked: Iterable[CheckedState]) -> None:
        for state in checked:
            row = state.row
            self._findings.keep(
                Checked(
                    self._ticket, requests, row.band.name, row.layer, f"state {row.name}", 0.0,
                    state.errors, state.unmapped,
                )  # fmt: skip
            )
            self.rows_checked += len(requests)


def _check_interpreter(where: torch.device) -> None:
    on_cpu = where.type == "cpu"
    if kernels.INTERPRETED != on_cpu:
        raise ConfigError(
            f"attention was to be computed on {where.type}, but Triton "
            f"{'interprets' if kernels.INTERPRETED else 'compiles'} in this process; "
            f"{'set' if on_cpu else 'unset'} TRITON_INTERPRET{'=1' if on_cpu else ''} before it "
            "is imported"
        )


def _tell_tables_read(device: Any, ticket: int) -> None:
    """Where a device can tell a forward's reads of the tables from the rest of it."""
    if hasattr(device, "tables_read"):
        device.tables_read(ticket)
