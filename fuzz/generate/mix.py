"""What one seed asks for: which operations, how often, and which oddities (swarm testing).

A run that does everything a little never does anything often enough. So each seed switches some
operations off, weighs the others from 1 to 100, and keeps to a few oddities.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from random import Random

from bandscope.allocator.leases import PURPOSES
from bandscope.fuzz.generate.misuse import ILLEGAL, OF_THE_CACHE

PROFILES = ("serving", "hostile", "misuse", "mixed", "caching")
# How often the arena of a seed has a prefix cache.
CACHED_SHARE = {"serving": 0.15, "hostile": 0.15, "misuse": 0.2, "mixed": 0.25, "caching": 1.0}

KINDS = (
    "Admit", "Extend", "Decode", "TrimWindow", "Release", "Launch", "Complete", "Compact", "Reserve",
    "Lease", "EndLease", "SetGate", "Publish", "Checkpoint", "Evict",
)  # fmt: skip
CACHE_KINDS = KINDS[-3:]  # only where the arena has a prefix cache
# The most an operation may weigh: those that stop everything, or change little, stay rarer.
HEAVIEST = {
    "Release": 45, "Compact": 25, "Reserve": 15, "Lease": 25, "EndLease": 40, "SetGate": 8,
    "Evict": 15,
}  # fmt: skip
OFF_SHARE = 0.2
ODDITIES = (
    "huge_ids", "early_trim", "empty", "absurd", "deadlines", "overlapping", "anonymous",
)  # fmt: skip


@dataclass(frozen=True)
class Mix:
    """The choices of one seed.

    `weights`: by kind of operation, 0 is off. `requests_max`, `in_flight_max`, `leases_max`: how many
    may be held at once. `hot_ids`: request numbers come from so few and return again and again (0:
    always new). `huge_ids`: numbers close to the largest that is allowed. `focus`: share of choices that
    fall on the oldest request. `in_order`: share of completions that take the oldest ticket. `exact`:
    share of sizes that aim at exactly full. `follow`: share of steps after which something
    comes that often goes wrong then. `misuse`: share of illegal steps, `illegal` their kinds.
    `early_trim`: windows may be trimmed before the forward is launched. `empty`: batches and ranges of
    nothing. `absurd`: demands far beyond the arena. `deadlines`: leases have them. `overlapping`: a page
    is leased twice. `anonymous`: leases are ended by nobody in particular. `purposes`: of leases.

    Where the arena has a prefix cache: `keyed`, share of admissions that have a key; `limited`, of those
    with a limit; `fresh`, of keys that begin anew; `letters`, how many different keys of a page there
    are; `key_pages`, by how many a known sequence is continued on average; `keeps`, share of releases
    that publish.
    """

    weights: tuple[int, ...]
    requests_max: int
    in_flight_max: int
    leases_max: int
    hot_ids: int
    huge_ids: bool
    focus: float
    in_order: float
    exact: float
    follow: float
    misuse: float
    illegal: tuple[str, ...]
    early_trim: bool
    empty: bool
    absurd: bool
    deadlines: bool
    overlapping: bool
    anonymous: bool
    purposes: tuple[str, ...]
    keyed: float = 1.0
    limited: float = 0.0
    fresh: float = 0.1
    letters: int = 2
    key_pages: float = 3.0
    keeps: float = 0.5

    def weight(self, kind: str) -> int:
        """How often an operation is asked for, against the others."""
        return self.weights[KINDS.index(kind)]


def choose_mix(random: Random, profile: str) -> Mix:
    """The mix of a seed."""
    if profile not in PROFILES:
        raise ValueError(f"profile {profile!r} was asked for; choose {', '.join(PROFILES)}")
    misuse, illegal = 0.0, tuple(ILLEGAL)
    known = [kind for kind in ILLEGAL if kind not in OF_THE_CACHE]
    if profile == "misuse":
        misuse = random.choice((0.1, 0.25, 0.5))
    elif profile == "mixed" and random.random() < 0.6:
        misuse = random.choice((0.02, 0.1, 0.3))
        illegal = tuple(kind for kind in known if random.random() < 0.5) + OF_THE_CACHE
    elif profile == "caching" and random.random() < 0.15:
        misuse, illegal = random.choice((0.05, 0.2)), (*OF_THE_CACHE, *known[:6])
    mix = Mix(
        weights=_choose_weights(random),
        requests_max=random.choice((1, 2, 4, 6, 8, 12, 16, 24, 40)),
        in_flight_max=random.choice((1, 2, 2, 3, 4, 6)),
        leases_max=random.choice((1, 2, 3, 8)),
        hot_ids=random.choice((0, 0, 1, 2, 4, 8)),
        huge_ids=random.random() < 0.1,
        focus=random.choice((0.0, 0.0, 0.3, 0.7)),
        in_order=random.choice((1.0, 0.8, 0.5, 0.0)),
        exact=random.choice((0.0, 0.02, 0.1, 0.3)),
        follow=random.choice((0.0, 0.1, 0.3, 0.6)),
        misuse=misuse,
        illegal=illegal,
        early_trim=random.random() < 0.5,
        empty=random.random() < 0.3,
        absurd=random.random() < 0.3,
        deadlines=random.random() < 0.4,
        overlapping=random.random() < 0.4,
        anonymous=random.random() < 0.4,
        purposes=tuple(p for p in PURPOSES if random.random() < 0.7) or PURPOSES,
    )
    # Last, so that what an arena without a cache is asked for does not hang on it.
    return dataclasses.replace(
        mix,
        weights=mix.weights[: -len(CACHE_KINDS)] + _cache_weights(random),
        keyed=random.choice((1.0, 1.0, 0.9, 0.6)),
        limited=random.choice((0.0, 0.1, 0.4)),
        fresh=random.choice((0.05, 0.05, 0.2, 0.5)),
        letters=random.choice((2, 2, 2, 1, 3)),
        key_pages=random.choice((1.0, 2.0, 4.0, 8.0)),
        keeps=random.choice((0.0, 0.3, 0.7, 1.0)),
    )


def _cache_weights(random: Random) -> tuple[int, ...]:
    weights = {
        kind: 0 if random.random() < OFF_SHARE else random.randrange(1, HEAVIEST.get(kind, 100) + 1)
        for kind in CACHE_KINDS
    }
    if not weights["Publish"] and not weights["Checkpoint"]:  # nothing would ever be cached
        weights["Publish"] = 50
    return tuple(weights.values())


def _choose_weights(random: Random) -> tuple[int, ...]:
    weights = dict.fromkeys(KINDS, 0)
    for kind in KINDS[: -len(CACHE_KINDS)]:
        off = random.random() < OFF_SHARE
        weight = random.randrange(1, HEAVIEST.get(kind, 100) + 1)
        weights[kind] = 0 if off else weight
    weights["Admit"] = max(weights["Admit"], 10)  # nothing happens without requests
    if not weights["Extend"] and not weights["Decode"]:  # nor without tokens
        weights[random.choice(("Extend", "Decode"))] = 50
    return tuple(weights[kind] for kind in KINDS)


def describe_mix(mix: Mix, cached: bool = False) -> str:
    """A mix in plain words, one line per subject; `cached`: with a prefix cache."""
    kinds = KINDS if cached else KINDS[: -len(CACHE_KINDS)]
    on = [f"{kind} {mix.weight(kind)}" for kind in kinds if mix.weight(kind)]
    off = [kind for kind in kinds if not mix.weight(kind)]
    oddities = [
        name.replace("_", " ")
        for name in ODDITIES
        if getattr(mix, name)
    ]
    lines = [
        f"on:       {', '.join(on)}",
        f"off:      {', '.join(off) or 'nothing'}",
        f"at most:  {mix.requests_max} requests, {mix.in_flight_max} forwards in flight, "
        f"{mix.leases_max} leases ({', '.join(mix.purposes)})",
        f"requests: {f'{mix.hot_ids} numbers used again and again' if mix.hot_ids else 'new numbers'}, "
        f"{mix.focus:.0%} of choices fall on one",
        f"order:    {mix.in_order:.0%} of completions take the oldest forward",
        f"sizes:    {mix.exact:.0%} aim at exactly full",
        f"follow:   {mix.follow:.0%} of steps are followed by what often goes wrong then",
        f"oddities: {', '.join(oddities) or 'none'}",
    ]
    if cached:
        lines.append(
            f"prefixes: {mix.keyed:.0%} of requests have a key of {mix.letters} letters, of which "
            f"{mix.fresh:.0%} are new, {mix.limited:.0%} limited; {mix.keeps:.0%} of releases publish"
        )
    if mix.misuse:
        illegal = "all kinds" if len(mix.illegal) == len(ILLEGAL) else ", ".join(mix.illegal)
        lines.append(f"misuse:   {mix.misuse:.0%} of steps, {illegal}")
    return "\n".join(lines)


def with_options(mix: Mix, options: dict[str, object]) -> Mix:
    """`mix` with some of its fields set."""
    return dataclasses.replace(mix, **options)  # type: ignore[arg-type]
