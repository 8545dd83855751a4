"""The one vocabulary of everything that can be asked of an arena.

An operation is a small frozen value. `Arena.apply` takes one and returns an `Outcome`; the driver,
the fuzzer, replay and traces all speak these. Operations name requests (integers the engine chose)
and roles, never physical pages, so a list of them keeps its meaning when some are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Operation:
    """Base of all operations; `kind` is the name used in traces and reports."""

    @property
    def kind(self) -> str:
        return type(self).__name__


@dataclass(frozen=True, slots=True)
class Admit(Operation):
    """A request enters: it gets a row and, where the model keeps state, `state_slots` slots.

    With a prefix cache, `key` names its sequence as far as it is known (one integer a page, or
    `page_size` tokens a page): it starts with the usable cached prefix, of at most `limit_tokens`
    tokens, as if it had computed it; the state there is copied into its first slot. The value is
    then the tokens that were matched. The key may cover more than will ever be computed.
    """

    request: int
    state_slots: int = 1
    key: tuple[int, ...] = ()
    limit_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Extend(Operation):
    """Room for `tokens` more tokens of one request in every token band (a prefill chunk)."""

    request: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Decode(Operation):
    """Room for one more token of each request, all or none."""

    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TrimWindow(Operation):
    """Free the window pages that no future token of these requests attends to. Asked for after the
    launch of the forward that computes their last tokens: it goes by the tokens that have room."""

    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Release(Operation):
    """A request leaves and frees everything that is its own; `why`: finished, aborted, retracted.
    With `publish`, its whole computed pages go to the prefix cache first, under its key continued
    by `key`; what it shares with the cache stays there."""

    request: int
    why: str = "finished"
    publish: bool = False
    key: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Publish(Operation):
    """The prefix cache becomes the owner of a request's whole computed pages, as far as its key,
    continued by `key`, names them. Where the cache has a page already, the request's copy is freed
    and the request uses the cache's: its virtual ids there change. The value is the tokens of the
    request's sequence that are shared from then on."""

    request: int
    key: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint(Operation):
    """Publish, with a copy of the request's state (its first slot) after exactly its computed
    tokens, which lie on the checkpoint grid. The copy needs a slot; when there is no room for one
    the checkpoint *stalls*: nothing happens and the value is 0. Otherwise the value is the tokens
    after which the cache holds the state."""

    request: int
    key: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Evict(Operation):
    """The prefix cache gives up at least `pages` (per band, in chain order) that no lease holds, or
    all of them where there are fewer. The value is the pages it gave up, of all bands. Nobody needs
    to ask for this to make room: demands evict what they need."""

    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Launch(Operation):
    """A forward over these requests starts: tables are published, the next ticket is its value."""

    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Complete(Operation):
    """The engine saw that the work of `ticket` has completed."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Compact(Operation):
    """Close holes. Opportunistic: at most `max_moves` page moves per band (the arena's cap when
    None), only bands whose share of holes is worth it, never a page that launched work may write.
    Urgent: every band packed, no cap, ordered behind launched work by a barrier."""

    urgent: bool = False
    max_moves: int | None = None


@dataclass(frozen=True, slots=True)
class Reserve(Operation):
    """Make room now for a demand (pages per band, in chain order) without taking it: the moves an
    allocation of that size would need are made, and later operations up to it find room."""

    demand: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lease(Operation):
    """Pin pages of a request so that they neither move nor get reused until `EndLease`.

    Pages are named by role: pages `[first_page, stop_page)` of the request's own order in `band`
    (state bands: slots). The value of the outcome is the lease's number. `holder` is who may end
    it; `purpose` is `forward`, `host copy` or `transfer`. `deadline_ticket`: once this ticket has
    completed the lease counts as overdue; it is reported, never ended for its holder.
    """

    request: int
    band: str
    first_page: int
    stop_page: int
    holder: str = "engine"
    purpose: str = "host copy"
    deadline_ticket: int | None = None


@dataclass(frozen=True, slots=True)
class EndLease(Operation):
    """Drop a pin; pages freed meanwhile become reusable when their work has completed. Only its
    holder may (None: whoever asks is taken for the holder)."""

    lease: int
    holder: str | None = None


@dataclass(frozen=True, slots=True)
class SetGate(Operation):
    """Close (or open) the gate: while closed, no page of any band may move."""

    closed: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an operation.

    `ok` is True when it was done. A refusal changed nothing and says why: `reason` is `memory`,
    `gate`, `pins`, `ids` or `misuse`; `message` is one sentence. `value` is what the operation
    yields (a ticket, a lease, the pages moved), None otherwise.
    """

    ok: bool
    value: Any = None
    reason: str = ""
    message: str = ""
    detail: dict[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.ok


DONE = Outcome(True)
