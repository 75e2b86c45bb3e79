# SPDX-License-Identifier: Apache-2.0
"""Records x kernels: who is timed, what becomes of the others, and what is kept. The timer is a fake."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gdnbench.cli.console import table
from gdnbench.errors import BadInputError, Exit
from gdnbench.judge.record import ORACLE, Judge
from gdnbench.replay.replay import Replayer
from gdnbench.replay.run import InProcess
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store, StoredRecord
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from gdnbench.timing.export import COLUMNS, read_timings, timing_csv, timing_json
from gdnbench.timing.isolated import Judged, Timed
from gdnbench.timing.machine import machine
from gdnbench.timing.options import RULE, TimingOptions
from gdnbench.timing.result import (
    Block,
    Control,
    End,
    KernelTiming,
    PairTiming,
    Rates,
    RecordTiming,
)
from gdnbench.timing.run import TimingReport, time_records
from gdnbench.timing.statistics import Interval, Summary, TimeInterval, Verdict
from gdnbench.timing.table import record_lines, timing_text
from gdnbench.timing.types import Cache, Form, Mode
from gdnbench.units import seconds_text
from gdnbench_kernels.contract import Operation
from tests.messages import wording

MODE = Mode(Cache.WARM, Form.PLAIN)
HERE = machine(torch.device("cpu"))
RUNS = 12  # two passes over six placements
KERNELS = Path(__file__).with_name("timed_kernels.py")
SLOWED = re.compile(wording("timing.slowed-down", reason="HwSlowdown 3"))
BLOCKS = ", ".join(
    (
        wording("timing.blocks", blocks=12, placements=6, seconds="1.5"),
        wording("timing.disturbed", why=SLOWED),
    )
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Two small decode records."""
    made = [
        synthesise("gdn_decode", batch=3, heads=(2, 4), head_dim=(32, 32), slots=9, seed=seed)
        for seed in range(2)
    ]
    path = tmp_path_factory.mktemp("timed") / "store.zarr"
    with StoreWriter(path, kind="synth", durable=False) as writer:
        writer.write("0", [draft("gdn_decode", call, index=index) for index, call in enumerate(made)])
    with Store.open(path) as opened:
        yield opened


def timing_of(record: StoredRecord, names: Sequence[str], seconds: float = 142.1e-6) -> RecordTiming:
    """A result in which every kernel takes `seconds` and as long as the first."""
    kernels = tuple(
        KernelTiming(
            name,
            Outcome.PASS,
            samples=(seconds,) * RUNS,
            summary=Summary(RUNS, seconds, seconds, seconds),
            launches=7,
            rates=Rates.of_kernel(4_000_000, 8_000_000, seconds, 1e11),
            interval=TimeInterval(0.9 * seconds, 1.2 * seconds, 0.99, 6, "placement"),
        )
        for name in names
    )
    interval = Interval(1.004, 0.996, 1.012, 0.99, 6, "placement")
    pairs = tuple(
        PairTiming(names[0], name, interval, Verdict.NO_DIFFERENCE, 0.001, interval.within)
        for name in names[1:]
    )
    order = tuple(range(len(names)))
    return RecordTiming(
        label=f"{record.number} {record.info.op}",
        number=record.number,
        key=record.key,
        op=record.info.op,
        mode=MODE,
        machine=HERE,
        kernels=kernels,
        pairs=pairs,
        blocks=tuple(Block(run % 6, run, order) for run in range(RUNS)),
        placements=6,
        end=End.PRECISE,
        seconds=1.5,
        discarded={"slowed down: HwSlowdown": 3},
        disturbed={"slowed down: SwPowerCap": 2},
        clock="perf_counter",
        control=Control(
            9e-6,
            6e-6,
            12e-6,
            1 << 20,
            50 << 20,
            False,
            "about half of a launch's bytes were still in the cache",
        ),
    )


class FakeTimer:
    """Times whatever it is given, but for kernels that are to fail."""

    def __init__(self, failing: Sequence[str] = (), seconds: float = 142.1e-6) -> None:
        self.failing, self.seconds = failing, seconds
        self.asked: list[tuple[int, tuple[str, ...]]] = []

    def judge(self, record: StoredRecord, operation: Operation, kernel: str) -> Judged:
        """As the process that judges does it, in this one."""
        judge = Judge(RULE, torch.device("cpu"))
        found = Replayer(InProcess(kernel, "cpu"), None, ORACLE, judge).replay(record)
        return Judged(found.outcome, found.reason)

    def time(self, record: StoredRecord, operation: Operation, kernels: Sequence[str]) -> Timed:
        self.asked.append((record.number, tuple(kernels)))
        left = [name for name in kernels if name not in self.failing]
        failed = [KernelTiming(name, Outcome.CRASH, "it broke") for name in kernels if name in self.failing]
        return Timed(timing_of(record, left, self.seconds) if left else None, tuple(failed))

    def close(self) -> None:
        """There is nothing to close."""


def named(function: str) -> str:
    return f"{KERNELS}:{function}"


def run(store: Store, *kernels: str, timer: FakeTimer | None = None, **more: object) -> TimingReport:
    given = timer or FakeTimer()
    return time_records(store, kernels, options=TimingOptions(MODE), timer=given, **more)  # type: ignore[arg-type]


def test_every_kernel_that_passes_is_timed_on_every_record(store: Store) -> None:
    timer = FakeTimer()
    done: list[tuple[int, int, RecordTiming]] = []
    report = run(store, "torch", "hf", timer=timer, progress=lambda *at: done.append(at))
    assert timer.asked == [(0, ("torch", "hf")), (1, ("torch", "hf"))]
    assert report.exit_code is Exit.PASS
    assert done == [(1, 2, report.records[0]), (2, 2, report.records[1])]


def test_wrong_outputs_are_not_timed(store: Store) -> None:
    timer = FakeTimer()
    report = run(store, named("is_wrong"), "torch", timer=timer, records=[0])
    assert timer.asked == [(0, ("torch",))]
    wrong = report.records[0].kernel(named("is_wrong"))
    assert wrong is not None
    assert not wrong.timed
    assert wrong.outcome is Outcome.MISMATCH
    assert "over" in wrong.reason  # the judge's words: what is over which bound
    assert report.exit_code is Exit.MISMATCH


def test_wrong_outputs_are_timed_where_asked_and_marked(store: Store) -> None:
    timer = FakeTimer()
    report = run(store, "torch", named("is_wrong"), timer=timer, records=[0], time_wrong=True)
    assert timer.asked == [(0, ("torch", named("is_wrong")))]
    wrong = report.records[0].kernel(named("is_wrong"))
    assert wrong is not None
    assert wrong.timed
    assert wrong.outcome is Outcome.MISMATCH
    assert report.exit_code is Exit.MISMATCH
    text = timing_text(report, table)
    assert f"{named('is_wrong')} WRONG" in text
    assert "timed all the same" in text


def test_wrong_outputs_of_named_kernels_alone_are_timed(store: Store) -> None:
    timer = FakeTimer()
    kernels = [named("is_wrong"), "torch"]
    report = run(store, *kernels, timer=timer, records=[0], time_wrong=("torch",))
    assert timer.asked == [(0, ("torch",))]
    report = run(store, *kernels, timer=timer, records=[0], time_wrong=(named("is_wrong"),))
    assert timer.asked[1:] == [(0, tuple(kernels))]
    assert report.exit_code is Exit.MISMATCH


def test_a_record_that_could_not_be_timed_is_no_other_clock_than_the_baselines(store: Store) -> None:
    before = run(store, "torch", records=[0]).records
    report = run(store, "torch", timer=FakeTimer(failing=["torch"]), records=[0], baseline=before)
    assert report.changes is not None
    assert re.fullmatch(wording("timing.not-timed-now", outcome="crash"), report.changes[0].changes[0].reason)


def test_a_kernel_that_an_operation_lacks_is_an_outcome(store: Store) -> None:
    timer = FakeTimer()
    report = run(store, "sm100", "torch", timer=timer, records=[1])
    assert timer.asked == [(1, ("torch",))]
    assert [kernel.outcome for kernel in report.records[0].kernels] == [Outcome.PASS, Outcome.UNSUPPORTED]
    assert report.exit_code is Exit.CANNOT_RUN


def test_a_crash_while_timing_is_that_kernels_outcome(store: Store) -> None:
    report = run(store, "torch", "hf", timer=FakeTimer(failing=["hf"]))
    assert report.exit_code is Exit.MISMATCH
    for record in report.records:
        assert [(kernel.name, kernel.timed) for kernel in record.kernels] == [("torch", True), ("hf", False)]


def test_nothing_left_to_time(store: Store) -> None:
    report = run(store, "torch", timer=FakeTimer(failing=["torch"]), records=[0])
    (record,) = report.records
    assert record.end is None
    assert not record.blocks
    trouble = wording(
        "timing.trouble", outcome="crash", kernel="torch", record="0 gdn_decode synth step 0", how="not timed"
    )
    assert re.search(trouble + "\n  it broke", timing_text(report, table))
    both = run(store, "torch", timer=FakeTimer(failing=["torch"]))
    assert timing_text(both, table).startswith(
        "crash: torch on records 0-1 (2), not timed\n  it broke\n2 records"
    )


@pytest.mark.parametrize(
    ("kernels", "more", "message"),
    [
        ((), {}, wording("timing.kernel-missing")),
        (("torch", "torch"), {}, wording("timing.kernel-twice", kernel="torch")),
        (("nosuch",), {}, wording("replay.kernel-unknown", kernel="nosuch")),
        (("torch",), {"records": [2]}, wording("replay.record-missing", number=2)),
        (("torch",), {"on": "sim"}, wording("timing.sim-clock-missing")),
    ],
)
def test_refusals(store: Store, kernels: tuple[str, ...], more: dict[str, object], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        run(store, *kernels, **more)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"seconds": 0.0}, wording("timing.seconds-wrong", name="seconds", value=0)),
        ({"seconds": float("nan")}, "seconds nan"),
        ({"timeout": -1.0}, "timeout -1"),
        ({"precision": 1.0}, wording("timing.precision-range", precision=1)),
        ({"clock": "sundial"}, wording("timing.clock-unknown", clock="sundial", known="auto, events, cupti")),
    ],
)
def test_options_that_mean_nothing(more: dict[str, object], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        TimingOptions(**more)  # type: ignore[arg-type]


def test_a_run_store_keeps_the_times(store: Store, tmp_path: Path) -> None:
    report = run(store, "torch", "hf", timer=FakeTimer(failing=["hf"]), save=tmp_path / "run.zarr")
    assert tuple(read_timings(tmp_path / "run.zarr")) == report.records
    with Store.open(tmp_path / "run.zarr") as kept:
        assert kept.kind == "run"
        assert [record.info.run["outcome"] for record in kept.records] == ["crash", "crash"]
        assert kept.records[0].info.run["source"] == store.records[0].key


def test_times_are_kept_before_the_next_record_is_begun(store: Store, tmp_path: Path) -> None:
    """Whatever ends the process then, power included, ends no more than one record's measuring."""
    kept: list[int] = []
    path = tmp_path / "run.zarr"
    run(store, "torch", save=path, progress=lambda *_: kept.append(len(read_timings(path))))
    assert kept == list(range(1, len(store.records) + 1))


def test_json_reads_back(store: Store, tmp_path: Path) -> None:
    report = run(store, "torch", "hf")
    (tmp_path / "times.json").write_text(json.dumps(timing_json(report), allow_nan=False))
    assert tuple(read_timings(tmp_path / "times.json")) == report.records


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", wording("timing.baseline-not-json")),
        ("[]", wording("timing.baseline-not-timing")),
        ('{"command": "replay", "records": []}', wording("timing.baseline-not-timing")),
        ('{"command": "time", "schema": 99, "records": []}', wording("timing.baseline-schema", found=99)),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "times.json").write_text(text)
    with pytest.raises(BadInputError, match=message):
        read_timings(tmp_path / "times.json")


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '{"schema": ' + "9" * 5000 + "}", '{"command": "time"}']
)
def test_a_baseline_that_is_no_result_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "before.json").write_text(text)
    with pytest.raises(BadInputError) as caught:
        read_timings(tmp_path / "before.json")
    assert str(caught.value).startswith(str(tmp_path / "before.json"))
    assert "\n" not in str(caught.value)


def test_a_store_without_times_is_refused(store: Store) -> None:
    with pytest.raises(BadInputError, match=wording("timing.times-missing")):
        read_timings(store.path)


def test_csv_has_a_line_for_each_kernel(store: Store) -> None:
    rows = list(csv.DictReader(io.StringIO(timing_csv(run(store, "torch", "hf", "sm100", records=[0])))))
    assert tuple(rows[0]) == COLUMNS
    assert [(row["kernel"], row["outcome"]) for row in rows] == [
        ("torch", "pass"),
        ("hf", "pass"),
        ("sm100", "unsupported"),
    ]
    assert float(rows[0]["median_s"]) == 142.1e-6
    assert (rows[0]["against"], rows[1]["against"], rows[1]["verdict"]) == ("", "torch", "no difference")
    assert (rows[1]["ratio"], rows[1]["discarded"], rows[2]["median_s"]) == ("1.004", "3", "")


def test_the_table_says_what_the_times_rest_on(store: Store) -> None:
    text = timing_text(run(store, "torch", "hf", records=[0]), table)
    rows = [" ".join(line.split()) for line in text.splitlines()]
    # 4 MB in 142.1 us are 0.02815 TB/s, 28 % of the ceiling of 0.1 TB/s; twice as many FLOP.
    assert rows[1] == "0 gdn_decode torch 142.1 us 127.9 us .. 170.5 us 0.0281 28% 0.0563"
    # |log| of the farther end, 1.012: 1.19 %.
    assert rows[2] == (
        "0 gdn_decode hf 142.1 us 127.9 us .. 170.5 us 1.004 0.996 .. 1.012 no difference within 1.2%"
        " 0.0281 28% 0.0563"
    )
    cached = re.compile(wording("timing.cache-warm", part="half"))
    cold = wording("timing.not-cached", cache="warm", record="0 gdn_decode", reason=cached)
    assert any(re.fullmatch(cold, row) for row in rows)
    assert any(re.fullmatch(f"note: record 0: {BLOCKS}", row) for row in rows)
    slowed = wording("timing.slowed-down", reason="SwPowerCap")
    counted = wording(
        "timing.blocks-counted", count=2, blocks=RUNS, reason=re.compile(slowed), records="1 record"
    )
    assert any(re.fullmatch(f"warning: {counted}", row) for row in rows)
    summary = wording(
        "timing.summary",
        records=1,
        plural="",
        kernels=2,
        outcomes="2 pass",
        what=re.compile(wording("timing.ratios-to", kernel="torch")),
        mode="warm, plain launches",
        on="cpu",
        device=HERE.device,
    )
    assert re.fullmatch(summary, rows[-1])


def test_a_run_is_shown_in_a_few_lines(store: Store) -> None:
    timing = timing_of(store.records[0], ["torch", "hf"])
    failed = replace(
        timing, kernels=(*timing.kernels, KernelTiming("fla", Outcome.MISSING, "pip install it"))
    )
    lines = record_lines(failed)
    assert list(lines) == ["mode", "device", "torch", "hf", "fla", "blocks"]
    assert (lines["mode"], lines["device"]) == ("warm, plain launches", HERE.device)
    launch = wording("timing.launch-time", time="142.1 us", wrong="")
    within = re.compile(wording("timing.no-difference", part="1.2%"))
    ratio = wording("timing.ratio", ratio="1.004", other="torch", verdict=within)
    missing = wording("timing.not-timed", outcome="missing device or package", reason="pip install it")
    launch += r" \(127\.9 us \.\. 170\.5 us\)"
    assert re.fullmatch(launch, lines["torch"])
    assert re.fullmatch(f"{launch}, {ratio}", lines["hf"])
    assert re.fullmatch(missing, lines["fla"])
    assert re.fullmatch(BLOCKS, lines["blocks"])


@pytest.mark.parametrize(
    ("seconds", "code", "word"),
    [
        (160e-6, Exit.MISMATCH, "REGRESSION"),  # 13 % slower; where clocks are unknown 5 % are noise
        (145e-6, Exit.PASS, "no difference"),
        (120e-6, Exit.PASS, "faster"),
    ],
)
def test_slower_than_a_baseline_is_exit_1(store: Store, seconds: float, code: Exit, word: str) -> None:
    before = run(store, "torch", "hf").records
    report = run(store, "torch", timer=FakeTimer(seconds=seconds), records=[1], baseline=before)
    assert report.exit_code is code
    what = re.compile("torch on record 1 gdn_decode.*")
    change = wording("timing.baseline-change", what=what, verdict=word, before="142.1 us")
    assert re.search(change, timing_text(report, table))
    assert timing_json(report)["changes"][0]["changes"][0]["kernel"] == "torch"


def test_a_baseline_of_another_kind_is_refused_before_anything_is_timed(store: Store) -> None:
    before = run(store, "torch", records=[0]).records
    timer = FakeTimer()
    with pytest.raises(BadInputError, match=wording("timing.baseline-records")):
        run(store, "torch", timer=timer, records=[1], baseline=before)
    cold = [replace(timing, mode=Mode(Cache.COLD, Form.PLAIN)) for timing in before]
    with pytest.raises(
        BadInputError, match=wording("timing.baseline-differs", field="cache", ours="warm", theirs="cold")
    ):
        run(store, "torch", timer=timer, records=[0], baseline=cold)
    clocked = [replace(timing, clock="events") for timing in before]
    with pytest.raises(
        BadInputError,
        match=wording("timing.baseline-differs", field="clock", ours="perf_counter", theirs="events"),
    ):
        run(store, "torch", timer=timer, records=[0], baseline=clocked)
    assert timer.asked == []


def test_a_record_that_the_baseline_lacks_is_said(store: Store) -> None:
    before = run(store, "torch", records=[0]).records
    report = run(store, "torch", baseline=before)
    lacks = re.compile(wording("timing.baseline-lacks"))
    note = wording("timing.baseline-note", record="1 gdn_decode", note=lacks)
    assert re.search(note, timing_text(report, table))
    assert report.exit_code is Exit.PASS


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (0.0123456, "12.35 ms"), (1e-3, "1 ms"), (5.2e-6, "5.2 us")]
)
def test_units(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
