# SPDX-License-Identifier: Apache-2.0
"""`gdnbench time` and `replay --time`: a real table from this CPU, refusals, and counts on the simulator."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.messages import wording
from tests.sim.predict.tools import toolkit

Invoke = Callable[..., Any]  # the fixture `gdnbench`

CAPTURES = Path(__file__).parents[2] / "captures"
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
QUICK = ("--cache", "warm", "--seconds", "0.3")


@pytest.mark.alone
@pytest.mark.slow
def test_times_on_this_cpu_and_later_ones_beside(gdnbench: Invoke, prefills: Path, tmp_path: Path) -> None:
    run = tmp_path / "run.zarr"
    result = gdnbench("time", prefills, "0-1", "--kernel", "torch", "--kernel", "hf", *QUICK, "--save", run)
    assert result.code == 0, result.err
    rows = [line.split() for line in result.out.splitlines()[1:5]]
    assert [row[:3] for row in rows] == [
        [record, "gdn_prefill", kernel] for record in ("0", "1") for kernel in ("torch", "hf")
    ]
    assert all(float(row[3]) > 0 and row[4] in ("us", "ms") for row in rows)
    summary = wording(
        "timing.summary",
        records=2,
        plural="s",
        kernels=2,
        outcomes="4 pass",
        what=re.compile(wording("timing.ratios-to", kernel="torch")),
        mode="warm, plain launches",
        on="cpu",
    )
    assert re.search(summary, result.out)

    shown = gdnbench("show", run, 1)
    assert "timing\n  mode: warm, plain launches\n" in shown.out
    assert "  torch: " in shown.out
    listed = gdnbench("ls", run)
    assert "2 records, 1 process, run store" in listed.out

    again = gdnbench("time", prefills, 1, "--kernel", "hf", *QUICK, "--compare", run, "--json")
    document = json.loads(again.out)
    (change,) = document["changes"][0]["changes"]
    assert change["kernel"] == "hf"
    assert change["before"] > 0
    assert again.code == document["exit_code"] == (1 if change["verdict"] == "slower" else 0)
    # What nobody can see of another process, of clocks that nobody reads: never a regression below 5 %.
    assert change["interval"] is None or change["margin"] >= 0.05


def test_csv(gdnbench: Invoke, prefills: Path) -> None:
    result = gdnbench("time", prefills, 0, "--kernel", "torch", *QUICK, "--csv")
    (row,) = csv.DictReader(io.StringIO(result.out))
    assert (row["kernel"], row["outcome"], row["cache"], row["form"]) == ("torch", "pass", "warm", "plain")
    assert float(row["lower_quartile_s"]) <= float(row["median_s"]) <= float(row["upper_quartile_s"])
    assert float(row["bytes_per_s"]) == pytest.approx(int(row["bytes"]) / float(row["median_s"]))


@pytest.mark.alone
@pytest.mark.slow
def test_replay_times_what_passed_and_as_asked(gdnbench: Invoke, prefills: Path) -> None:
    """For 5 s, whoever else uses this machine."""
    names = ("--kernel", "torch", "--against", "hf")
    result = gdnbench("replay", prefills, 0, *names, "--time", "--seconds", "5", "--cache", "warm", "--json")
    (record,) = json.loads(result.out)["records"]
    assert (record["outcome"], result.code) == ("pass", 0)
    assert [kernel["name"] for kernel in record["timing"]["kernels"]] == ["hf", "torch"]
    assert record["timing"]["mode"] == {"cache": "warm", "form": "plain"}
    assert record["timing"]["clock"] == "perf_counter"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--strict",), wording("cli.timing-options-alone")),
        (("--seconds", "3"), wording("cli.timing-options-alone")),
        (("--time", "--busy"), "gdnbench: --busy has moved: omit it"),
        (("--cache", "warm"), wording("cli.timing-options-alone")),
        (("--time", "--form", "graph"), wording("cli.graph-needs-cuda", on="cpu")),
        (("--time", "--clock", "events"), wording("cli.clock-needs-gpu", clock="events", on="cpu")),
        (
            ("--time", "--clock", "sundial"),
            wording("cli.clock-unknown", clock="sundial", known="auto, events, cupti"),
        ),
    ],
)
def test_how_a_replay_is_not_timed(
    gdnbench: Invoke, prefills: Path, options: tuple[str, ...], message: str
) -> None:
    result = gdnbench("replay", prefills, 0, "--kernel", "torch", *options)
    assert result.code == 2
    assert re.search(message, result.err)
    assert result.out == ""


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ((), 2, wording("timing.kernel-missing")),
        (("--kernel", "torch", "--json", "--csv"), 2, wording("cli.json-or-csv")),
        (("--kernel", "torch", "--cache", "tepid"), 2, wording("cli.cache-wrong", cache="tepid")),
        (("--kernel", "torch", "--form", "loop"), 2, wording("cli.form-wrong", form="loop")),
        (("--kernel", "torch", "--form", "graph"), 2, wording("cli.graph-needs-cuda", on="cpu")),
        (("--kernel", "torch", "--precision", "fine"), 2, wording("cli.precision-wrong", text="fine")),
        (("--kernel", "torch", "--precision", "150%"), 2, wording("timing.precision-range", precision="1.5")),
        (("--kernel", "torch", "--on", "tpu"), 2, wording("replay.device-unknown", device="tpu")),
        (("--kernel", "portable", "--on", "sim", "--csv"), 2, wording("cli.sim-counts")),
        (("--kernel", "portable", "--on", "sim", "--timeline", "t"), 2, wording("cli.timeline-predicted")),
        (("--kernel", "torch", "--on", "sim"), 3, wording("replay.not-sm100")),
        (("--kernel", "nosuch", "--on", "sim"), 2, wording("replay.kernel-unknown", kernel="nosuch")),
        (("--kernel", "torch", "--compare", "nosuch.json"), 2, r"nosuch\.json"),
    ],
)
def test_refusals(
    gdnbench: Invoke, prefills: Path, options: tuple[str, ...], code: int, message: str
) -> None:
    result = gdnbench("time", prefills, *options)
    assert (result.code, result.out) == (code, "")
    assert re.search(message, result.err)
    assert result.err.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_no_gpu_is_exit_3(gdnbench: Invoke, prefills: Path) -> None:
    result = gdnbench("time", prefills, "--kernel", "torch", "--on", "cuda")
    assert (result.code, result.out) == (3, "")
    assert re.search(wording("replay.gpu-missing"), result.err)


@pytest.mark.slow
def test_the_simulator_counts_and_refuses_to_time(gdnbench: Invoke) -> None:
    """The bytes it counts are compared with what the operation must write."""
    pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")
    store = CAPTURES / "swa_fp8_ds_mla.zarr.zip"
    result = gdnbench("time", store, 0, "--kernel", "portable", "--on", "sim", "--json")
    assert result.code == 3
    assert re.fullmatch("gdnbench: " + wording("cli.sim-counts") + "\n", result.err)
    document = json.loads(result.out)
    ((kernel,),) = (record["kernels"] for record in document["records"])
    work = document["records"][0]["work"]
    counts = kernel["counts"]
    moved = counts["bytes_moved"]
    assert counts["launches"] == 1
    assert counts["warp_instructions"] > 0
    # A kernel cannot write less than its output, and this one writes nothing else.
    assert sum(count for path, count in moved.items() if path.endswith("to global")) == work["written"]
    assert "seconds" not in json.dumps(document)


def test_a_kernel_without_a_predicted_time_is_said(gdnbench: Invoke, tmp_path: Path) -> None:
    """gdn_decode has no kernel of this name. --machine is there, so the message does not ask for it."""
    store = tmp_path / "made.zarr"
    assert gdnbench("synth", store, "--op", "gdn_decode").code == 0
    result = gdnbench("time", store, "--kernel", "portable", "--on", "sim", "--machine", "h200")
    assert result.code == 3
    assert result.err.splitlines()[-1] == "gdnbench: not every kernel has a time on h200"


@pytest.mark.slow
def test_times_on_an_h200_are_predicted(
    gdnbench: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An H200 took 7.0 us for one request of 64 heads (docs/swa_decode.md). The limit is that of nine rows in
    ten: 25 %. The outputs that the prediction leaves are judged, so it changes nothing."""
    pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")
    toolkit(monkeypatch)
    store = tmp_path / "made.zarr"
    options = ("--op", "swa_decode", "--lens", "128", "--cache-layout", "fp8_ds_mla")
    assert gdnbench("synth", store, *options).code == 0
    result = gdnbench("time", store, "--kernel", "portable", "--on", "sim", "--machine", "h200", "--json")
    assert result.code == 0, result.err
    ((kernel,),) = (record["kernels"] for record in json.loads(result.out)["records"])
    (launch,) = kernel["predicted"]["launches"]
    assert kernel["outcome"] == "pass"
    assert kernel["predicted"]["machine"] == launch["machine"] == "h200"
    assert launch["seconds"] == pytest.approx(7.0e-6, rel=0.25)
    assert launch["low"] < launch["seconds"] < launch["high"]


class TestGpu:
    pytestmark = gpu

    def test_a_table_from_a_gpu(self, gdnbench: Invoke, tmp_path: Path) -> None:
        """Cold, in a CUDA graph: between nothing and the memory's ceiling, and as cold as it says."""
        store = tmp_path / "made.zarr"
        options = ("--op", "swa_decode", "--lens", ",".join(["128"] * 64), "--cache-layout", "fp8_ds_mla")
        made = gdnbench("synth", store, *options)
        assert made.code == 0, made.err
        result = gdnbench("time", store, "--kernel", "portable", "--on", "cuda", "--seconds", "5", "--json")
        assert result.code == 0, result.out + result.err
        (record,) = json.loads(result.out)["records"]
        (kernel,) = record["kernels"]
        assert record["mode"] == {"cache": "cold", "form": "graph"}
        assert record["control"]["holds"] is not False, record["control"]
        # 3 %: a ceiling is itself a median of rounds on buffers of its own.
        assert kernel["rates"]["of_ceiling"] is not None, record["notes"]
        assert 0 < kernel["rates"]["of_ceiling"] < 1.03, (kernel["rates"], record["ceiling"])
        assert record["repeat"]["verdict"] == "no difference", (record["repeat"], record["notes"])
