# SPDX-License-Identifier: Apache-2.0
"""The main commands: what they print, to the letter where no machine can differ, and exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zarr

from gdnbench.cli.console import print_json, table
from tests.messages import wording
from tests.subset import quick

Invoke = Callable[..., Any]  # the fixture `gdnbench`

WRONG_KERNEL = """
def gdn_prefill(q, k, v, g, beta, cu_seqlens, o, final_state):
    o.copy_(v)
    final_state.zero_()
"""


def numbers_hidden(text: str) -> str:
    """`text` with every figure that depends on rounding replaced by N, columns closed up."""
    return re.sub(r"[ ─]+", " ", re.sub(r"\d+(\.\d+)?(e-?\d+)?", "N", text))


def test_synth_says_what_it_made(gdnbench: Invoke, tmp_path: Path) -> None:
    result = gdnbench("synth", tmp_path / "s.zarr", "--op", "gdn_decode", "--batch", "2", "--head-dim", "8,8")
    assert (result.code, result.out) == (0, f"1 gdn_decode record in {tmp_path / 's.zarr'}\n")


def test_ls_lists_records(gdnbench: Invoke, prefills: Path) -> None:
    result = gdnbench("ls", prefills)
    # Bytes: q, k 71*1*16*2, v, o 71*2*32*2, g, beta 71*2*4, cu_seqlens 3*4, final_state 2*2*32*16*4.
    assert result.out == (
        "#  op           layer  step  sizes                           bytes  status\n"
        "0  gdn_prefill  synth     0  T=71 H=1 K=16 Hv=2 V=32 N=2  31.3 KiB  complete\n"
        "1  gdn_prefill  synth     1  T=71 H=1 K=16 Hv=2 V=32 N=2  31.3 KiB  complete\n"
        "2 records, 1 process, synth store\n"
    )
    assert result.code == 0


def test_ls_narrows_and_speaks_json(gdnbench: Invoke, prefills: Path) -> None:
    assert "0 of 2 records" in gdnbench("ls", prefills, "--op", "gdn_decode").out
    listed = json.loads(gdnbench("ls", prefills, "--json").out)
    assert [record["record"] for record in listed] == [0, 1]
    assert listed[0]["sizes"] == {"T": 71, "H": 1, "K": 16, "Hv": 2, "V": 32, "N": 2}


def test_show_has_every_tensor(gdnbench: Invoke, prefills: Path) -> None:
    lines = gdnbench("show", prefills, 1).out.splitlines()
    assert lines[0] == "record 1: gdn_prefill"
    row = next(line for line in lines if line.startswith("cu_seqlens"))
    assert row.split()[:9] == ["cu_seqlens", "before", "int32", "3", "N+1", "1", "0", "71", row.split()[8]]
    shown = json.loads(gdnbench("show", prefills, 1, "--json").out)
    names = {(tensor["name"], tensor["when"]) for tensor in shown["tensors"]}
    assert names == {(name, "before") for name in ("q", "k", "v", "g", "beta", "cu_seqlens")} | {
        ("o", "after"),
        ("final_state", "after"),
    }


def test_replay_that_passes(gdnbench: Invoke, prefills: Path) -> None:
    result = gdnbench("replay", prefills, "--kernel", "torch")
    assert result.code == 0
    assert numbers_hidden(result.out) == (
        "record operation tensor side max abs RMS ratio torch's limit of limit verdict\n"
        " N gdn_prefill o kernel N N N N N pass\n"
        " N gdn_prefill final_state kernel N N N N N pass\n"
        "\nN records: N pass | torch on cpu against reference | error <= N x torch's + rounding\n"
    )


def test_replay_that_fails_names_the_coordinate(gdnbench: Invoke, prefills: Path, tmp_path: Path) -> None:
    kernel = tmp_path / "mine.py"
    kernel.write_text(WRONG_KERNEL)
    report = tmp_path / "report.xml"
    result = gdnbench("replay", prefills, "0", "--kernel", f"{kernel}:gdn_prefill", "--junit", report)
    assert result.code == 1
    assert re.search(
        wording("report.record-outcome", outcome="numeric mismatch", label="0 gdn_prefill synth step 0"),
        result.out,
    )
    worst = re.compile(r"\[\d+, \d+, \d+\] \(sequence \d, chunk \d, token \d+, head \d")
    assert re.search(wording("judge.largest-over", worst=worst), result.out)
    suite = ET.parse(report).getroot()
    assert len(list(suite.iter("testcase"))) == 1
    assert len(list(suite.iter("failure"))) == 1


def test_replay_json_agrees_with_the_table(gdnbench: Invoke, prefills: Path) -> None:
    document = json.loads(gdnbench("replay", prefills, "--json").out)
    assert [record["outcome"] for record in document["records"]] == ["pass", "pass"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    quick(
        [
            (("--kernel", "nope"), 2, "nope"),
            (("--against", "nope"), 2, "nope"),
            (("7",), 2, wording("record_numbers.missing", number=7, records="records 0 to 1")),
            (("0,x",), 2, wording("record_numbers.part-wrong", part="x")),
            (("1-0",), 2, wording("record_numbers.range-reversed", part="1-0")),
            (("--op", "gdn_decode"), 2, "no record of gdn_decode"),
            (("--op", "nope"), 2, wording("ops.operation-unknown", name="nope")),
            (("--tol", "x"), 2, wording("cli.tol-wrong", text="x")),
            (("--k", "x"), 2, wording("cli.k-wrong", text="x")),
            (("--k", "inf"), 2, wording("cli.k-infinite", text="inf")),
            (("--k", "o=nan"), 2, wording("cli.k-infinite", text="o=nan")),
            (("--tol", "1e-3,inf"), 2, wording("cli.tol-infinite", text="1e-3,inf")),
            (("--tol", "nan"), 2, wording("cli.tol-infinite", text="nan")),
            (("--rule", "o=k:inf"), 2, wording("cli.rule-infinite", text="o=k:inf")),
            (("--rule", "o=tol:0,nan"), 2, wording("cli.rule-infinite", text="o=tol:0,nan")),
            (("--tol", "1", "--bitwise"), 2, wording("judge.bitwise-or-tol")),
            (("--on", "tpu"), 2, "tpu"),
            (("--kernel", "no_such_package.kernels:f"), 3, "no_such_package"),
        ],
        *(0, 2, 8, 12, 14, 17),
    ),
)
def test_replay_refuses(
    gdnbench: Invoke, prefills: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = gdnbench("replay", prefills, *arguments)
    assert result.code == code
    assert re.search(message, result.out + result.err)
    assert "Traceback" not in result.err


def test_cuda_without_a_gpu_is_exit_3(gdnbench: Invoke, prefills: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    result = gdnbench("replay", prefills, "--on", "cuda")
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith("gdnbench: ")
    assert result.err.count("\n") == 1


def test_runs_compare(gdnbench: Invoke, prefills: Path, tmp_path: Path) -> None:
    torchs, oracles = tmp_path / "torch.zarr", tmp_path / "reference.zarr"
    assert gdnbench("replay", prefills, "--kernel", "torch", "--save", torchs).code == 0
    assert gdnbench("replay", prefills, "--kernel", "reference", "--save", oracles).code == 0
    same = gdnbench("diff", torchs, torchs)
    assert same.code == 0
    assert same.out.endswith(f"2 records: 2 pass | {torchs} against {torchs} | bitwise\n")
    different = gdnbench("diff", torchs, oracles)
    assert different.code == 1
    assert re.search(wording("judge.bits-differ", count=re.compile(r".* elements")), different.out)
    assert gdnbench("diff", torchs, oracles, "--tol", "0.5").code == 0


def test_diff_reports_records_of_one_side(gdnbench: Invoke, prefills: Path, tmp_path: Path) -> None:
    part = tmp_path / "part.zarr"
    assert gdnbench("replay", prefills, "0", "--save", part).code == 0
    result = gdnbench("diff", prefills, part)
    assert result.code == 1
    assert f"only A ({prefills}) has this record" in result.out


def test_verify_finds_a_flipped_bit(gdnbench: Invoke, prefills: Path) -> None:
    assert gdnbench("verify", prefills).out.endswith("checked: whole\n")
    chunk = max(prefills.rglob("rows/bfloat16.71x2x32/c/**/*"), key=lambda path: path.is_file())
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(content)
    result = gdnbench("verify", prefills)
    assert result.code == 1
    assert re.search(r"^damaged: record \S+, tensor (v before|o after), chunk", result.out, re.MULTILINE)


@pytest.mark.parametrize("command", ["ls", "verify", "replay"])
def test_what_is_no_store_is_refused_in_one_line(gdnbench: Invoke, tmp_path: Path, command: str) -> None:
    zarr.create_group(tmp_path / "other.zarr")
    for path in (tmp_path / "missing.zarr", tmp_path, tmp_path / "other.zarr"):
        result = gdnbench(command, path)
        assert (result.code, result.out) == (2, "")
        assert result.err.startswith("gdnbench: ")
        assert result.err.count("\n") == 1


def test_usage_errors_are_exit_2(gdnbench: Invoke, tmp_path: Path) -> None:
    assert gdnbench("no-such-command").code == 2
    assert gdnbench("ls").code == 2
    assert gdnbench("synth", tmp_path / "s", "--op", "gdn_prefill", "--no-such-option", "1").code == 2
    assert gdnbench("capture", tmp_path / "s", "--queue", "much", "--", "true").code == 2


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ls",), "Missing argument"),
        (("no-such-command",), "No such command"),
        (("ls", "store", "--nope"), "No such option"),
        (("show", "store", "x"), "integer"),
        (("ls", "x" * 5000), "File name too long"),
        (("ls", "/dev/zero"), wording("store.not-file-or-folder")),
        (("replay", "{prefills}", "9" * 5000), wording("record_numbers.part-wrong")),
        (("capture", "s", "--queue", "9" * 400, "--", "true"), wording("cli.size-wrong")),
        (("synth", "s", "--op", "gdn_decode", "--batch", "-1"), wording("synth.not-made")),
        (("synth", "s", "--op", "gdn_decode", "--seed", "9" * 30), wording("synth.not-made")),
        (("synth", "s", "--op", "gdn_prefill", "--head-dim", "0,0"), wording("kernels.key-empty")),
        (("synth", "s", "--op", "gdn_prefill", "--seqlens", "9" * 18), wording("synth.not-made")),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    gdnbench: Invoke,
    prefills: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = gdnbench(*(argument.format(prefills=prefills) for argument in arguments))
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith("gdnbench: ")
    assert re.search(said, result.err)


def test_a_full_disk_under_stdout_is_one_line_and_exit_2(prefills: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "gdnbench", "ls", str(prefills)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "gdnbench: No space left on device\n")


def test_doctor_lists_kernels(gdnbench: Invoke) -> None:
    result = gdnbench("doctor")
    assert result.code == 0
    findings = json.loads(gdnbench("doctor", "--json").out)
    found = {finding["what"]: finding["works"] for finding in findings}
    working = [finding["what"] for finding in findings if finding["works"]]
    assert len(working) == len(set(working))  # one line for torch, which several extras need
    assert found["gdn_prefill --kernel torch"]
    assert found["gdn_decode --kernel reference"]


def test_version_and_module_form() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "gdnbench", "--version"], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"gdnbench \d+\.\d+\.\d+\n", said.stdout)


@pytest.mark.slow  # test_pipes.py has a reader that never reads
def test_a_reader_that_leaves_early_is_no_error(prefills: Path) -> None:
    command = f"{sys.executable} -m gdnbench show {prefills} 0 | head -n 1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "record 0: gdn_prefill\n", "")


def test_json_of_a_number_that_strict_json_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"scale": float("nan"), "range": (float("-inf"), 1.0)})
    assert json.loads(capsys.readouterr().out) == {"scale": "nan", "range": ["-inf", 1.0]}


def test_a_table_shows_nothing_that_a_terminal_obeys() -> None:
    shown = table(("name", "n"), [("\x1b[2Jé\n", 1), ("表", 100)], right=("n",))
    assert shown.split("\n") == ["name          n", "\\x1b[2Jé\\n    1", "表          100"]


@pytest.mark.parametrize(
    "words",
    [
        ("time", "s.zarr", "--timeline", "-"),
        ("report", "run.json", "-o", "-"),
        ("synth", "-", "--op", "gdn_decode"),
        ("merge", "-", "a.zarr", "b.zarr"),
        ("bisect", "input", "s.zarr", "0", "--kernel", "torch", "--out=-"),
        ("export", "s.zarr", "0", "--to", "npz", "-o", "-"),
        ("compile", "gdn_decode", "-o", "-"),
        ("ls", "-"),
    ],
    ids=lambda words: words[0],
)
def test_a_dash_is_no_file(
    gdnbench: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = gdnbench(*words)
    assert (result.code, result.out) == (2, "")
    assert ": - is neither stdin nor stdout here; name a file, as ./- if it is called so; see " in result.err
    assert not list(tmp_path.iterdir())
