# SPDX-License-Identifier: Apache-2.0
"""What a terminal gets: lines that fit, colours, and progress; and what a pipe gets."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gdnbench.cli import terminal
from gdnbench.cli.console import print_line, print_lines, table
from gdnbench.cli.main import console_main
from gdnbench.cli.progress import CLEAR, REDRAWN_EVERY, Bar, hide, progress, waiting
from gdnbench.phases import State, begin, enter
from gdnbench.tables import Style, cell_width
from tests.subset import quick

CAPTURES = Path(__file__).resolve().parents[2] / "captures"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """`on_terminal(80, "ls", store)`: what the command prints on a terminal of 80 columns."""

    def shown(width: int, *words: object) -> str:
        stdout = Terminal()
        monkeypatch.setattr(sys, "argv", ["gdnbench", *map(str, words)])
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm")
        with pytest.raises(SystemExit):
            console_main()
        return stdout.getvalue()

    return shown


@pytest.fixture(autouse=True)
def colours_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)


COMMANDS = {
    "ls": ("ls", CAPTURES / "v4_decode.zarr.zip"),
    "show": ("show", CAPTURES / "batched_decode.zarr.zip", 0),
    "replay": ("replay", CAPTURES / "decode.zarr.zip", 1, "--against", "recorded", "--heatmap"),
    "bitwise": ("replay", CAPTURES / "decode.zarr.zip", 1, "--bitwise", "--heatmap"),
    "stages": ("replay", CAPTURES / "decode.zarr.zip", 1, "--stages"),
    "prove": ("prove", "torch", "--op", "gdn_decode", "--only", "captures"),
    "doctor": ("doctor",),
    "diff": ("diff", CAPTURES / "decode.zarr.zip", CAPTURES / "decode.zarr.zip"),
    "replays": ("replay", CAPTURES / "prefill.zarr.zip", "--against", "recorded"),
}


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("name", quick([*COMMANDS], 0, 3))
def test_lines_fit_the_terminal(on_terminal: Callable[..., str], name: str, width: int) -> None:
    """A word alone may be longer than a line: a path, or the name of a function."""
    lines = COLOUR.sub("", on_terminal(width, *COMMANDS[name])).split("\n")
    assert len(lines) > 3
    assert [line for line in lines if cell_width(line) > width and " " in line.strip()] == []


def test_every_figure_of_a_pipe_is_on_a_terminal_but_for_the_columns_left_out(
    on_terminal: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("replay", CAPTURES / "decode.zarr.zip", 1)
    narrow = COLOUR.sub("", on_terminal(80, *command))
    wide = COLOUR.sub("", on_terminal(160, *command))
    (left_out,) = re.findall(r"not shown at 80 columns: (.*)", narrow)
    header, *rows = (line for line in wide.split("\n\n")[0].split("\n"))
    kept = [name for name in re.split(r"  +", header.strip()) if name not in left_out.split(", ")]
    assert narrow.split("\n")[0].split() == " ".join(kept).split()
    starts = {name: header.index(name) + len(name) for name in ("limit", "of limit", "RMS ratio")}
    for row in rows:
        for end in starts.values():
            assert row[:end].split()[-1] in narrow


def test_verdicts_and_the_worst_cell_have_colours(
    on_terminal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = ("replay", CAPTURES / "decode.zarr.zip", 3, "--no-isolate", "--heatmap")
    wrong = (*wrong, "--kernel", f"{CAPTURES / 'wrong_kernel.py'}:gdn_decode")
    text = on_terminal(100, *wrong)
    bad, worst = (f"\x1b[{style.value}m" for style in (Style.BAD, Style.WORST))
    assert text.count(f"{bad}FAIL\x1b[0m") == 2
    cells = {float(cell) for cell in re.findall(r"(?:1;31|1;7;31)m([0-9.e+]+)\x1b", text)}
    (largest,) = re.findall(re.escape(worst) + r"([0-9.e+]+)\x1b", text)
    assert float(largest) == max(cells)
    # The heatmaps, of state and o: one cell each is the worst.
    assert len(re.findall(re.escape(worst) + "[▂▃▄▅▆▇█]\x1b", text)) == 2
    monkeypatch.setenv("NO_COLOR", "1")
    plain = on_terminal(100, *wrong)
    assert plain == COLOUR.sub("", text)


def test_a_hostile_text_has_the_colours_of_this_package_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = Terminal()
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setenv("TERM", "xterm")
    print_lines("\x1b[2J\x1b[1;31mred\nplain \x1b]0;t\x07")
    print_line("\x1b[31m")
    print(table(("verdict",), [("\x1b[2Jpass",), ("pass",)]))
    assert stdout.getvalue().split("\n") == [
        "\\x1b[2J\x1b[1;31mred\x1b[0m",
        "plain \\x1b]0;t\\x07\x1b[0m",
        "\\x1b[31m\x1b[0m",
        *("verdict", "\\x1b[2Jpass", "\x1b[32mpass\x1b[0m", ""),
    ]


def test_commands_to_paste_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = Terminal()
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setenv("COLUMNS", "40")
    command = "  repeat: gdnbench replay store.zarr 0 --kernel a.b:c --schedule random:3"
    print_line(command)
    print_line("note: qk raw -> normalised: q, k L2-normalised in fp32")
    assert stdout.getvalue() == f"{command}\nnote: qk raw -> normalised: q, k\n  L2-normalised in fp32\n"


def test_the_line_says_how_many_the_time_and_what_is_done() -> None:
    bar = Bar("replay")
    assert bar.text(3.2) == "replay, 0:03"
    bar(3, 12)
    bar.see(State("record 3", "simulate", "12 of 148 CTAs"))
    assert bar.text(61.0) == "replay: 3 of 12, 1:01, about 3:03 left: record 3, simulate 12 of 148 CTAs"
    bar.say("9 events")
    bar(12, 12)
    assert bar.text(3725) == "replay: 12 of 12, 1:02:05: 9 events, record 3, simulate 12 of 148 CTAs"


def test_what_is_left_counts_from_the_begin_of_a_section(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of a first section in 100 s, then 2 of 10 in 4 s."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    bar = Bar("prove")
    for now[0], done, total in ((50.0, 2, 4), (100.0, 4, 4), (102.0, 1, 10), (104.0, 2, 10)):
        bar(done, total)
    assert bar.text(now[0]) == "prove: 2 of 10, 1:44, about 0:16 left"


def test_a_pipe_gets_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("replay") as bar:
        bar(1, 2)
        begin("record 0")
        enter("judge")
        print("result")
    assert capsys.readouterr() == ("result\n", "")


def test_what_is_printed_meanwhile_clears_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("gdnbench.cli.progress.SHOWN_AFTER", 0.0)
    with progress("replay"):
        begin("record 0")
        _wait_until(lambda: "record 0" in screen.getvalue())
        print("note", file=sys.stderr)
        before, _, _ = screen.getvalue().partition("note\n")
        assert before.endswith(f"\r{CLEAR}")
    assert not screen.getvalue().endswith("record 0\r")
    assert sys.stderr is screen


def test_a_program_that_has_the_terminal_is_not_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("gdnbench.cli.progress.SHOWN_AFTER", 0.0)
    with waiting("sim"):
        _wait_until(lambda: "sim, 0:0" in screen.getvalue())
        hide()
        before = screen.getvalue()
        assert before.endswith(CLEAR)
        time.sleep(2 * REDRAWN_EVERY)
        assert screen.getvalue() == before
        with progress("other numbers of SMs"):
            _wait_until(lambda: "other numbers" in screen.getvalue())


def _wait_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


PROGRAM = """
import sys, time
from gdnbench.cli.console import print_line, progress, table
from gdnbench.phases import begin, enter
print(table(("verdict",), [("pass",)]))
with progress("replay") as bar:
    bar(1, 3)
    begin("record 1"); enter("simulate", "2 of 4 CTAs")
    time.sleep(60)
"""


@pytest.fixture
def in_pty() -> Callable[..., tuple[int, str]]:
    """`in_pty(environment)`: runs PROGRAM on a terminal of its own, presses Ctrl-C once there is progress."""

    def run(**environment: str) -> tuple[int, str]:
        child, terminal_end = pty.fork()
        if child == 0:
            os.environ.update({"TERM": "xterm", "COLUMNS": "80", **environment})
            os.execv(sys.executable, [sys.executable, "-c", PROGRAM])
        seen, pressed = b"", False
        while select.select([terminal_end], [], [], 60)[0]:
            try:
                found = os.read(terminal_end, 4096)
            except OSError:  # what Linux says at the end
                break
            seen += found
            if not found:
                break
            if b"CTAs" in seen and not pressed:
                os.write(terminal_end, b"\x03")
                pressed = True
        _, status = os.waitpid(child, 0)
        os.close(terminal_end)
        return os.waitstatus_to_exitcode(status), seen.decode()

    return run


def test_a_terminal_has_colours_and_progress_and_is_left_clean_by_ctrl_c(
    in_pty: Callable[..., tuple[int, str]],
) -> None:
    status, seen = in_pty()
    assert "\x1b[32mpass\x1b[0m" in seen
    assert re.search(r"replay: 1 of 3, 0:0\d, about 0:\d\d left: record 1, simulate 2 of 4 CTAs", seen)
    last = seen[seen.rindex("CTAs") :]
    assert last.index(CLEAR) < last.index("KeyboardInterrupt")
    assert "\x1b[?25l" not in seen  # the cursor was never hidden
    assert status != 0


def test_no_color_is_a_terminal_without_colours(in_pty: Callable[..., tuple[int, str]]) -> None:
    _, seen = in_pty(NO_COLOR="1")
    assert "record 1" in seen
    assert COLOUR.search(seen) is None


def test_terminal_width_is_none_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert terminal.stdout_width() is None
    assert not terminal.has_colours()
