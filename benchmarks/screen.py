"""What `bandscope top` costs while a run is recorded, and how quickly it answers.

Starts a run (`bandscope run`, or a finished trace written once more with --trace), and the live screen
in a pseudo-terminal beside it; reads what the screen writes, presses keys, and prints one row:

- frames a second, and the share of a core that the screen takes (its own CPU time, so that other work
  on the machine counts less): live, paused while the run goes on, and with nothing new;
- events a second of the run, and how far behind the newest event the picture is;
- key to picture: from a key press to the first picture that answers it, median and worst;
- with --pairs N: the CPU time per event of the run, in turns with the screen and without;
- with --minutes N: resident memory of the screen over N minutes.

    python benchmarks/screen.py [--seconds 20] [--pairs 8] [--minutes 10]
    python benchmarks/screen.py --trace FINISHED.trace --rate 20000
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

from bandscope.inspect.following import FollowedTrace

COMMAND = [sys.executable, "-c", "from bandscope.tui.main import main; main()"]
LOAD = [
    "run", "--model", "gpt-oss-20b", "--device", "none", "--arena-bytes", "384GiB",
    "--workload", "synthetic:requests=1000000",
]  # fmt: skip
FRAME = b"\x1b[?2026h"  # the terminal says that it can show whole pictures, so each begins with this
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_mib(pid: int) -> float:
    """Memory of a process that is its own: resident, without files that it maps."""
    told = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+)", told)[1]) / 1024  # type: ignore[index]


class Screen:
    """`bandscope top` in a terminal of `columns` by `lines`."""

    def __init__(self, trace: Path, refresh: float, columns: int, lines: int) -> None:
        self.frames = 0
        self.seen = b""
        self.event = -1
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
            os.environ.pop("NO_COLOR", None)
            time.sleep(0.2)  # until the terminal has its size
            os.execv(COMMAND[0], [*COMMAND, "top", str(trace), "--refresh", str(refresh)])
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, size)

    def read(self, seconds: float, until: bytes | None = None) -> float | None:
        """Read what it writes; the time when `until` came, None when it did not."""
        self.seen = b""
        stop = time.monotonic() + seconds
        while (left := stop - time.monotonic()) > 0:
            if not select.select([self.terminal], [], [], left)[0]:
                break
            try:
                data = os.read(self.terminal, 1 << 16)
            except OSError:  # it has ended
                break
            now = time.monotonic()
            if b"\x1b[?2026$p" in data:
                os.write(self.terminal, b"\x1b[?2026;2$y")
            self.frames += data.count(FRAME)
            for found in re.findall(rb"event ([\d,]+)", data):
                self.event = int(found.replace(b",", b""))
            self.seen = (self.seen + data)[-(1 << 18) :]
            if until is not None and until in self.seen:
                return now
        return None

    def press(self, key: bytes, until: bytes, seconds: float = 5.0) -> float:
        """Milliseconds from a key to the picture that holds `until`."""
        begun = time.monotonic()
        os.write(self.terminal, key)
        shown = self.read(seconds, until)
        if shown is None:
            raise SystemExit(f"{key!r} was pressed, but {until!r} did not come in {seconds} s")
        return (shown - begun) * 1e3

    def watch(self, seconds: float) -> tuple[float, float]:
        """Frames a second and the share of a core over some seconds."""
        frames, used, begun = self.frames, cpu_seconds(self.pid), time.monotonic()
        self.read(seconds)
        took = time.monotonic() - begun
        return (self.frames - frames) / took, (cpu_seconds(self.pid) - used) / took

    def close(self) -> None:
        """Quit it."""
        os.write(self.terminal, b"q")
        self.read(1.0)
        os.kill(self.pid, signal.SIGTERM)
        os.waitpid(self.pid, 0)
        os.close(self.terminal)


def start_run(folder: Path, options: argparse.Namespace) -> tuple[subprocess.Popen[bytes], Path]:
    """The process that writes, and the trace that it writes to."""
    trace = folder / "run.trace"
    if options.trace is not None:
        script = str(Path(__file__).with_name("growing.py"))
        command = [sys.executable, script, str(options.trace), str(trace)]
        command += ["--rate", str(options.rate), "--seconds", "100000"]
    else:
        command = [*COMMAND, *LOAD, "--record", str(folder / "run")]
        command += ["--page-size", str(options.page_size)]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
    while not (trace / "000000.events").exists():
        if process.poll() is not None:
            raise SystemExit(f"the run ended at once: {' '.join(command)}")
        time.sleep(0.1)
    time.sleep(options.warm)
    return process, trace


def stop_run(process: subprocess.Popen[bytes]) -> None:
    """End it."""
    process.kill()
    process.wait()


def cost_of_run(
    process: subprocess.Popen[bytes], trace: Path, screen: Screen, pairs: int, seconds: float
) -> dict[str, float]:
    """CPU microseconds of the run per event, in turns with the screen stopped and with it: medians,
    and the median of the ratios of neighbours, which what else the machine does changes least."""
    followed = FollowedTrace(trace)
    costs: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * pairs):
        watched = number % 2 == 1
        os.kill(screen.pid, signal.SIGCONT if watched else signal.SIGSTOP)
        screen.read(1.0)
        followed.refresh()
        events, used = followed.stop, cpu_seconds(process.pid)
        screen.read(seconds)
        followed.refresh()
        cost = (cpu_seconds(process.pid) - used) / (followed.stop - events) * 1e6
        costs[watched].append(cost)
    os.kill(screen.pid, signal.SIGCONT)
    ratios = [there / alone for alone, there in zip(costs[False], costs[True], strict=True)]
    return {
        "run alone, µs of CPU per event": statistics.median(costs[False]),
        "run with the screen, µs of CPU per event": statistics.median(costs[True]),
        "with / alone, median of pairs": statistics.median(ratios),
    }


def measure(options: argparse.Namespace) -> dict[str, float]:
    """The row."""
    row: dict[str, float] = {}
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    process, trace = start_run(folder, options)
    screen = None
    try:
        screen = Screen(trace, options.refresh, options.columns, options.lines)
        screen.read(30.0, until=b"live")
        screen.read(3.0)
        followed = FollowedTrace(trace)
        events, begun = followed.stop, time.monotonic()
        lags = []
        frames, shares = [], []
        for _ in range(max(1, round(options.seconds / 2))):
            rate, share = screen.watch(2.0)
            followed.refresh()
            lags.append(followed.stop - screen.event)
            frames.append(rate)
            shares.append(share)
        count, took = followed.stop - events, time.monotonic() - begun
        row["frames/s"] = statistics.mean(frames)
        row["screen, % of a core"] = 100 * statistics.mean(shares)
        row["events/s"] = count / took
        row["events behind"] = statistics.median(lags)
        row.update(keys(screen, options.rounds))
        if options.pairs:
            row.update(cost_of_run(process, trace, screen, options.pairs, options.seconds / 5))
        screen.press(b" ", b"paused")
        screen.read(1.0)
        row["paused, % of a core"] = 100 * screen.watch(options.seconds / 2)[1]
        screen.press(b"l", b"live")
        if options.minutes:
            row.update(memory(screen, options.minutes))
        stop_run(process)
        screen.read(12.0)  # the waterfall moves on for a while
        row["idle, % of a core"] = 100 * screen.watch(options.seconds / 2)[1]
    finally:
        if screen is not None:
            screen.close()
        if process.poll() is None:
            stop_run(process)
        shutil.rmtree(folder)
    return row


def keys(screen: Screen, rounds: int) -> dict[str, float]:
    """Pause, a list, and back to the newest event, again and again."""
    took = []
    for _ in range(rounds):
        for key, until in ((b" ", b"paused"), (b"2", b"oldest first"), (b"3", b"newest first"),
                           (b"l", b"live")):  # fmt: skip
            took.append(screen.press(key, until))
            screen.read(0.3)
        os.write(screen.terminal, b"1")
        screen.read(0.5)
    return {
        "key to picture, ms, median": statistics.median(took),
        "key to picture, ms, worst": max(took),
    }


def memory(screen: Screen, minutes: float) -> dict[str, float]:
    """Resident memory over some minutes."""
    samples = []
    for number in range(max(2, round(minutes * 6))):
        screen.read(10.0)
        samples.append(resident_mib(screen.pid))
        if number % 6 == 5:
            print(f"minute {(number + 1) / 6:.0f}: {samples[-1]:.1f} MiB", file=sys.stderr, flush=True)
    sixth = max(1, len(samples) // 6)
    return {
        "resident after the first sixth, MiB": statistics.median(samples[sixth : 2 * sixth]),
        "resident in the last sixth, MiB": statistics.median(samples[-sixth:]),
        "resident at most, MiB": max(samples),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--refresh", type=float, default=0.1)
    parser.add_argument("--columns", type=int, default=200)
    parser.add_argument("--lines", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5, help="of key presses")
    parser.add_argument("--warm", type=float, default=8.0, help="seconds before the screen starts")
    parser.add_argument(
        "--pairs", type=int, default=0, help="of measuring the run without and with the screen"
    )
    parser.add_argument("--minutes", type=float, default=0.0, help="watch the memory this long")
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--trace", type=Path, help="write this finished trace once more instead")
    parser.add_argument("--rate", type=float, default=20_000, help="with --trace: events a second")
    parser.add_argument("--folder", type=Path, help="where the trace goes")
    options = parser.parse_args()
    row = measure(options)
    width = max(map(len, row))
    for name, value in row.items():
        print(f"{name:<{width}}  {value:,.2f}")
    print(json.dumps(row))


if __name__ == "__main__":
    main()
