"""What the options of `bandscope fuzz` may say, and one sentence for what they may not."""

from __future__ import annotations

import re

from bandscope.allocator.errors import ConfigError

DEVICES = ("sim", "none", "cpu", "cuda")

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_time(text: str) -> float:
    """Seconds of `90`, `90s`, `10m` or `1.5h`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None or float(match[1]) <= 0:
        raise ConfigError(
            f"--time {text} was asked for; give a positive number of seconds, or one with s, m or h, "
            "such as 10m"
        )
    return float(match[1]) * _UNITS[match[2]]


def parse_seed(text: str) -> int:
    """A whole number, or `commit`: the revision that is checked out, so that every commit is fuzzed
    with another seed and the same one again."""
    from bandscope.inspect.header import revision

    if text == "commit":
        commit = revision()
        if not commit:
            raise ConfigError(
                "--seed commit was asked for, but the code does not run from a git checkout; give a "
                "whole number"
            )
        return int(commit[:12], 16)
    if not re.fullmatch(r"\d{1,18}", text):
        raise ConfigError(f"--seed {text} was asked for; give a whole number from 0 up, or commit")
    return int(text)


def check_profile(profile: str) -> None:
    """`ConfigError` unless it is one of the generator's profiles."""
    from bandscope.fuzz.generate import PROFILES

    if profile not in PROFILES:
        raise ConfigError(
            f"--profile {profile} was asked for, but the profiles are {', '.join(PROFILES)}"
        )


def check_device(device: str) -> None:
    """`ConfigError` unless it is a device of the fuzzer."""
    if device not in DEVICES:
        raise ConfigError(
            f"--device {device} was asked for, but the devices are {', '.join(DEVICES)}"
        )


def check_count(option: str, count: int | None) -> None:
    """`ConfigError` unless it is None or at least 1."""
    if count is not None and count < 1:
        raise ConfigError(f"{option} {count} was asked for; give 1 or more")
