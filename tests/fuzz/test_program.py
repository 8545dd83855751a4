"""Programs: written, read again, and names in the place of numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import ArenaConfig
from bandscope.allocator.errors import ConfigError
from bandscope.allocator.operations import Outcome
from bandscope.fuzz.program import (
    UNKNOWN,
    Layout,
    Names,
    Program,
    Step,
    named,
    read_program,
    write_program,
)

LAYOUT = Layout((("mamba", 2048), ("window_8", 512), ("full", 1024)), 4, 65536)
STEPS = (
    Step(ops.Admit(1, 2)),
    Step(ops.Extend(1, 9)),
    Step(ops.Launch((1,)), 7),
    Step(ops.Lease(1, "full", 0, 1, holder="x", purpose="transfer", deadline_ticket=7), 3),
    Step(ops.Complete(7)),
    Step(ops.EndLease(3, "x")),
    Step(ops.Decode((1,))),
    Step(ops.TrimWindow((1,))),
    Step(ops.Reserve((0, 1, 2))),
    Step(ops.Compact(urgent=True, max_moves=3)),
    Step(ops.SetGate(True)),
    Step(ops.Release(1, "aborted")),
    Step(ops.Admit(2, key=(0, -5, 1 << 62), limit_tokens=0)),
    Step(ops.Publish(2)),
    Step(ops.Publish(2, (1,))),
    Step(ops.Checkpoint(2, (1, 2))),
    Step(ops.Evict((0, 1, 2))),
    Step(ops.Release(2, publish=True, key=(3,))),
)


def test_a_file_gives_back_every_kind_of_step(tmp_path: Path) -> None:
    """Policies, names, tuples and defaults survive; what is written beside it comes back too."""
    config = ArenaConfig(
        max_moves=2, hand_out="poison", prefix_cache=True, evict="joint_lru", checkpoint_grid_tokens=8
    )
    layout = Layout(LAYOUT.bands, 4, 65536, config)
    program = Program(layout, STEPS, "pct:5:d=3:k=200", 9, "hostile")
    path = tmp_path / "p.program.json"
    write_program(path, program, signature="x/y")
    read, data = read_program(path)
    assert read == program and data["signature"] == "x/y"
    assert {type(step.operation) for step in STEPS} == set(map(type, map(_operation, STEPS)))
    assert len({step.operation.kind for step in STEPS}) == 15  # every operation there is


def _operation(step: Step) -> ops.Operation:
    return Step.from_json(json.loads(json.dumps(step.to_json()))).operation


def test_a_tickets_number_follows_its_launch() -> None:
    """Whatever number the arena gives, the name finds it; a name that nobody made finds no number."""
    names = Names()
    names.note(STEPS[2], Outcome(True, 41))
    names.note(STEPS[3], Outcome(True, 5))
    assert names.resolve(STEPS[4]) == ops.Complete(41)
    assert names.resolve(STEPS[5]) == ops.EndLease(5, "x")
    assert names.resolve(STEPS[3]).deadline_ticket == 41  # type: ignore[attr-defined]
    assert names.resolve(Step(ops.Complete(8))) == ops.Complete(UNKNOWN + 8)
    assert names.resolve(Step(ops.EndLease(8))) == ops.EndLease(UNKNOWN + 8)


def test_a_refused_launch_makes_no_name() -> None:
    names = Names()
    names.note(STEPS[2], Outcome(False, reason="misuse"))
    assert names.resolve(STEPS[4]) == ops.Complete(UNKNOWN + 7)


def test_real_numbers_become_names_in_order() -> None:
    """A recorded list: the first launch made ticket 1, the first lease number 1."""
    given = [ops.Launch((1,)), ops.Lease(1, "full", 0, 1), ops.Launch((1,)), ops.Complete(2)]
    assert [step.name for step in named(given)] == [1, 1, 2, None]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "other/1"}, "schema 'other/1'"),
        ({"steps": [{"do": "Explode"}]}, "not whole"),
        ({"steps": [{"do": "Extend"}]}, "not whole"),
        ({"layout": {}}, "not whole"),
        ({"layout": {"bands": [["full", 4]], "page_size": 1, "total_bytes": 1, "config": {}}}, "2 to 5"),
    ],
)
def test_other_data_is_refused_by_one_sentence(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps({**Program(LAYOUT, STEPS).to_json(), **change}))
    with pytest.raises(ConfigError, match=said):
        read_program(path)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_program(path)
    path.write_text("[1]")
    with pytest.raises(ConfigError, match="no program"):
        read_program(path)
