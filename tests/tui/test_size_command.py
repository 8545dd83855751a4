"""`bandscope size` from the command line: the sheet, the table, plain data, and what it refuses."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from bandscope.allocator.errors import BandscopeError
from bandscope.tui.commands.size import size as size_command
from bandscope.tui.main import main

app = typer.Typer()
app.command("size")(size_command)


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """No colour or width of the surroundings leaks into a test."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "180")
    monkeypatch.setenv("TERM", "xterm-256color")


def call(*arguments: str) -> str:
    """The output of the command, which must succeed, without repeated blanks."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, (result.output, result.exception)
    return "\n".join(" ".join(line.split()) for line in result.output.splitlines())


def data(*arguments: str) -> list[dict]:
    """The plain data of the command."""
    return json.loads(CliRunner().invoke(app, [*arguments, "--json"]).output)


def refused(*arguments: str) -> str:
    """The sentence with which the command refuses its input; the program ends with status 2."""
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, BandscopeError), result.output
    assert result.exception.exit_status == 2
    assert result.output == ""
    message = str(result.exception)
    assert "\n" not in message
    return message


def test_one_model_on_one_gpu_is_a_whole_sheet() -> None:
    """Arena, bands with targets, concurrency and its bound, floor, lengths, and waste by cause."""
    output = call("--model", "inkling-small", "--gpu", "h200", "--max-running-requests", "64")
    for part in (
        "inkling-small on h200: arena 126.4 GiB (135,679,337,984 bytes of a budget of 135,679,338,086)",
        "mamba 42 3,096,576 0 3,096,576 64 slots",
        "window_512 35 143,360 0 2,293,760",
        "concurrency 64, bounded by max_running_requests (max_running_requests 64, state slots 64, half",
        "longest request alone 1,048,576 tokens, context length 1,048,576",
        "one request needs at least sink 3,096,576 + 1 slot of mamba 3,096,576 + 33 pages of window_512",
        "tokens bytes per request bytes per token fit at once run at once bound by",
        "filled with rows in use sink page rounding padding grid residue unused",
    ):
        assert part in output
    lengths = [line for line in output.splitlines() if line.startswith("1,024 ")]
    assert lengths and lengths[0].endswith("64 max_running_requests")


def test_the_numbers_of_the_sheet_are_in_the_plain_data() -> None:
    """Every figure as a number: targets, bounds, bands, lengths, waste."""
    (sheet,) = data("--model", "gpt-oss-20b", "--arena-bytes", "10GiB", "--lengths", "8192,64")
    assert (sheet["place"], sheet["model"], sheet["arena_bytes"]) == ("10GiB", "gpt-oss-20b", 10 << 30)
    assert [figures["tokens"] for figures in sheet["lengths"]] == [64, 8192]
    assert sheet["targets"]["window_128"] <= sheet["targets"]["full"] * 0.8
    assert sheet["bands"][1]["page_bytes"] == 16 * 24_576
    for figures in sheet["lengths"]:
        assert sum(figures["waste"].values()) == 10 << 30


def test_several_models_and_gpus_are_a_table() -> None:
    """A row for each pair, in the order asked; what does not fit says so, and its reason is data."""
    arguments = ["--model", "gemma-3-27b", "--model", "qwen3.5-27b", "--gpu", "L4", "--gpu", "h100",
                 "--arena-bytes", "100MiB"]  # fmt: skip
    output = call(*arguments)
    rows = [line.split()[:2] for line in output.splitlines() if line.startswith(("gemma", "qwen"))]
    assert rows == [[model, place] for model in ("gemma-3-27b", "qwen3.5-27b")
                    for place in ("l4", "h100", "100MiB")]  # fmt: skip
    assert "qwen3.5-27b 100MiB does not fit" in output
    assert "× 1,024 × 8,192 × 32,768 × 131,072" in output
    sheets = data(*arguments)
    assert [("error" in sheet) for sheet in sheets] == [False, False, True, False, False, True]
    assert "one request needs" in sheets[5]["error"]


def test_options_reach_the_sizing() -> None:
    """Each option of the user page changes the figure it is about."""
    base = ["--model", "inkling", "--arena-bytes", "40GiB"]
    plain = data(*base)[0]
    one = lambda *options: data(*base, *options)[0]  # noqa: E731
    assert one("--max-total-tokens", "5000")["arena_bytes"] < plain["arena_bytes"]
    assert one("--max-running-requests", "9")["concurrency"] == 9
    narrow = one("--swa-full-tokens-ratio", "0.1")["targets"]
    assert narrow["window_512"] == narrow["full"] // 10 // 16 * 16
    assert one("--mamba-full-memory-ratio", "0.1")["targets"]["mamba"] < plain["targets"]["mamba"] // 4
    assert one("--max-mamba-cache-size", "5")["targets"]["mamba"] == 5
    assert one("--page-size", "64")["page_size"] == 64
    assert one("--tensor-parallel", "2")["bands"][2]["entry_bytes"] * 2 == (
        plain["bands"][2]["entry_bytes"]
    )
    assert one("--context-length", "500", "--lengths", "400,600")["lengths"][-1]["tokens"] == 400
    assert one("--context-length", "500")["longest_request"] == 500
    assert one("--kv-dtype", "fp8_e4m3")["bands"][2]["entry_bytes"] * 2 == (
        plain["bands"][2]["entry_bytes"]
    )
    assert one("--max-running-requests", "9", "--chunk-tokens", "160")["bands"][1]["target_pages"] == (
        9 * 33 + 10
    )


def test_weights_and_the_static_fraction_make_the_budget() -> None:
    """The static share of the GPU's memory, without the weights, exactly."""
    (sheet,) = data("--model", "gpt-oss-20b", "--gpu", "h100", "--mem-fraction-static", "0.85",
                    "--weights-bytes", "13GB")  # fmt: skip
    assert sheet["budget_bytes"] == (81_559 << 20) * 85 // 100 - 13 * 10**9
    assert sheet["arena_bytes"] == sheet["budget_bytes"] // 256 * 256


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--model", "gpt-oss-20b"], ["no memory was named; give --gpu"]),
        (["--model", "gpt-oss-20b", "--gpu", "h2000"], ["GPU 'h2000'", "did you mean h200"]),
        (["--model", "gpt-oss", "--gpu", "h200"], ["model 'gpt-oss'", "did you mean gpt-oss-20b"]),
        (["--model", "qwen3-8b", "--gpu", "h200"], ["full attention only"]),
        (["--model", "gpt-oss-20b", "--arena-bytes", "1MiB"], ["one request needs", "sink 393,216"]),
        (["--model", "gpt-oss-20b", "--arena-bytes", "big"], ["'big' was given as a size"]),
        (["--model", "gpt-oss-20b", "--gpu", "l4", "--weights-bytes", "40GB"],
         ["40,000,000,000 bytes of weights leave nothing"]),
        (["--model", "gpt-oss-20b", "--gpu", "l4", "--mem-fraction-static", "1.2"],
         ["give a number above 0 and up to 1"]),
        (["--model", "gpt-oss-20b", "--gpu", "l4", "--mem-fraction-static", "most"],
         ["--mem-fraction-static 'most' is not a number"]),
        (["--model", "gpt-oss-20b", "--gpu", "l4", "--swa-full-tokens-ratio", "0"],
         ["swa_full_tokens_ratio of 0 was asked for; give a number above 0"]),
        (["--model", "gpt-oss-20b", "--gpu", "l4", "--swa-full-tokens-ratio", "1/0"],
         ["is not a number; write it like 0.8"]),
        (["--model", "inkling", "--gpu", "l4", "--mamba-full-memory-ratio", "1001"],
         ["mamba_full_memory_ratio of 1001 was asked for; give a number up to 1,000"]),
        (["--model", "inkling", "--gpu", "l4", "--max-mamba-cache-size", "0"],
         ["max_mamba_cache_size of 0"]),
        (["--model", "inkling", "--gpu", "l4", "--max-mamba-cache-size", "99999"],
         ["99999 × 7,299,072 bytes", "ask for fewer slots"]),
        (["--model", "inkling", "--gpu", "l4", "--max-total-tokens", "99999999"],
         ["99,999,999 full-attention tokens were asked for", "lower max_total_tokens"]),
        (["--model", "inkling", "--gpu", "l4", "--lengths", "8k"], ["lengths of '8k'"]),
        (["--model", "inkling", "--gpu", "l4", "--lengths", "0"], ["lengths of '0'"]),
        (["--model", "inkling", "--gpu", "l4", "--page-size", "0"], ["pages of 0 tokens"]),
        (["--model", "inkling", "--gpu", "l4", "--tensor-parallel", "3"], ["3"]),
        (["--model", "inkling", "--gpu", "l4", "--context-length", "-1"], ["context_length of -1"]),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(arguments: list[str], parts: list[str]) -> None:
    """What was asked, what there was, what to do; nothing is printed before it."""
    message = refused(*arguments)
    for part in parts:
        assert part in message


def test_the_program_knows_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Through the program's own door: status 0 with output, status 2 with one line on stderr."""
    for arguments, status in ((["--arena-bytes", "8GiB"], 0), (["--gpu", "abacus"], 2)):
        with pytest.raises(SystemExit) as ended:
            main(["size", "--model", "gpt-oss-20b", *arguments])
        assert ended.value.code == status
        printed = capsys.readouterr()
        assert bool(printed.out) == (status == 0)
        assert printed.err.count("\n") == (status == 2)
