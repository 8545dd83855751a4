"""Every operation sequence over small arenas, through the allocator's own code (`explore`)."""

from bandscope.fuzz.exhaustive.alphabet import Alphabet
from bandscope.fuzz.exhaustive.arenas import ARENAS, SmallArena, explore_named
from bandscope.fuzz.exhaustive.cached_alphabet import CacheAlphabet
from bandscope.fuzz.exhaustive.cached_search import explore_cached
from bandscope.fuzz.exhaustive.report import Finding, Report
from bandscope.fuzz.exhaustive.search import explore

__all__ = [
    "ARENAS", "Alphabet", "CacheAlphabet", "Finding", "Report", "SmallArena", "explore",
    "explore_cached", "explore_named",
]  # fmt: skip
