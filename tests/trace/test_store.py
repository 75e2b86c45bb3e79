# SPDX-License-Identifier: Apache-2.0
"""Value traces as stores: what is read is what ran, from any event on, and what became of a trace is said."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from gdnbench.errors import StoreError
from gdnbench.sim.errors import KernelFault
from gdnbench.sim.value_trace import Event
from gdnbench.store.reader import Store
from gdnbench.trace.layout import EVENT_BYTES, EVENTS_CHUNK, ROW_BYTES, VALUES_CHUNK
from gdnbench.trace.reader import TracedLaunch, is_trace, open_trace
from tests.messages import wording

Traced = Callable[..., Path]  # the fixture `traced`

X = np.arange(32, dtype=np.float32) / 4 + 1
BEFORE, EACH, AFTER = 9, 4, 2  # events of the kernel outside and in a round; a branch has no value


def named(launch: TracedLaunch, start: str) -> list[Event]:
    pcs = {one.pc for one in launch.instructions if one.text.split()[0].startswith(start)}
    return [event for event in launch.read() if event.pc in pcs]


def floats(event: Event) -> list[float]:
    found: list[float] = event.values[0].astype(np.uint32).view(np.float32).tolist()
    return found


def test_events_are_what_the_kernel_computed(traced: Traced) -> None:
    with open_trace(traced("a", X, rounds=4)) as trace:
        (launch,) = trace.launches
        assert (launch.entry, launch.grid, launch.end, launch.dropped) == ("sums", (1, 1, 1), "complete", 0)
        assert launch.events == BEFORE + 4 * EACH + AFTER
        sums = named(launch, "fma.")
        # 0x, 1x, 3x, 6x: exact in f32.
        assert [floats(event) for event in sums] == [(k * X).tolist() for k in (0, 1, 3, 6)]
        assert [event.occurrence for event in sums] == [0, 1, 2, 3]
        assert {(event.cta, event.warp, event.lanes) for event in sums} == {(0, 0, 0xFFFFFFFF)}
        (line,) = {launch.instructions[event.pc].file_line for event in sums}
        (text,) = launch.sources.values()
        assert text.splitlines()[line - 1] == "        total = total + step * value"  # type: ignore[operator]
        assert launch.attributes["schedule"] == "late"
        assert "numpy" in trace.attributes["provenance"]["packages"]


def test_a_plain_zarr_reader_needs_nothing_of_ours(traced: Traced) -> None:
    group = zarr.open_group(traced("a", X, rounds=2), mode="r")["launches/000000"]
    rows, pcs = np.asarray(group["row"]), np.asarray(group["pc"])  # type: ignore[index]
    values = np.asarray(group["values"])  # type: ignore[index]
    assert len(rows) == len(pcs) == group.attrs["gdnbench"]["events"]  # type: ignore[index,call-overload]
    np.testing.assert_array_equal(values[rows[6]].astype(np.uint32).view(np.float32), X)  # the load of x


def test_reading_starts_anywhere_and_looks_at_nothing_before(traced: Traced) -> None:
    rounds = 2 * EVENTS_CHUNK // EACH
    path = traced("a", X, rounds=rounds, of="class=arithmetic")
    launch_folder = path / "launches" / "000000"
    with open_trace(path) as trace:
        (launch,) = trace.launches
        assert launch.events > 2 * EVENTS_CHUNK - 8
        start = EVENTS_CHUNK + VALUES_CHUNK  # aligned to neither of the chunks that reading begins with
        every = list(launch.read())
        assert [event.occurrence for event in launch.read(launch.events - 3)] == [
            event.occurrence for event in every[-3:]
        ]
    for name in ("cta", "warp", "pc", "occurrence", "lanes", "row"):
        (launch_folder / name / "c" / "0").unlink()
    (launch_folder / "values" / "c" / "0" / "0").unlink()
    with open_trace(path) as trace:
        (launch,) = trace.launches
        for event, known in zip(launch.read(start, start + 100), every[start:], strict=False):
            assert (event.pc, event.occurrence) == (known.pc, known.occurrence)
            np.testing.assert_array_equal(event.values, known.values)
        assert list(launch.read(launch.events)) == []
        with pytest.raises(StoreError, match=wording("store.chunk-missing")):
            next(launch.read(0))


def test_every_launch_has_its_group(traced: Traced) -> None:
    path = traced("a", X, launches=2)
    traced("a", X, rounds=1, launches=1)  # another process would go on so
    with open_trace(path) as trace:
        counts = [launch.events for launch in trace.launches]
    assert counts == [BEFORE + 3 * EACH + AFTER] * 2 + [BEFORE + EACH + AFTER]


def test_a_limit_is_of_all_launches_and_what_it_leaves_out_is_counted(traced: Traced) -> None:
    path = traced("a", X, limit=10 * (EVENT_BYTES + ROW_BYTES), launches=2)
    with open_trace(path) as trace:
        first, second = trace.launches
        assert (first.events, first.dropped) == (10, BEFORE + 3 * EACH + AFTER - 10)
        assert (second.events, second.dropped) == (0, BEFORE + 3 * EACH + AFTER)
        assert not first.whole
        assert len(list(first.read())) == 10
    again = traced("a", X, limit=10 * (EVENT_BYTES + ROW_BYTES))
    with open_trace(again) as trace:
        assert trace.launches[2].events == 0


def test_an_interrupt_leaves_what_was_recorded(traced: Traced, tmp_path: Path) -> None:
    def before(cta: int) -> None:
        if cta == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        traced("a", X, grid=4, wrap=lambda observed: replace(observed, before_cta=before))
    with open_trace(tmp_path / "a.zarr") as trace:
        (launch,) = trace.launches
        assert (launch.end, launch.whole) == ("interrupted", False)
        assert {event.cta for event in launch.read()} == {0, 1}
        assert launch.events == 2 * (BEFORE + 3 * EACH + AFTER)


def test_a_fault_leaves_what_was_before_it(traced: Traced, tmp_path: Path) -> None:
    with pytest.raises(KernelFault):
        traced("a", X, edits=(("add.s64 %rd5, %rd2, %rd3", "mov.u64 %rd5, 64"),))
    with open_trace(tmp_path / "a.zarr") as trace:
        (launch,) = trace.launches
        assert launch.end == "fault"
        assert launch.instructions[list(launch.read())[-1].pc].text.strip().startswith("mov.u64")


LONG = """
import os, resource, signal, sys
from pathlib import Path
import numpy as np
from tests.trace import sums
from gdnbench.sim import run_ptx
from gdnbench.sim.value_trace import Selection
from gdnbench.sim import Observed
from gdnbench.trace.writer import TraceWriter, make_trace

path = Path(sys.argv[1])
make_trace(path)
recorder = TraceWriter(path).launch(Selection.parse("all"), dict())
x, z = np.ones(32, np.float32), np.zeros(32, np.float32)

class Wrapped:
    selection = recorder.selection
    count = 0

    def begin_launch(self, launch, engine):
        recorder.begin_launch(launch, engine)

    def add_event(self, *event):
        Wrapped.count += 1
        {each}
        recorder.add_event(*event)

    def end_launch(self, how):
        {end}
        recorder.end_launch(how)

text = sums.PTX.replace("@FILE@", "none.py")
run_ptx(text, "sums", (1, 1, 1), (32, 1, 1), [x, z, 2], observed=Observed(Wrapped()))
"""


def long(path: Path, each: str = "pass", end: str = "pass") -> subprocess.CompletedProcess[str]:
    program = LONG.format(each=each, end=end)
    return subprocess.run(
        [sys.executable, "-c", program, str(path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_a_killed_process_leaves_a_trace_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    more = f"[recorder.add_event(0, 0, event[2], n, 1, event[5]) for n in range({EVENTS_CHUNK + 100})]"
    done = long(path, each=f"{more}; os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -signal.SIGKILL, done.stderr
    with open_trace(path) as trace:
        (launch,) = trace.launches
        assert (launch.end, launch.whole) == (None, False)
        # A chunk of events, less those whose values were not in the store yet.
        assert EVENTS_CHUNK - VALUES_CHUNK < launch.events <= EVENTS_CHUNK
        assert [event.occurrence for event in launch.read()] == list(range(launch.events))


@pytest.mark.slow
def test_memory_does_not_grow_with_a_trace(tmp_path: Path) -> None:
    """140,000 events of one register more are 37 MiB more before compression. What is held is one chunk of
    each array, and what zarr has in flight to write one: less than 16 MiB, with ten chunks or one."""
    more = (
        "[recorder.add_event(0, 0, event[2], n, 1, event[5]) for n in range({} if Wrapped.count == 1 else 0)]"
    )
    peaks = []
    for name, count in (("a", 14_000), ("b", 154_000)):
        said = "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        done = long(tmp_path / name, each=more.format(count), end=said)
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout) * 1024)
    with open_trace(tmp_path / "b") as trace:
        assert trace.launches[0].events > 154_000
    assert peaks[1] - peaks[0] < 16 << 20


def test_other_stores_are_told_apart(traced: Traced, tmp_path: Path) -> None:
    path = traced("a", X)
    assert is_trace(path)
    assert not is_trace(tmp_path)
    assert not is_trace(tmp_path / "none")
    with pytest.raises(StoreError, match=wording("store.trace-not-store")):
        Store.open(path)
    with pytest.raises(StoreError, match=r"has no zarr\.json"), open_trace(tmp_path):
        pass


def changed(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    node = json.loads(path.read_text())
    change(node)
    path.write_text(json.dumps(node))


def test_another_version_is_refused(traced: Traced) -> None:
    path = traced("a", X)
    changed(path / "zarr.json", lambda node: node["attributes"]["gdnbench"].update(trace_version=2))
    with (
        pytest.raises(
            StoreError, match=wording("trace.version-unknown", version=2, writer=re.compile("gdnbench.*"))
        ),
        open_trace(path),
    ):
        pass


HOSTILE: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "more events than there are": ("zarr.json", lambda n: n["attributes"]["gdnbench"].update(events=10**12)),
    "events that are no number": ("zarr.json", lambda n: n["attributes"]["gdnbench"].update(events="7")),
    "negative events": ("zarr.json", lambda n: n["attributes"]["gdnbench"].update(events=-1)),
    "another digest": ("zarr.json", lambda n: n["attributes"]["gdnbench"].update(instructions="0" * 64)),
    "a way out": ("zarr.json", lambda n: n["attributes"]["gdnbench"].update(instructions="../" * 21 + "x")),
    "no grid": ("zarr.json", lambda n: n["attributes"]["gdnbench"].pop("grid")),
    "a huge column": ("pc/zarr.json", lambda n: n.update(shape=[1 << 60])),
    "huge values": ("values/zarr.json", lambda n: n.update(shape=[1 << 50, 32])),
    "values of another kind": ("values/zarr.json", lambda n: n.update(data_type="float64", fill_value=0.0)),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("what", HOSTILE)
def test_what_a_store_claims_is_not_believed(traced: Traced, what: str) -> None:
    path = traced("a", X)
    file, change = HOSTILE[what]
    changed(path / "launches" / "000000" / file, change)
    with pytest.raises(StoreError):
        read_all(path)


def read_all(path: Path) -> None:
    with open_trace(path) as trace:
        for launch in trace.launches:
            list(launch.read())


@pytest.mark.parametrize(("column", "value"), [("pc", 10_000), ("row", 5), ("row", 1 << 40)])
def test_columns_that_lead_nowhere_are_damage(traced: Traced, column: str, value: int) -> None:
    path = traced("a", X)
    array = zarr.open_array(path / "launches" / "000000" / column, mode="r+")
    array[3] = value
    with open_trace(path) as trace, pytest.raises(StoreError, match=wording("store.damaged")):
        list(trace.launches[0].read())


def test_truncated_chunks_are_damage(traced: Traced) -> None:
    path = traced("a", X)
    for name in ("values/c/0/0", "pc/c/0"):
        file = path / "launches" / "000000" / name
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        with open_trace(path) as trace, pytest.raises(StoreError):
            list(trace.launches[0].read())
        file.write_bytes(whole)


def test_a_table_that_is_none_is_refused(traced: Traced) -> None:
    """A hostile store has digests that fit."""
    from blake3 import blake3

    from gdnbench.store.arrays import write_array
    from gdnbench.store.compression import Chunking, Compression

    path = traced("a", X)
    with open_trace(path) as trace:
        count = len(trace.launches[0].instructions)
    for line in ("[]", "{}", "3", "nan", '{"pc": 0}'):
        content = np.frombuffer((f"{line}\n" * count).encode(), np.uint8)
        digest = blake3(content.tobytes()).hexdigest()
        write_array(path, f"texts/{digest}", content, {}, Compression(), Chunking(), False)
        group = path / "launches" / "000000" / "zarr.json"
        changed(group, lambda n, found=digest: n["attributes"]["gdnbench"].update(instructions=found))  # type: ignore
        with open_trace(path) as trace, pytest.raises(StoreError, match=wording("trace.instructions-wrong")):
            list(trace.launches[0].read())
