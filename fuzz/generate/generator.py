"""The generator: an arena, a schedule and an endless list of steps, all from one seed.

Steps follow from the seed and from the outcomes that it was told, never from the arena: what goes wrong
in there cannot change what is asked of it until an outcome says so.
"""

from __future__ import annotations

from random import Random
from typing import Any

from bandscope.allocator.operations import Outcome
from bandscope.fuzz.generate import phases, serving, wild
from bandscope.fuzz.generate.cached_layouts import choose_cached_layout
from bandscope.fuzz.generate.layouts import choose_layout
from bandscope.fuzz.generate.mix import CACHED_SHARE, choose_mix, describe_mix, with_options
from bandscope.fuzz.generate.notes import Notes
from bandscope.fuzz.program import Layout, Names, Program, Step

OPERATIONS = 200
PHASE_STEPS = (20, 60, 150, 150, 400)
DRAIN_STEPS = (4, 8, 16, 60)  # short ones keep the arena at the brim

_WILD_PHASES = tuple(phases.PHASES)
_CACHED_PHASES = tuple(phases.CACHED_PHASES)
_SERVING_PHASES = tuple(serving.PHASES)


class Generator:
    """Steps of a seed. `layout` and `schedule` are chosen by it too; `options` set fields of its `mix`
    (see `mix.Mix`). `intent` says what the last step was made for.

    Raises `ValueError` for a profile that is none.
    """

    def __init__(
        self, seed: int, profile: str = "serving", layout: Layout | None = None, **options: Any
    ) -> None:
        self.seed = seed
        self.profile = profile
        # A stream of its own for each, so that giving one does not change the others.
        self.mix = with_options(choose_mix(Random(f"mix/{profile}/{seed}"), profile), options)
        self.layout = _choose_layout(seed, profile) if layout is None else layout
        self.schedule = choose_schedule(Random(f"schedule/{profile}/{seed}"))
        self.notes = Notes(self.layout)
        self._random = Random(f"steps/{profile}/{seed}")
        self._wild = wild.Wild(self.notes, self.mix, self._random)
        self._serving = serving.Serving(self.notes, self.mix, self._random)
        self._actor: wild.Wild | serving.Serving = self._wild
        self.phase = ""
        self._left = 0
        self._draining = False
        self._begin()

    @property
    def intent(self) -> str:
        """What the last step was made for, for coverage and reports."""
        return self._actor.intent

    def next(self) -> Step:
        """The next step."""
        self._left -= 1
        if self._left < 0:
            self._begin()
        elif self.notes.stuck > phases.STUCK_MAX:
            self._begin("drain")
        elif self._draining and not self.notes.running:
            self._begin()
        return self._actor.next()

    def note(self, step: Step, outcome: Outcome) -> None:
        """What became of a step: to be told after each `next`."""
        self.notes.note(step, outcome)

    def _begin(self, phase: str = "") -> None:
        random = self._random
        self.notes.stuck = 0
        self._left = random.choice(DRAIN_STEPS if phase else PHASE_STEPS)
        serves = self.profile == "serving" or (
            self.profile in ("mixed", "caching") and random.random() < 0.4
        )
        if serves:
            self.phase = phase or random.choice(_SERVING_PHASES)
            self._serving.begin(self.phase)
            self._actor = self._serving
        else:
            chosen = _CACHED_PHASES if self.notes.cached else _WILD_PHASES
            self.phase = phase or random.choice(chosen)
            self._wild.begin(self.phase)
            self._actor = self._wild
        self._draining = self.phase == "drain"


def _choose_layout(seed: int, profile: str) -> Layout:
    cache = Random(f"cache/{profile}/{seed}")
    if cache.random() < CACHED_SHARE[profile]:
        return choose_cached_layout(cache)
    return choose_layout(Random(f"layout/{profile}/{seed}"))


def choose_schedule(random: Random) -> str:
    """How a simulated device orders its work (see `fuzz.schedules`)."""
    kind = random.choice(("eager", "latest", "random", "random", "pct"))
    if kind == "random":
        return f"random:{random.randrange(1 << 32)}"
    if kind == "pct":
        return f"pct:{random.randrange(1 << 32)}:d={random.randrange(1, 5)}:k=200"
    return kind


def generate(
    seed: int,
    profile: str = "serving",
    operations: int = OPERATIONS,
    layout: Layout | None = None,
    **options: Any,
) -> Program:
    """The program of a seed: its first `operations` steps, with the outcomes that an arena without
    bytes gives."""
    generator = Generator(seed, profile, layout, **options)
    arena = generator.layout.arena()
    names = Names()
    steps = []
    for _ in range(operations):
        step = generator.next()
        outcome = arena.apply(names.resolve(step))
        names.note(step, outcome)
        generator.note(step, outcome)
        steps.append(step)
    return Program(generator.layout, tuple(steps), generator.schedule, seed, profile)


def describe(seed: int, profile: str = "serving") -> str:
    """What a seed asks for, in plain words."""
    generator = Generator(seed, profile)
    layout = generator.layout
    bands = ", ".join(f"{band.name} {band.page_bytes:,} B" for band in generator.notes.bands)
    policies = ", ".join(f"{key} {value}" for key, value in layout.to_json()["config"].items())
    return "\n".join(
        [
            f"seed {seed}, profile {profile}, schedule {generator.schedule}",
            f"arena:    {layout.total_bytes:,} B, {layout.page_size} tokens a page; pages of {bands}",
            f"policies: {policies or 'the default'}",
            describe_mix(generator.mix, generator.notes.cached),
        ]
    )
