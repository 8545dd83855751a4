"""A program: an arena, the steps asked of it, and the schedule its device follows. Plain data.

The generator writes programs, a campaign runs them, the shrinker makes them smaller, and a file holds
one. Tickets and leases have *names* in a program, chosen by whoever writes it, because their numbers
depend on what came before: leave a launch out, and every later ticket has another number.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.device.protocol import Device
from bandscope.allocator.errors import BandscopeError, ConfigError
from bandscope.allocator.events import Observer
from bandscope.allocator.handlers import HANDLERS
from bandscope.allocator.operations import Operation, Outcome
from bandscope.allocator.plan import StoragePlan, plan_from_sizes

SCHEMA = "bandscope-program/1"

# A name that no step of the program has made stands for a number that no arena has given.
UNKNOWN = 1 << 40

KINDS: dict[str, type[Operation]] = {kind.__name__: kind for kind in HANDLERS}


@dataclass(frozen=True)
class Layout:
    """An arena to build: bands as (name, page bytes) in any order, tokens per page of the token bands,
    the whole arena in bytes (sink included; rounded down as an arena does), and its policies."""

    bands: tuple[tuple[str, int], ...]
    page_size: int
    total_bytes: int
    config: ArenaConfig = field(default_factory=ArenaConfig)

    def plan(self) -> StoragePlan:
        """The storage plan; `ConfigError` when there is none."""
        return plan_from_sizes(self.bands, page_size=self.page_size)

    def arena(self, device: str | Device = "none", observer: Observer | None = None) -> Arena:
        """A new arena; `SizingError` when not even one page of each band fits."""
        return Arena(
            self.plan(), self.total_bytes, device=device, config=self.config, observer=observer
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data; policies that are the default are left out."""
        default = ArenaConfig()
        policies = {
            item.name: getattr(self.config, item.name)
            for item in dataclasses.fields(ArenaConfig)
            if getattr(self.config, item.name) != getattr(default, item.name)
        }
        return {
            "bands": [list(band) for band in self.bands],
            "page_size": self.page_size,
            "total_bytes": self.total_bytes,
            "config": policies,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Layout:
        """The layout that `to_json` wrote."""
        return cls(
            tuple((name, int(size)) for name, size in data["bands"]),
            data["page_size"],
            data["total_bytes"],
            ArenaConfig(**data["config"]),
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One operation. `name`: what the ticket (of a `Launch`) or lease (of a `Lease`) it makes is called
    from then on. The numbers in `Complete`, `EndLease` and a lease's deadline are such names."""

    operation: Operation
    name: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data, fields that have their default left out."""
        told: dict[str, Any] = {"do": self.operation.kind}
        for item in dataclasses.fields(self.operation):
            value = getattr(self.operation, item.name)
            if item.default is dataclasses.MISSING or value != item.default:
                told[item.name] = list(value) if isinstance(value, tuple) else value
        if self.name is not None:
            told["name"] = self.name
        return told

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Step:
        """The step that `to_json` wrote."""
        fields = dict(data)
        kind = KINDS[fields.pop("do")]
        name = fields.pop("name", None)
        told = {key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()}
        return cls(kind(**told), name)


class Names:
    """Which number each name stands for, as a program runs."""

    def __init__(self) -> None:
        self._tickets: dict[int, int] = {}
        self._leases: dict[int, int] = {}

    def resolve(self, step: Step) -> Operation:
        """The operation with numbers in the place of names."""
        operation = step.operation
        match operation:
            case ops.Complete(ticket=name):
                return ops.Complete(self._tickets.get(name, UNKNOWN + abs(name)))
            case ops.EndLease(lease=name):
                return dataclasses.replace(
                    operation, lease=self._leases.get(name, UNKNOWN + abs(name))
                )
            case ops.Lease(deadline_ticket=int() as name):
                number = self._tickets.get(name, UNKNOWN + abs(name))
                return dataclasses.replace(operation, deadline_ticket=number)
        return operation

    def note(self, step: Step, outcome: Outcome) -> None:
        """Remember what number the thing that `step` made was given."""
        if step.name is None or not outcome.ok:
            return
        match step.operation:
            case ops.Launch():
                self._tickets[step.name] = outcome.value
            case ops.Lease():
                self._leases[step.name] = outcome.value


def named(operations: Iterable[Operation]) -> tuple[Step, ...]:
    """Operations with real numbers, as an arena gave them to them, as steps. Every launch and lease is
    taken to have been done, in order: leave refused ones out."""
    steps = []
    tickets = leases = 0
    for operation in operations:
        name = None
        if isinstance(operation, ops.Launch):
            name = tickets = tickets + 1
        elif isinstance(operation, ops.Lease):
            name = leases = leases + 1
        steps.append(Step(operation, name))
    return tuple(steps)


@dataclass(frozen=True)
class Program:
    """`schedule`: the order in which a simulated device works (`fuzz.schedules`); `seed` and `profile`:
    where it came from, for reports."""

    layout: Layout
    steps: tuple[Step, ...]
    schedule: str = "eager"
    seed: int | None = None
    profile: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data for a file."""
        return {
            "schema": SCHEMA,
            "seed": self.seed,
            "profile": self.profile,
            "layout": self.layout.to_json(),
            "schedule": self.schedule,
            "steps": [step.to_json() for step in self.steps],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Program:
        """The program that `to_json` wrote; `ConfigError` says what is wrong with other data."""
        if data.get("schema") != SCHEMA:
            raise ConfigError(
                f"a program of schema {data.get('schema')!r} was given, but {SCHEMA!r} is read; write "
                "it again with this version"
            )
        try:
            program = cls(
                Layout.from_json(data["layout"]),
                tuple(Step.from_json(step) for step in data["steps"]),
                data["schedule"],
                data["seed"],
                data["profile"],
            )
            program.layout.plan()
        except (KeyError, TypeError, ValueError, AttributeError, BandscopeError) as error:
            raise ConfigError(
                f"a program was given whose data is not whole ({type(error).__name__}: {error}); give "
                "a file that `bandscope fuzz` wrote"
            ) from error
        return program


def write_program(path: Path, program: Program, **facts: Any) -> None:
    """Write a program to a file, a step per line, with `facts` about it (what was found, versions)."""
    data = {**program.to_json(), **facts}
    steps = data.pop("steps")
    head = json.dumps(data, indent=1)
    lines = ",\n  ".join(json.dumps(step) for step in steps)
    draft = path.with_suffix(path.suffix + ".new")
    draft.write_text(f'{head[:-2]},\n "steps": [\n  {lines}\n ]\n}}\n', encoding="utf-8")
    draft.replace(path)


def read_program(path: Path) -> tuple[Program, dict[str, Any]]:
    """The program of a file, and everything in it as plain data; `ConfigError` when it is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"program {path} cannot be read ({error}); give a file that `bandscope fuzz` wrote"
        ) from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds no program; give a file that `bandscope fuzz` wrote")
    return Program.from_json(data), data
