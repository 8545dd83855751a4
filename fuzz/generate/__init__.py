"""Where programs come from: seeds, other programs, recorded traces."""

from bandscope.fuzz.generate.from_trace import layout_of_trace, program_of_trace
from bandscope.fuzz.generate.generator import Generator, choose_schedule, describe, generate
from bandscope.fuzz.generate.mix import PROFILES, Mix
from bandscope.fuzz.generate.mutate import mutate

__all__ = [
    "PROFILES", "Generator", "Mix", "choose_schedule", "describe", "generate", "layout_of_trace",
    "mutate", "program_of_trace",
]  # fmt: skip
