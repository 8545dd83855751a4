"""Readers of request traces: every format, every kind of broken row, and the real traces."""

import gzip
import json
import os
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bandscope.allocator.errors import WorkloadError
from bandscope.fuzz.workload import reader_lines
from bandscope.fuzz.workload.reader_agentic import read_agentic
from bandscope.fuzz.workload.reader_lines import TraceFile
from bandscope.fuzz.workload.readers import FORMATS
from bandscope.fuzz.workload.request import ReadReport, Request
from bandscope.fuzz.workload.source import open_workload

ROOT = Path(__file__).resolve().parents[2]
TRACES = Path(os.environ.get("BANDSCOPE_SHARED", ROOT.parent / "shared")) / "data" / "traces"

needs_traces = pytest.mark.skipif(
    not TRACES.is_dir(), reason=f"no real traces at {TRACES}; set BANDSCOPE_SHARED"
)


def read(format: str, path: Path, **options: Any) -> tuple[list[Request], ReadReport]:
    workload = open_workload(f"{format}:{path}", **options)
    return list(workload), workload.report


def save(path: Path, *rows: object) -> Path:
    """Write each row as a line: text as it is, anything else as JSON."""
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def mooncake_row(timestamp: Any = 0, prompt: Any = 600, output: Any = 5, **more: Any) -> dict:
    return {"timestamp": timestamp, "input_length": prompt, "output_length": output, **more}


AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 23:59:59.9799600,4808,10\r\n"
    "2023-11-17 00:00:00.0319601,3180,8\r\n"
    "2023-11-17 00:00:01.9799600,110,27"
)

BURST_HEADER = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"


# -- Mooncake ---------------------------------------------------------------------------------


def test_mooncake_rows_become_requests(tmp_path: Path) -> None:
    path = save(
        tmp_path / "trace",
        mooncake_row(3000, 600, 5, hash_ids=[0, 7]),
        mooncake_row(4500, 1024, 1, hash_ids=[0, 8]),
        mooncake_row(4500, 10, 2),
    )
    requests, report = read("mooncake", path, strict=True)
    assert [request.arrival_seconds for request in requests] == [0.0, 1.5, 1.5]
    assert requests[0] == Request(0, 0.0, 600, 5, (0, 7), 512)
    assert requests[2] == Request(2, 1.5, 10, 2, None, 0)
    blocks = requests[0].prefix_blocks
    assert isinstance(blocks, np.ndarray) and blocks.dtype == np.int64
    with pytest.raises(ValueError):
        blocks[0] = 1
    assert (report.rows_read, report.requests_yielded) == (3, 3)


BROKEN_ROWS = {
    "truncated": '{"timestamp": 0, "input_len',
    "no object": "[1, 2]",
    "deeply nested": "[" * 100_000,
    "endless digits": '{"timestamp": ' + "9" * 10_000 + "}",
    "no output": {"timestamp": 0, "input_length": 5},
    "negative prompt": mooncake_row(prompt=-1),
    "negative output": mooncake_row(output=-3),
    "absurd prompt": mooncake_row(prompt=10_000_001),
    "fractional prompt": mooncake_row(prompt=1.5),
    "not a number": mooncake_row(prompt=float("nan")),
    "infinite time": mooncake_row(float("inf")),
    "negative time": mooncake_row(-1),
    "absurd time": mooncake_row(1e15),
    "true for a number": mooncake_row(output=True),
    "null": mooncake_row(output=None),
    "wrong text": mooncake_row(output="1_0"),
    "too few blocks": mooncake_row(hash_ids=[]),
    "too many blocks": mooncake_row(hash_ids=[1, 2, 3]),
    "text for blocks": mooncake_row(hash_ids="ab"),
    "text for a block": mooncake_row(hash_ids=[1, "2"]),
    "negative block": mooncake_row(hash_ids=[1, -2]),
    "fractional block": mooncake_row(hash_ids=[1, 2.5]),
    "huge block": mooncake_row(hash_ids=[1, 2**70]),
    "ragged blocks": mooncake_row(hash_ids=[1, [2]]),
}


@pytest.mark.parametrize("name", BROKEN_ROWS)
def test_a_broken_row_is_counted_and_named_or_raised(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / "trace", mooncake_row(), BROKEN_ROWS[name], mooncake_row(1000))
    requests, report = read("mooncake", path)
    assert [request.arrival_seconds for request in requests] == [0.0, 1.0]
    assert (report.rows_read, report.rows_malformed) == (3, 1)
    (line_number, reason), *_ = report.problems
    assert line_number == 2
    assert 0 < len(reason) < 200
    with pytest.raises(WorkloadError) as raised:
        read("mooncake", path, strict=True)
    assert str(raised.value) == f"{path}, line 2: {reason}."


def test_only_the_first_problems_are_kept(tmp_path: Path) -> None:
    path = save(tmp_path / "trace", mooncake_row(), *["x"] * 9)
    _, report = read("mooncake", path)
    assert report.rows_malformed == 9
    assert [line_number for line_number, _ in report.problems] == [2, 3, 4, 5, 6]
    assert "9 malformed; first problem at line 2" in report.describe()


def test_a_row_before_an_earlier_one_is_kept_at_that_time(tmp_path: Path) -> None:
    path = save(tmp_path / "trace", *(mooncake_row(time) for time in (0, 5000, 2000, 6000)))
    requests, report = read("mooncake", path)
    assert [request.arrival_seconds for request in requests] == [0.0, 5.0, 5.0, 6.0]
    assert (report.rows_out_of_order, report.rows_malformed) == (1, 0)
    assert report.problems == [(3, "arrives 3 s before an earlier row")]
    with pytest.raises(WorkloadError, match="line 3: arrives 3 s before"):
        read("mooncake", path, strict=True)


def test_zero_rows_are_counted_apart_and_no_error_when_strict(tmp_path: Path) -> None:
    path = save(
        tmp_path / "trace", mooncake_row(output=0), mooncake_row(prompt=0), mooncake_row(2000)
    )
    requests, report = read("mooncake", path, strict=True)
    # The origin is the first row, also where that one is skipped.
    assert [(request.index, request.arrival_seconds) for request in requests] == [(0, 2.0)]
    assert (report.rows_zero_tokens, report.rows_malformed) == (2, 0)


# -- CSV formats ------------------------------------------------------------------------------


def test_azure_keeps_100_ns_over_midnight(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(AZURE.encode())
    requests, _ = read("azure", path, strict=True)
    assert [request.arrival_seconds for request in requests] == [0.0, 0.0520001, 2.0]
    assert [request.prompt_tokens for request in requests] == [4808, 3180, 110]
    assert [request.output_tokens for request in requests] == [10, 8, 27]


def test_azure_reads_the_later_releases_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10T02:00:00.509930+02:00,2399,6.0\n"
        "2024-05-10 00:00:01Z,1,1\n"
    )
    requests, _ = read("azure", path, strict=True)
    assert [request.arrival_seconds for request in requests] == [0.0, 0.5, 0.99007]
    assert requests[1].output_tokens == 6


@pytest.mark.parametrize(
    "row",
    [
        "2023-11-16 18:17:04.03",
        "2023-11-16 18:17:04.03,1,2,3",
        "2023-11-16 18:17:04.03,1,",
        "2023-11-16 18:17:04.03,1,-2",
        "2023-11-16 18:17:04.03,1e3,2",
        "2023-13-16 18:17:04.03,1,2",
        "2023-11-16 25:17:04.03,1,2",
        "yesterday,1,2",
        '2023-11-16 18:17:04.03,"1,2',
        "\0\0\0\0",
    ],
)
def test_azure_skips_broken_rows(tmp_path: Path, row: str) -> None:
    path = tmp_path / "trace.csv"
    first = "2023-11-16 18:17:03.0,4,5"
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{first}\n{row}\n{first}\n")
    requests, report = read("azure", path)
    assert len(requests) == 2
    assert (report.rows_read, report.rows_malformed, report.problems[0][0]) == (3, 1, 3)


def test_burstgpt_finds_columns_by_name_and_skips_zero_rows(tmp_path: Path) -> None:
    old = save(tmp_path / "old", BURST_HEADER, "5,ChatGPT,472,18,490,Log", "45,GPT-4,0,0,0,Log")
    new = save(
        tmp_path / "new",
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens",
        "5.5,s1,3,ChatGPT,472,18,490",
        '6.5,"s,2",3,ChatGPT,1,2,3',
        "7.5,,3,ChatGPT,3,4,7",
    )
    requests, report = read("burstgpt", old, strict=True)
    assert requests == [Request(0, 0.0, 472, 18)]
    assert (report.rows_read, report.rows_zero_tokens) == (2, 1)
    requests, _ = read("burstgpt", new, strict=True)
    assert [request.client for request in requests] == ["s1", "s,2", None]
    assert [request.arrival_seconds for request in requests] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("format", ["azure", "burstgpt"])
def test_a_csv_without_its_header_is_an_error(tmp_path: Path, format: str) -> None:
    path = save(tmp_path / "trace", "5,ChatGPT,472,18,490,Log", "6,ChatGPT,472,18,490,Log")
    with pytest.raises(WorkloadError, match="line 1: the header has no column '"):
        read(format, path)


# -- Conversations ----------------------------------------------------------------------------


def conversation(name: str, *entries: dict | str) -> dict:
    return {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": list(entries)}


def turn(time: Any, prompt: int, output: int = 3, **more: Any) -> dict:
    ids = list(range(1, prompt // 64 + 1))
    return {"t": time, "type": "s", "in": prompt, "out": output, "hash_ids": ids, **more}


def agent(time: float, *entries: dict) -> dict:
    return {"t": time, "type": "subagent", "agent_id": "agent_001", "requests": list(entries)}


def test_agents_share_ids_and_conversations_do_not(tmp_path: Path) -> None:
    path = save(
        tmp_path / "trace",
        conversation("a", turn(0.0, 130), agent(1.0, turn(0.0, 70), turn(9.0, 64)), turn(2.0, 200)),
        conversation("b", turn(0.5, 130)),
    )
    requests, report = read("agentic", path, strict=True, conversation_gap_seconds=0)
    assert [(request.client, request.arrival_seconds) for request in requests] == [
        ("a", 0.0),
        ("b", 0.5),
        ("a/agent_001", 1.0),
        ("a", 2.0),
        ("a/agent_001", 10.0),
    ]
    assert report.rows_read == 5
    first, other, nested, later, _ = (
        np.asarray(request.prefix_blocks).tolist() for request in requests
    )
    assert nested == first[:1] and later[:2] == first
    assert not set(other) & set(later)
    assert {request.block_tokens for request in requests} == {64}


def test_starts_depend_on_the_seed_only(tmp_path: Path) -> None:
    path = save(tmp_path / "trace", *(conversation(str(n), turn(0.0, 64)) for n in range(2000)))
    requests, _ = read("agentic", path, seed=3, conversation_gap_seconds=10.0)
    again, _ = read("agentic", path, seed=3, conversation_gap_seconds=10.0)
    other, _ = read("agentic", path, seed=4, conversation_gap_seconds=10.0)
    assert requests == again != other
    assert requests[0].arrival_seconds == 0.0
    gaps = np.diff([request.arrival_seconds for request in requests])
    assert gaps.min() >= 0 and 9 < gaps.mean() < 11 and 9 < gaps.std() < 11


def test_a_conversation_waits_when_as_many_as_may_be_held_are_running(tmp_path: Path) -> None:
    rows = [conversation(str(n), turn(0.0, 64), turn(100.0, 64)) for n in range(4)]
    trace = TraceFile(save(tmp_path / "trace", *rows))
    requests = list(read_agentic(trace, conversation_gap_seconds=0.0, conversations_held_max=2))
    assert [request.client for request in requests] == ["0", "1", "0", "1", "2", "3", "2", "3"]
    assert [request.arrival_seconds for request in requests] == [0, 0, 100, 100, 100, 100, 200, 200]


def test_broken_entries_leave_the_rest_of_a_conversation(tmp_path: Path) -> None:
    deep = turn(0.0, 64)
    for _ in range(12):
        deep = agent(0.0, deep)
    path = save(
        tmp_path / "trace",
        conversation("a", turn(5.0, 64), turn(1.0, 64), turn(-1.0, 64), turn(6.0, 64, output=0)),
        {"id": "b", "requests": 3},
        conversation("c", agent(0.0, turn(None, 64), turn(1.0, 64)), {"t": 1.0}, deep, "x"),
        conversation("d", turn(0.0, 0)),
        '{"id": "e", "requests": [',
    )
    requests, report = read("agentic", path, conversation_gap_seconds=0)
    assert [(request.client, request.arrival_seconds) for request in requests] == [
        ("c/agent_001", 1.0),
        ("a", 5.0),
        ("a", 5.0),
    ]
    assert (report.rows_out_of_order, report.rows_zero_tokens, report.rows_malformed) == (1, 2, 7)
    assert any("request 1, its request 1 t is None" in reason for _, reason in report.problems)


# -- Client distributions ---------------------------------------------------------------------


def client(
    number: int, rate: float, family: str | None, shape: float, scale: float, **more: Any
) -> dict:
    silent = [600 * window + 1200 for window in range(2)]
    lengths = {"input_tokens": [[10, 0.25], [20, 0.75]], "output_tokens": [[1, 1.0]]}
    return {
        "client": number,
        "arrivals": [[0, rate, 1.0, family, shape, scale], [600, rate, 1.0, family, shape, scale]]
        + [[start, 0.0, 0.0, None, 0.0, 0.0] for start in silent],
        "lengths": {"0": lengths, "21600": {"input_tokens": [], "output_tokens": []}},
        **more,
    }


def test_clients_are_sampled_at_their_rate_and_burstiness(tmp_path: Path) -> None:
    path = save(
        tmp_path / "trace",
        client(7, 2.0, "Gamma", 1.0, 0.5),
        client(8, 1.0, "Weibull", 1.0, 1.0),
        client(9, 0.5, "Gamma", 0.05, 1.0),
        client(10, 0.5, None, 0.0, 0.0),
    )
    requests, report = read("servegen", path, seed=1, strict=True)
    counts = {
        name: sum(request.client == name for request in requests) for name in ("7", "8", "9", "10")
    }
    assert counts == {"7": 2400, "8": 1200, "9": 600, "10": 600}
    times = [request.arrival_seconds for request in requests]
    assert times == sorted(times) and 0.0 <= times[0] and times[-1] < 1200.0
    share = np.mean([request.prompt_tokens == 20 for request in requests])
    assert 0.72 < share < 0.78
    gaps = np.diff([r.arrival_seconds for r in requests if r.client == "7"])
    assert 0.9 < gaps.std() / gaps.mean() < 1.1
    # Gaps of 0.05 s on average fill a small part of the window.
    bursty = [r.arrival_seconds for r in requests if r.client == "9"]
    assert bursty[299] - bursty[0] < 60 and bursty[599] - bursty[300] < 60
    # A burst is somewhere in its window, not always where that begins.
    assert bursty[0] > 1 and abs(bursty[0] - (bursty[300] - 600)) > 1
    assert report.rows_read == len(requests)


def test_a_part_of_the_day_has_the_same_requests(tmp_path: Path) -> None:
    path = save(tmp_path / "trace", client(1, 0.5, "Gamma", 0.8, 2.5))
    whole, _ = read("servegen", path, seed=5)
    part, _ = read("servegen", path, seed=5, start_seconds=500, duration_seconds=300)
    expected = [r.arrival_seconds - 500 for r in whole if 500 <= r.arrival_seconds < 800]
    assert [request.arrival_seconds for request in part] == expected
    more, _ = read("servegen", path, seed=5, rate_multiplier=10)
    assert len(more) == 10 * len(whole)
    with pytest.raises(WorkloadError, match="lower the rate multiplier"):
        read("servegen", path, rate_multiplier=1e6)


@pytest.mark.parametrize(
    "broken",
    [
        "{",
        {"client": 3},
        client(3, float("nan"), "Gamma", 1.0, 1.0),
        client(3, -1.0, "Gamma", 1.0, 1.0),
        client(3, 1.0, "Pareto", 1.0, 1.0),
        client(3, 1.0, "Gamma", 0.0, 1.0),
        client(3, 1.0, None, 0.0, 0.0, lengths={}),
        client(3, 1.0, None, 0.0, 0.0, lengths={"noon": {}}),
        client(3, 1.0, None, 0.0, 0.0, arrivals=[[0, 1.0]]),
        client(3, 1.0, None, 0.0, 0.0, arrivals=[[0, 1, 1, None, 0, 0], [1, 1, 1, None, 0, 0]]),
        client(3, 1.0, None, 0, 0, lengths={"0": {"input_tokens": [[5]], "output_tokens": [[1]]}}),
        client(
            3, 1.0, None, 0, 0, lengths={"0": {"input_tokens": [[5, 0]], "output_tokens": [[1, 1]]}}
        ),
    ],
)
def test_a_broken_client_is_skipped(tmp_path: Path, broken: object) -> None:
    path = save(tmp_path / "trace", client(2, 0.1, None, 0.0, 0.0), broken)
    requests, report = read("servegen", path)
    assert {request.client for request in requests} == {"2"}
    assert (report.rows_malformed, report.problems[0][0]) == (1, 2)
    with pytest.raises(WorkloadError, match="line 2: "):
        read("servegen", path, strict=True)


# -- Files ------------------------------------------------------------------------------------


def test_gzip_is_told_by_its_bytes_not_its_name(tmp_path: Path) -> None:
    (tmp_path / "packed.jsonl").write_bytes(gzip.compress(json.dumps(mooncake_row()).encode()))
    save(tmp_path / "plain.jsonl.gz", mooncake_row())
    for name in ("packed.jsonl", "plain.jsonl.gz"):
        assert len(read("mooncake", tmp_path / name, strict=True)[0]) == 1


def packed_rows(count: int) -> bytes:
    random = np.random.default_rng(1)
    rows = (mooncake_row(n, prompt=int(random.integers(1, 10**6))) for n in range(count))
    return gzip.compress("".join(f"{json.dumps(row)}\n" for row in rows).encode())


@pytest.mark.parametrize("damage", ["truncated", "garbled", "checksum", "trailing"])
def test_damaged_gzip_gives_what_came_before(tmp_path: Path, damage: str) -> None:
    whole = packed_rows(20_000)
    middle = len(whole) // 2
    damaged = {
        "truncated": whole[:middle],
        "garbled": whole[:middle] + b"\xff" * 4000 + whole[middle + 4000 :],
        "checksum": whole[:-8] + b"\0" * 8,
        "trailing": whole + b"garbage",
    }[damage]
    path = tmp_path / "trace.gz"
    path.write_bytes(damaged)
    requests, report = read("mooncake", path)
    assert 5_000 < len(requests) <= 20_000
    assert report.rows_malformed >= 1
    assert report.rows_read == len(requests) + report.rows_malformed
    if damage != "garbled":
        assert report.problems == [(len(requests) + 1, report.problems[0][1])]
        assert "breaks off here" in report.problems[0][1]
    with pytest.raises(WorkloadError, match=r"trace.gz, line \d+: "):
        read("mooncake", path, strict=True)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "content", [b"", b"\n \n", gzip.compress(b"", mtime=0), b"\x1f\x8b", b"\xff\xfe\0\0" * 9]
)
def test_a_file_without_a_request_says_what_was_found(
    tmp_path: Path, format: str, content: bytes
) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    with pytest.raises(WorkloadError, match=r"has no usable request: \d rows read, 0 requests"):
        read(format, path)


def test_a_line_that_is_no_text_or_too_long_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_lines, "LINE_BYTES_MAX", 100)
    good = json.dumps(mooncake_row()).encode()
    path = tmp_path / "trace"
    path.write_bytes(b"\n".join([good, b"\xff" + good, b"x" * 1000, good, b"y" * 500]))
    requests, report = read("mooncake", path)
    assert len(requests) == 2
    assert [line_number for line_number, _ in report.problems] == [2, 3, 5]


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="There is no trace file"):
        open_workload(f"azure:{tmp_path}/none.csv")
    with pytest.raises(WorkloadError, match="is a folder"):
        open_workload(f"azure:{tmp_path}")
    # Some Python versions say that no such file can exist, some only that there is none.
    with pytest.raises(WorkloadError):
        open_workload("azure:a\0b")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WorkloadError, match="no regular file"):
        open_workload(f"azure:{tmp_path}/pipe")
    path = save(tmp_path / "trace", mooncake_row())
    workload = open_workload(f"mooncake:{path}")
    path.unlink()
    with pytest.raises(WorkloadError, match="There is no trace file"):
        list(workload)


def test_a_file_without_read_permission(tmp_path: Path) -> None:
    path = save(tmp_path / "trace", mooncake_row())
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read every file")
    with pytest.raises(WorkloadError, match="cannot be opened"):
        open_workload(f"mooncake:{path}")


# -- The workload -----------------------------------------------------------------------------


def test_specs_that_are_no_workload(tmp_path: Path) -> None:
    path = save(tmp_path / "trace", mooncake_row())
    for spec, message in {
        "": "is no workload",
        "nonsense": "is no workload",
        "vllm:/x": "'vllm' is no known format",
        "azure": "names a format but no file",
        "azure:": "names a format but no file",
        str(path): "is a file, but of which format",
    }.items():
        with pytest.raises(WorkloadError, match=message) as raised:
            open_workload(spec)
        assert "FORMAT:PATH" in str(raised.value)
        assert all(name in str(raised.value) for name in FORMATS)


@pytest.mark.parametrize(
    "options",
    [
        {"speedup": 0.0},
        {"speedup": -1.0},
        {"speedup": float("nan")},
        {"speedup": float("inf")},
        {"limit": 0},
        {"seed": -1},
        {"start_seconds": -1.0},
        {"duration_seconds": 0.0},
        {"context_tokens_max": 1},
        {"over_context": "drop"},
        {"rate_multiplier": 2.0},
        {"conversation_gap_seconds": 1.0},
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, options: dict) -> None:
    path = save(tmp_path / "trace", mooncake_row())
    with pytest.raises(WorkloadError, match=next(iter(options))):
        open_workload(f"mooncake:{path}", **options)


def test_limit_speedup_and_part(tmp_path: Path) -> None:
    path = save(tmp_path / "trace", *(mooncake_row(1000 * n, prompt=n + 1) for n in range(100)))
    workload = open_workload(
        f"mooncake:{path}", start_seconds=10, duration_seconds=50, limit=5, speedup=2.0
    )
    first = list(workload)
    assert [(r.index, r.arrival_seconds, r.prompt_tokens) for r in first] == [
        (n, n / 2, 11 + n) for n in range(5)
    ]
    assert (workload.report.rows_outside_time, workload.report.requests_yielded) == (10, 5)
    assert list(workload) == first
    assert workload.report.requests_yielded == 5
    requests, report = read("mooncake", path, start_seconds=10, duration_seconds=50)
    assert len(requests) == 50 and report.rows_read == 61
    with pytest.raises(WorkloadError, match="100 before the asked time"):
        read("mooncake", path, start_seconds=1000)


def test_requests_over_the_context_are_skipped_or_cut(tmp_path: Path) -> None:
    path = save(
        tmp_path / "trace",
        mooncake_row(0, 600, 400, hash_ids=[1, 2]),
        mooncake_row(0, 600, 401, hash_ids=[1, 2]),
        mooncake_row(0, 1030, 9, hash_ids=[1, 2, 3]),
    )
    requests, report = read("mooncake", path, context_tokens_max=1000, strict=True)
    assert [request.output_tokens for request in requests] == [400]
    assert (report.rows_over_context, report.rows_capped) == (2, 0)
    requests, report = read("mooncake", path, context_tokens_max=1000, over_context="cap")
    assert requests[1] == Request(1, 0.0, 600, 400, (1, 2), 512)
    assert requests[2] == Request(2, 0.0, 999, 1, (1,), 512)
    assert (report.rows_over_context, report.rows_capped) == (0, 2)


def test_leaving_early_closes_the_file(tmp_path: Path) -> None:
    path = save(tmp_path / "trace", *(mooncake_row(n) for n in range(1000)))
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else None
    if before is None:
        pytest.skip("no list of open files on this system")
    for _ in range(20):
        assert len(list(open_workload(f"mooncake:{path}", limit=1))) == 1
    assert len(os.listdir("/proc/self/fd")) <= before


# -- Memory -----------------------------------------------------------------------------------


def peak_bytes(requests: Iterable[Request]) -> tuple[int, int]:
    """Requests counted, and the most memory Python held meanwhile."""
    tracemalloc.start()
    try:
        count = sum(1 for _ in requests)
        return count, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_long_trace_is_read_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    with path.open("w") as stream:
        stream.write(f"{BURST_HEADER}\n")
        stream.writelines(f"{n},ChatGPT,{n % 999 + 1},7,0,Log\n" for n in range(200_000))
    count, peak = peak_bytes(open_workload(f"burstgpt:{path}"))
    assert count == 200_000
    assert path.stat().st_size > 5_000_000 and peak < 1_000_000


def test_conversations_are_dropped_once_over(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    with path.open("w") as stream:
        for number in range(300):
            row = conversation(str(number), *(turn(float(n), 64_000) for n in range(5)))
            stream.write(json.dumps(row) + "\n")
    # All of them at once would hold 300 x 5 x 1,000 ids of 4 bytes.
    count, peak = peak_bytes(open_workload(f"agentic:{path}"))
    assert count == 1500
    assert peak < 3_000_000


# -- The real traces --------------------------------------------------------------------------


REAL = {
    "mooncake_conversation": ("mooncake", "mooncake_conversation.jsonl.gz", 12_031),
    "mooncake_synthetic": ("mooncake", "mooncake_synthetic.jsonl.gz", 3_993),
    "azure_2023_code": ("azure", "azure_2023_code.csv", 8_819),
    "azure_2023_conv": ("azure", "azure_2023_conv.csv", 19_366),
    "burstgpt_1_head400": ("burstgpt", "burstgpt_1_head400.csv", 383),
}


def assert_lengths(requests: list[Request], prompt: dict, output: dict, error: float) -> None:
    """Compare p50, p90, p99 and max with published ones, within a share of each."""
    for name, published in (("prompt_tokens", prompt), ("output_tokens", output)):
        lengths = [getattr(request, name) for request in requests]
        for quantile in (50, 90, 99):
            value = float(np.percentile(lengths, quantile))
            assert value == pytest.approx(published[f"p{quantile}"], rel=error, abs=1), name
        assert max(lengths) <= published["max"]
        if error < 0.01:
            assert max(lengths) == published["max"]


@needs_traces
@pytest.mark.parametrize("name", REAL)
def test_real_traces_match_their_published_figures(name: str) -> None:
    kind, file, count = REAL[name]
    stats = json.loads((TRACES / "stats.json").read_text())[name]
    requests, report = read(kind, TRACES / file, strict=True)
    assert len(requests) == count == stats["requests"] - stats.get("rows_with_zero_tokens", 0)
    assert report.rows_zero_tokens == stats.get("rows_with_zero_tokens", 0)
    assert report.rows_read == stats["requests"]
    span_seconds = requests[-1].arrival_seconds - requests[0].arrival_seconds
    assert span_seconds == pytest.approx(stats["span_s"], abs=0.06)
    prompt = stats.get("input") or stats["input_nonzero"]
    output = stats.get("output") or stats["output_nonzero"]
    assert_lengths(requests, prompt, output, error=0.002)
    if "unique_blocks" in stats:
        seen: set[int] = set()
        reused = blocks = 0
        for request in requests:
            assert request.prefix_blocks is not None and request.block_tokens == 512
            ids = [int(block) for block in request.prefix_blocks]
            leading = next((n for n, block in enumerate(ids) if block not in seen), len(ids))
            reused += leading
            blocks += len(ids)
            seen.update(ids)
        assert len(seen) == stats["unique_blocks"]
        assert reused / blocks == pytest.approx(stats["prefix_reuse_blocks"], abs=1e-4)


@needs_traces
def test_the_real_conversations_match_their_published_figures() -> None:
    stats = json.loads((TRACES / "stats.json").read_text())["agentic_coding_48"]
    path = TRACES / "agentic_coding_48.jsonl.gz"
    requests, report = read("agentic", path, strict=True)
    # The published 3,065 include the sub-agents' requests and two without output.
    assert report.rows_read == stats["requests"] == 3_065
    assert report.rows_zero_tokens == stats["requests_with_zero_output"] == 2
    assert len(requests) == 3_063
    clients = {request.client or "" for request in requests}
    assert len({name.partition("/")[0] for name in clients}) == stats["conversations"]
    assert sum("/" in name for name in clients) == stats["subagents"]
    times = [request.arrival_seconds for request in requests]
    assert times == sorted(times)
    assert_lengths(requests, stats["input"], stats["output"], error=0.003)
    assert all(
        request.prefix_blocks is not None
        and len(request.prefix_blocks) == request.prompt_tokens // 64
        for request in requests
    )


@needs_traces
def test_real_clients_sample_to_their_published_figures() -> None:
    stats = json.loads((TRACES / "stats.json").read_text())["servegen_deepseek_r1_clients"]
    path = TRACES / "servegen_deepseek_r1_clients.jsonl.gz"
    requests, _ = read("servegen", path, seed=1, rate_multiplier=0.05, strict=True)
    assert len(requests) == pytest.approx(0.05 * stats["requests_per_day_total"], rel=0.01)
    assert_lengths(requests, stats["input"], stats["output"], error=0.06)
    assert requests[-1].arrival_seconds < 86_400
