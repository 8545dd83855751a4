"""Makes the traces of the tour in `docs/top.md`: `python docs/tour.py FOLDER`.

`stuck-lease.trace`: a backup pins pages of a request, and its end never comes. `refused.trace`: pages
that a backup pins lie in the middle of the arena, so that a request is refused although there is room
enough. Both are made by a small engine that runs requests step by step, without a device.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.operations import Outcome
from bandscope.allocator.plan import plan_from_sizes
from bandscope.inspect.recorder import Recorder

KIB, MIB = 1 << 10, 1 << 20
PAGE_TOKENS = 16


class Engine:
    """Runs requests in steps: one more token for each, a forward, and the end of the one before."""

    def __init__(self) -> None:
        bands = [("mamba", 256 * KIB), ("window_256", 64 * KIB), ("full", 128 * KIB)]
        plan = plan_from_sizes(bands, page_size=PAGE_TOKENS, model="tour")
        self.arena = Arena(plan, 64 * MIB, device="none")
        self.running: list[int] = []
        self.flying: list[int] = []

    def ask(self, operation: ops.Operation) -> Outcome:
        """An operation that must be done."""
        outcome = self.arena.apply(operation)
        assert outcome.ok, outcome.message
        return outcome

    def begin(self, request: int, tokens: int) -> bool:
        """Admit a request and make room for its prompt; False when that is refused."""
        self.ask(ops.Admit(request))
        if not self.arena.apply(ops.Extend(request, tokens)).ok:
            self.ask(ops.Release(request, "retracted"))
            return False
        self.running.append(request)
        return True

    def end(self, request: int) -> None:
        """A request is finished."""
        self.running.remove(request)
        self.ask(ops.Release(request))

    def back_up(self, request: int, pages: int) -> int:
        """Pin the first window pages of a request, to copy them to the host."""
        lease = ops.Lease(request, "window_256", 0, pages, holder="backup")
        return int(self.ask(lease).value)

    def step(self) -> None:
        """One forward over everything that runs, while the one before completes."""
        batch = tuple(self.running)
        self.ask(ops.Decode(batch))
        self.flying.append(int(self.ask(ops.Launch(batch)).value))
        self.ask(ops.TrimWindow(batch))
        if len(self.flying) > 1:
            self.ask(ops.Complete(self.flying.pop(0)))

    def finish(self) -> None:
        """Everything ends."""
        for request in list(self.running):
            self.end(request)
        while self.flying:
            self.ask(ops.Complete(self.flying.pop(0)))


def stuck_lease(folder: Path) -> Path:
    """Every backup ends after three steps but that of request 2."""
    engine = Engine()
    with Recorder(folder / "stuck-lease", engine.arena, stacks=8) as recorder:
        for request in range(12):
            engine.begin(request, 200 + 16 * request)
            lease = engine.back_up(request, 4)
            for _ in range(3):
                engine.step()
            if request != 2:
                engine.ask(ops.EndLease(lease, "backup"))
            if request >= 3:
                engine.end(request - 3)
            engine.step()
        engine.finish()
    return recorder.directory


def refused(folder: Path) -> Path:
    """A long prompt is refused while a backup pins pages in the middle, and let in after it."""
    engine = Engine()
    with Recorder(folder / "refused", engine.arena) as recorder:
        engine.begin(1, 256)
        lease = engine.back_up(1, 8)
        engine.step()
        assert not engine.begin(2, 4_600), "the backup must be in the way"
        engine.step()
        engine.ask(ops.EndLease(lease, "backup"))
        assert engine.begin(2, 4_600), "nothing is in the way any more"
        engine.step()
        engine.finish()
    return recorder.directory


def main() -> None:
    """Make both, in the folder that is named."""
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/tour.py FOLDER")
    for make in (stuck_lease, refused):
        print(make(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
