# SPDX-License-Identifier: Apache-2.0
"""Capture switched on and off while a program runs: by a control file, by a signal, in several processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gdnbench.capture import capturing
from gdnbench.capture.control import Switch, SwitchControl, process_start_ticks, send_to_switchable
from gdnbench.capture.launch import run_captured
from gdnbench.capture.layers import Layer
from gdnbench.capture.options import OPTIONS_VARIABLE, CaptureOptions
from gdnbench.capture.report import Report, read_report
from gdnbench.capture.sealing import SealingThread
from gdnbench.capture.selection import Selection
from gdnbench.errors import BadInputError
from gdnbench.store.reader import Store
from tests.messages import wording

Toy = Any


@pytest.mark.parametrize(
    ("text", "recorded"),
    [
        ("on", [3, 4, 5, 6, 7]),
        ("on\n", [3, 4, 5, 6, 7]),
        ("off", []),
        ("once", [3]),
        (" next  2 \n", [3, 4]),
    ],
)
def test_what_a_control_file_says(text: str, recorded: list[int]) -> None:
    selection = Selection(CaptureOptions(paused=True))
    layers = [Layer("a", 0), Layer("b", 1)]
    found: dict[str, list[int]] = {"a": [], "b": []}
    for step in range(8):
        for layer in layers:
            if (step, layer.name) == (3, "a"):
                assert selection.switch.execute(text)
            if selection.switch.off:
                selection.pass_by(layer)
            elif selection.keeps("op", layer):
                found[layer.name].append(step)
    assert found == {"a": recorded, "b": recorded}


@pytest.mark.parametrize(
    "text", ["yes", "next", "next 0", "next -1", "next two", "on off", "next 9999999999"]
)
def test_what_no_control_file_says(text: str) -> None:
    switch = Switch(paused=True)
    assert not switch.execute(text)
    assert switch.off


def test_every_stays_in_step_across_a_pause_that_ends_inside_a_step() -> None:
    """By hand: of every fourth call, 0 to 11; paused from call 1 of b on up to call 5 of a: b misses one
    more."""
    selection = Selection(CaptureOptions(every=4))
    layers = [Layer("a", 0), Layer("b", 1)]
    found: dict[str, list[int]] = {"a": [], "b": []}
    for step in range(12):
        for layer in layers:
            if (step, layer.name) == (1, "b"):
                selection.switch.pause()
            if (step, layer.name) == (5, "a"):
                selection.switch.on()
            if selection.switch.off:
                selection.pass_by(layer)
            elif selection.keeps("op", layer):
                found[layer.name].append(step)
    assert found == {"a": [0, 8], "b": [0, 8]}


def test_a_pause_is_not_counted_by_first() -> None:
    selection = Selection(CaptureOptions(paused=True, first=2))
    layer = Layer("a", 0)
    for _ in range(5):
        selection.pass_by(layer)
    selection.switch.on()
    assert [selection.keeps("op", layer) for _ in range(4)] == [True, True, False, False]


CONTROLLED = """
    import os, time, toyframe
    model = toyframe.Model()
    control = os.environ["CONTROL"]
    def say(text):
        with open(control + ".new", "w") as file:
            file.write(text)
        os.replace(control + ".new", control)
    def until(holds):
        # The thread that looks at the file has no deadline: calls show when it has looked.
        while not holds():
            time.sleep(0.01)
    def off():
        from gdnbench.capture import runtime
        return runtime.innermost().session._switch.off
    for step in range(3):
        model(step)
    say("next 2")
    until(lambda: not off())
    for step in range(3, 7):
        model(step)
    say("off")
    until(off)
    model(7)
    say("nonsense")
    say("on")
    until(lambda: not off())
    model(8)
    print("done")
"""


def test_a_file_switches_a_program_that_runs(toy: Toy, tmp_path: Path) -> None:
    control = tmp_path / "control"
    ran = toy.capture(
        tmp_path / "run.zarr",
        toy.script(CONTROLLED),
        {"paused": True, "control": str(control)},
        CONTROL=str(control),
    )
    assert (ran.status, ran.out) == (0, "done\n")
    infos = [one.info for one in Store.open(tmp_path / "run.zarr").records]
    assert [(one.step, one.layer_index) for one in infos] == [
        (s, layer) for s in (3, 4, 8) for layer in (0, 1)
    ]


@pytest.mark.slow  # processes that import torch
def test_a_file_that_is_there_at_the_start_counts(toy: Toy, program: Path, tmp_path: Path) -> None:
    (tmp_path / "control").write_text("once\n")
    options = {"paused": True, "control": str(tmp_path / "control")}
    ran = toy.capture(tmp_path / "run.zarr", program, options)
    assert (ran.status, ran.out) == (0, toy.run(program).out)
    assert [one.info.step for one in Store.open(tmp_path / "run.zarr").records] == [0, 0]


@pytest.mark.slow  # processes that import torch
def test_what_a_file_says_wrongly_is_in_the_summary(toy: Toy, program: Path, tmp_path: Path) -> None:
    (tmp_path / "control").write_text("onn\n")
    ran = toy.capture(tmp_path / "run.zarr", program, {"control": str(tmp_path / "control")})
    assert "problem:" in ran.err
    assert "control says 'onn" in ran.err
    assert len(Store.open(tmp_path / "run.zarr").records) == 8


SIGNALLED = """
    import os, signal, toyframe
    heard = []
    signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))
    model = toyframe.Model(1)
    model(0)
    os.kill(os.getpid(), signal.SIGUSR2)
    model(1)
    os.kill(os.getpid(), signal.SIGUSR2)
    model(2)
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGUSR2)
        model(3)
        assert len(heard) == 3
        import gc
        from gdnbench.capture import runtime
        runtime.innermost().session.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    model(4)
    print(len(heard))
"""


@pytest.mark.slow  # a program of its own; the file switches above
def test_a_signal_switches_beside_the_programs_own_handler(toy: Toy, tmp_path: Path) -> None:
    script = toy.script(SIGNALLED)
    ran = toy.capture(tmp_path / "run.zarr", script, {"paused": True, "signal": "USR2"})
    assert (ran.status, ran.out) == (0, "2\n")
    by_segment: dict[str, list[int]] = {}
    for one in Store.open(tmp_path / "run.zarr").records:
        by_segment.setdefault(one.key.partition("/")[0], []).append(one.info.step)
    assert sorted(by_segment.values()) == [[1], [3]]


PASSED_ON = """
    import os, signal, subprocess, sys, time, toyframe
    if sys.argv[1:]:
        model = toyframe.Model(1)
        from gdnbench.capture import runtime
        model(0)
        print("ready", flush=True)
        while runtime.innermost().session._switch.off:
            time.sleep(0.01)
        model(1)
    else:
        # In between is a shell, which the signal would end.
        line = [sys.executable, __file__, "worker"]
        shell = subprocess.Popen(["/bin/sh", "-c", '"$@"; exit $?', "sh", *line], stdout=subprocess.PIPE)
        assert shell.stdout.readline() == b"ready\\n"
        toyframe.Model(1)(0)
        os.kill(os.getppid(), signal.SIGUSR2)
        print(shell.wait(), flush=True)
        while runtime.innermost().session._switch.off:
            time.sleep(0.01)
"""


@pytest.mark.slow  # processes that import torch
def test_the_command_passes_the_signal_on_to_who_handles_it(toy: Toy, tmp_path: Path) -> None:
    script = toy.script(
        PASSED_ON.replace("else:\n", "else:\n        from gdnbench.capture import runtime\n", 1)
    )
    command = [sys.executable, "-m", "gdnbench", "capture", str(tmp_path / "run.zarr"), "--paused"]
    command += ["--signal", "USR2", "--", sys.executable, str(script)]
    ran = subprocess.run(
        command, env=toy.environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "0\n"), ran.stderr
    assert [one.info.step for one in Store.open(tmp_path / "run.zarr").records] == [1]


@pytest.fixture
def usr2() -> Iterator[int]:
    before = signal.getsignal(signal.SIGUSR2)
    yield signal.SIGUSR2
    signal.signal(signal.SIGUSR2, before)


def test_only_living_processes_that_said_so_are_sent_a_signal(usr2: int, tmp_path: Path) -> None:
    report = Report(str(tmp_path / "report"))
    remote = SwitchControl(Switch(), CaptureOptions(signal="USR2"), report)
    report.note("started")
    notes = read_report(tmp_path / "report")
    assert [note["event"] for note in notes] == ["switchable", "started"]
    sent: list[tuple[int, int]] = []
    # A process that ended, and whose number was given to another.
    notes += [{"event": "switchable", "pid": os.getppid(), "start": "1"}]
    notes += [{"event": "switchable", "pid": 1 << 30, "start": "1"}]
    assert send_to_switchable(usr2, notes, lambda pid, number: sent.append((pid, number))) == 1
    assert sent == [(os.getpid(), usr2)]
    assert process_start_ticks(1 << 30) is None
    remote.close()
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN


def test_a_handler_that_came_later_stays(usr2: int) -> None:
    switch = Switch()
    remote = SwitchControl(switch, CaptureOptions(signal="USR2"), Report(None))
    heard: list[int] = []

    def own(number: int, frame: object) -> None:
        heard.append(number)

    signal.signal(usr2, own)
    remote.start()
    signal.raise_signal(usr2)
    assert (heard, switch.off) == ([usr2], True)
    remote.close()
    assert signal.getsignal(usr2) is own


def remote_of(file: Path, switch: Switch, report: Path | None = None) -> SwitchControl:
    options = CaptureOptions(paused=switch.off, control=str(file))
    return SwitchControl(switch, options, Report(None if report is None else str(report)))


def problems(report: Path) -> list[str]:
    return [note["text"] for note in read_report(report) if note["event"] == "problem"]


@pytest.mark.slow  # processes that import torch
def test_a_pipe_for_a_control_file_keeps_nobody(toy: Toy, program: Path, tmp_path: Path) -> None:
    """Opening it would wait for one who writes, before the program's first import is done."""
    os.mkfifo(tmp_path / "control")
    ran = toy.capture(tmp_path / "run.zarr", program, {"control": str(tmp_path / "control")})
    assert (ran.status, ran.out) == (0, toy.run(program).out)
    unreadable = wording("capture.control-unreadable", path=tmp_path / "control", reason="it is no file")
    assert len(re.findall(unreadable, ran.err)) == 1


def test_what_cannot_be_read_is_told_once_and_obeyed_when_it_can(tmp_path: Path) -> None:
    control, report, switch = tmp_path / "control", tmp_path / "report", Switch(paused=True)
    control.mkdir()
    remote = remote_of(control, switch, report)
    remote._look()
    assert len(problems(report)) == 1
    control.rmdir()
    remote._look()
    control.write_text("on")
    remote._look()
    assert not switch.off
    control.unlink()
    remote._look()
    assert (switch.off, len(problems(report))) == (False, 1)
    remote_of(Path("a\0b"), switch, report)
    assert len(problems(report)) == 2


@pytest.mark.parametrize("text", [b"\xef\xbb\xbfon\r\n", b"on\r\n", b"\n on " + b" " * 100_000])
def test_how_other_systems_write_a_line(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "control").write_bytes(text)
    switch = Switch(paused=True)
    remote_of(tmp_path / "control", switch)
    assert not switch.off


def test_a_file_put_there_while_it_is_looked_at_is_obeyed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control, new, switch = tmp_path / "control", tmp_path / "new", Switch(paused=True)
    obeyed: list[str] = []
    monkeypatch.setattr(switch, "execute", lambda text: not obeyed.append(text))  # type: ignore[func-returns-value]
    remote = remote_of(control, switch)
    control.write_text("off")
    new.write_text("once")
    true_stat = Path.stat

    def stat_then_replace(path: Path, **options: Any) -> os.stat_result:
        found = true_stat(path, **options)
        if path == control and new.exists():
            os.replace(new, control)
        return found

    monkeypatch.setattr(Path, "stat", stat_then_replace)
    for _ in range(3):
        remote._look()
    assert obeyed == ["once"]


def test_a_relative_control_file_is_of_the_folder_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path)
    switch = Switch(paused=True)
    remote = remote_of(Path("control"), switch)
    monkeypatch.chdir(tmp_path / "else")
    (tmp_path / "control").write_text("on")
    remote._look()
    assert not switch.off


def test_a_handler_that_calls_the_one_before_it_toggles_once(usr2: int) -> None:
    """By the program's own handler that ends in a call of ours, which it found there."""
    switch, heard = Switch(), list[int]()
    signal.signal(usr2, lambda number, frame: heard.append(0))
    remote = SwitchControl(switch, CaptureOptions(signal="USR2"), Report(None))
    there: Any = signal.getsignal(usr2)

    def own(number: int, frame: Any) -> None:
        heard.append(1)
        there(number, frame)

    signal.signal(usr2, own)
    remote.start()
    for off in (True, False):
        heard.clear()
        signal.raise_signal(usr2)
        assert (switch.off, heard) == (off, [1, 0])
    remote.close()
    assert signal.getsignal(usr2) is own
    signal.raise_signal(usr2)
    assert not switch.off


def test_a_first_call_off_the_main_thread_says_that_the_signal_is_lost(usr2: int, tmp_path: Path) -> None:
    remote = SwitchControl(Switch(), CaptureOptions(signal="USR2"), Report(str(tmp_path / "report")))
    signal.signal(usr2, lambda number, frame: None)
    thread = threading.Thread(target=remote.start)
    thread.start()
    thread.join()
    (text,) = problems(tmp_path / "report")
    assert re.fullmatch(wording("capture.signal-lost", signal="SIGUSR2", process=os.getpid()), text)


def test_a_child_forked_while_the_file_is_waited_for_can_close(tmp_path: Path) -> None:
    remote = remote_of(tmp_path / "control", Switch())
    with remote._ended._cond:  # as the thread has it that looks at the file
        remote.after_fork()
        closing = threading.Thread(target=remote.close, daemon=True)
        closing.start()
        closing.join(20)
        assert not closing.is_alive()


def test_a_program_that_gave_the_signal_up_is_not_ended_by_it(usr2: int, tmp_path: Path) -> None:
    """`exec` keeps the number and the start of a process, and none of its handlers."""
    line = "import os; print(flush=True); os.execvp('sh', ['sh', '-c', 'echo; read x; exit 7'])"
    child = subprocess.Popen([sys.executable, "-c", line], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    notes = [{"event": "switchable", "pid": child.pid, "start": process_start_ticks(child.pid)}]
    child.stdout.readline()  # the shell runs
    assert send_to_switchable(usr2, notes) == 0
    child.communicate(b"\n")
    assert child.returncode == 7


def test_a_pause_that_nothing_ends_is_refused(tmp_path: Path) -> None:
    said = wording("capture.paused-for-good")
    with pytest.raises(BadInputError, match=said):
        run_captured(tmp_path / "run.zarr", ["true"], CaptureOptions(paused=True))
    with pytest.raises(BadInputError, match=said):
        CaptureOptions.from_environment({OPTIONS_VARIABLE: '{"paused": true}'})
    with (
        pytest.raises(BadInputError, match=said),
        capturing(tmp_path / "run.zarr", CaptureOptions(paused=True)),
    ):
        raise AssertionError("it began")
    assert not (tmp_path / "run.zarr").exists()
    assert CaptureOptions.from_environment({OPTIONS_VARIABLE: '{"paused": true, "signal": "USR2"}'}).paused


@pytest.mark.slow  # processes that import torch
def test_a_signal_while_the_rest_is_sealed_does_not_end_the_command(
    usr2: int, toy: Toy, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[int] = []
    signal.signal(usr2, lambda number, frame: heard.append(number))
    finish = SealingThread.finish

    def late(sealing: SealingThread) -> None:
        signal.raise_signal(usr2)
        finish(sealing)

    monkeypatch.setattr(SealingThread, "finish", late)
    assert toy.capture(tmp_path / "run.zarr", program, {"signal": "USR2"}).status == 0
    assert heard == []
    assert len(Store.open(tmp_path / "run.zarr").records) == 8
    signal.raise_signal(usr2)
    assert heard == [usr2]
