"""A forward that computes attention through the arena, and compares it with what it should be.

Keys, values and queries are a hash of (request, position, layer, element), made on the device. Every
forward writes the rows of its new tokens through the device's own tables (the mirror that `launch`
published), attends over the live context of some requests of the batch, and compares with a
contiguous float64 reference made from the hash alone. All of it runs on the forward stream, so it
overlaps the scheduler; errors stay on the device and are fetched every `FETCH_STEPS` steps.

A page that is moved wrongly, reused too early or looked up in a table that was overwritten under the
forward shows as a wrong sum or as an unmapped page, naming request, layer and ticket.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from bandscope.allocator.arena import Arena
from bandscope.allocator.device import forward as kernels
from bandscope.allocator.plan import BandPlan
from bandscope.fuzz.workload.hashing import MIX, mix

FETCH_STEPS = 64
MISMATCHES_KEPT = 20
# bf16 inputs are exact in the reference; what differs is the order of float32 sums.
TOLERANCE = 5e-3
QUERY_HEADS_PER_KV_HEAD = 2


@dataclass(frozen=True)
class WrongAttention:
    """One request of one forward whose attention was wrong, or that met unmapped pages."""

    ticket: int
    request: int
    band: str
    layer: int
    error: float
    unmapped: int

    def __str__(self) -> str:
        return (
            f"content: ticket {self.ticket}, request {self.request}, band {self.band}, layer "
            f"{self.layer}: attention off by {self.error:.3g}, {self.unmapped} tokens unmapped"
        )


@dataclass(frozen=True)
class AttendedLayer:
    """One layer of a token band: its views, and the shape of its rows."""

    band: BandPlan
    index: int
    layer: int
    keys: torch.Tensor
    values: torch.Tensor | None


@dataclass
class AttentionForward:
    """The scheduler's forward. `layers_per_band`: how many layers of each token band take part.
    `sample_requests` of the batch are attended per step, those with at most `context_max` tokens.
    `slow` stretches the kernels."""

    arena: Arena
    layers_per_band: int = 2
    sample_requests: int = 4
    context_max: int = 8192
    slow: int = 0
    seed: int = 0
    rows_written: int = 0
    rows_checked: int = 0
    mismatch_count: int = 0
    mismatches: list[WrongAttention] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._device = self.arena.buffer.device
        self._random = np.random.Generator(np.random.PCG64(self.seed))
        self._layers = self._choose_layers()
        # Per attended batch: who it was, the worst error of each request, and its unmapped tokens.
        self._pending: list[tuple[int, list[int], AttendedLayer, torch.Tensor, torch.Tensor]] = []
        self._steps = 0

    def _choose_layers(self) -> list[AttendedLayer]:
        chosen = []
        for index, band in enumerate(self.arena.plan.bands):
            if band.kind == "state":
                continue
            layers = sorted({row.layer for row in band.rows})
            for layer in dict.fromkeys([*layers[: self.layers_per_band - 1], layers[-1]]):
                names = {row.name for row in band.rows if row.layer == layer}
                latent = "latent" in names
                keys = self.arena.view(layer, "latent" if latent else "k")
                values = None if latent else self.arena.view(layer, "v")
                chosen.append(AttendedLayer(band, index, layer, keys, values))
        return chosen

    # --- the scheduler's forward --------------------------------------------------------------------

    def run(self, ticket: int, spans: list[tuple[int, int, int]]) -> None:
        """Write the spans' rows in every chosen layer, then attend and compare for a sample."""
        arena = self.arena
        rows = arena.books.ledger.rows([request for request, _, _ in spans])
        columns = max(1, int(arena.books.ledger.page_count[rows].max()))
        short = [number for number, span in enumerate(spans) if span[2] <= self.context_max]
        sample = sorted(self._random.permutation(short)[: self.sample_requests].tolist())
        # Everything below is issued on the forward stream, uploads too: nothing else orders them.
        with arena.device.forward(ticket):
            table = self._upload(arena.books.ledger.pages[rows, :columns].astype(np.int64))
            checks: list[Callable[[], None]] = []
            for layer in self._layers:
                self._write(ticket, layer, table, spans)
                if sample:
                    checks.append(self._attend(ticket, layer, table, spans, sample))
            tables_read = getattr(arena.device, "tables_read", None)
            if tables_read is not None:
                tables_read(ticket)
            for check in checks:
                check()
        self._steps += 1
        if self._steps % FETCH_STEPS == 0:
            self.fetch()

    def leaving(self, request: int, tokens: int) -> None:
        """Nothing is read at the end of a request: the steps checked samples of its context."""

    def fetch(self) -> None:
        """Bring the errors of the steps since the last time to the host and name what is wrong."""
        if not self._pending:
            return
        self.arena.device.synchronize()
        errors = torch.cat([error for _, _, _, error, _ in self._pending]).cpu().numpy()
        missing = torch.cat([count for _, _, _, _, count in self._pending]).cpu().numpy()
        owners = [
            (ticket, request, layer)
            for ticket, requests, layer, _, _ in self._pending
            for request in requests
        ]
        for place in np.flatnonzero(~(errors <= TOLERANCE) | (missing > 0)).tolist():
            ticket, request, layer = owners[place]
            self.mismatch_count += 1
            if len(self.mismatches) < MISMATCHES_KEPT:
                self.mismatches.append(
                    WrongAttention(
                        ticket, request, layer.band.name, layer.layer,
                        float(errors[place]), int(missing[place]),
                    )  # fmt: skip
                )
        self._pending = []

    # --- one layer ------------------------------------------------------------------------------------

    def _write(
        self,
        ticket: int,
        layer: AttendedLayer,
        table: torch.Tensor,
        spans: list[tuple[int, int, int]],
    ) -> None:
        counts = np.array([stop - start for _, start, stop in spans])
        positions = np.concatenate([np.arange(start, stop) for _, start, stop in spans])
        requests = np.repeat([request for request, _, _ in spans], counts)
        on_device = self._upload(
            np.stack([np.repeat(np.arange(len(spans)), counts), positions, requests])
        )
        batch, position, request = on_device[0], on_device[1], on_device[2]
        unmapped = torch.zeros(len(spans), dtype=torch.int32, device=self._device)
        kernels.write_rows(
            layer.keys, layer.values, self.arena.device.mirror(layer.index), table,
            batch.contiguous(), position.contiguous(),
            self._tensor(layer.keys, request, position, layer.layer, 1),
            None if layer.values is None
            else self._tensor(layer.values, request, position, layer.layer, 2),
            unmapped=unmapped, slow=self.slow,
        )  # fmt: skip
        self.rows_written += positions.size
        zero = torch.zeros(len(spans), dtype=torch.float64, device=self._device)
        owners = [request for request, _, _ in spans]
        self._pending.append((ticket, owners, layer, zero, unmapped))

    def _attend(
        self,
        ticket: int,
        layer: AttendedLayer,
        table: torch.Tensor,
        spans: list[tuple[int, int, int]],
        sample: list[int],
    ) -> Callable[[], None]:
        """Launch the attention of the sampled requests; returns the comparison, to be issued after
        every kernel that reads tables."""
        requests = [spans[number][0] for number in sample]
        lengths = [spans[number][2] for number in sample]
        on_device = self._upload(np.array([sample, requests, lengths]))
        queries = self._queries(layer, on_device[1], on_device[2])
        values = layer.keys if layer.values is None else layer.values
        width = values.shape[-1]
        out = torch.full((len(sample), queries.shape[1], width), torch.nan, device=self._device)
        unmapped = torch.zeros(len(sample), dtype=torch.int32, device=self._device)
        kernels.paged_attention(
            queries, layer.keys, values, self.arena.device.mirror(layer.index), table,
            on_device[2].contiguous(), scale=queries.shape[2] ** -0.5, out=out, unmapped=unmapped,
            window=layer.band.window_length, table_rows=on_device[0].contiguous(), slow=self.slow,
        )  # fmt: skip

        def compare() -> None:
            errors = [
                (out[number].double() - self._reference(layer, queries[number], request, length))
                .abs()
                .max()
                for number, (request, length) in enumerate(zip(requests, lengths, strict=True))
            ]
            self.rows_checked += sum(lengths)
            self._pending.append((ticket, requests, layer, torch.stack(errors), unmapped))

        return compare

    def _reference(
        self, layer: AttendedLayer, query: torch.Tensor, request: int, length: int
    ) -> torch.Tensor:
        """Softmax attention in float64 over keys and values made from the hash: (heads, width)."""
        first = 0
        if layer.band.window_length is not None:
            first = max(0, length - layer.band.window_length)
        position = torch.arange(first, length, device=self._device)
        owner = torch.full_like(position, request)
        keys = self._tensor(layer.keys, owner, position, layer.layer, 1).double()
        if layer.values is None:
            keys = keys.unsqueeze(1)
            values = keys
        else:
            values = self._tensor(layer.values, owner, position, layer.layer, 2).double()
        group = query.shape[0] // keys.shape[1]
        grouped = query.double().view(keys.shape[1], group, -1)
        scores = torch.einsum("ngd,tnd->ngt", grouped, keys) * query.shape[1] ** -0.5
        result = torch.einsum("ngt,tnd->ngd", scores.softmax(dim=2), values)
        return result.reshape(query.shape[0], -1)

    # --- what the rows hold -------------------------------------------------------------------

    def _tensor(
        self,
        view: torch.Tensor,
        request: torch.Tensor,
        position: torch.Tensor,
        layer: int,
        kind: int,
    ) -> torch.Tensor:
        """Rows of tokens `(request[i], position[i])`: values between −1 and 1, of the view's type."""
        shape = view.shape[2:]
        token = mix(request * MIX[1] + position * 1_000_003 + layer * 8191 + kind)
        element = torch.arange(shape.numel(), device=self._device)
        bits = mix(token[:, None] + element[None, :] * MIX[2]) & 0xFFFF
        values = bits.to(torch.float32) / 32768 - 1
        return values.to(view.dtype).view(-1, *shape)

    def _queries(
        self, layer: AttendedLayer, request: torch.Tensor, length: torch.Tensor
    ) -> torch.Tensor:
        """(batch, heads, key width): sharp enough that few keys decide."""
        kv_heads = layer.keys.shape[2] if layer.values is not None else 1
        heads = [
            self._tensor(layer.keys, request, length, layer.layer, 3 + head).view(
                request.numel(), kv_heads, 1, -1
            )
            for head in range(QUERY_HEADS_PER_KV_HEAD)
        ]
        queries = torch.cat(heads, dim=2) * 4
        return queries.reshape(request.numel(), kv_heads * len(heads), -1).contiguous()

    def _upload(self, numbers: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(numbers))
        if self._device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)
