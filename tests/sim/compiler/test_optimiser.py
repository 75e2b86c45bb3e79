# SPDX-License-Identifier: Apache-2.0
"""A launch that runs for long continues with better code, and later launches begin with it."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gdnbench.sim.compiler import native, optimiser
from gdnbench.sim.compiler.native import Level
from gdnbench.sim.compiler.parallel import map_in_processes
from gdnbench.sim.errors import UnsupportedError, WorkerError
from gdnbench.sim.run import run_ptx
from tests.messages import wording

# out[i] = 3^1000 * i + (3^1000 - 1) / 2 modulo 2^32, by a loop: x -> 3 x + 1.
TEXT = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .b64 out)
{
.reg .b32 %x, %n;
.reg .b64 %address;
.reg .pred %more;
ld.param.b64 %address, [out];
mov.u32 %x, %ctaid.x;
mov.u32 %n, %tid.x;
mad.lo.u32 %x, %x, 32, %n;
mad.wide.u32 %address, %x, 4, %address;
mov.u32 %n, 1000;
AGAIN:
mad.lo.u32 %x, %x, 3, 1;
sub.u32 %n, %n, 1;
setp.ne.u32 %more, %n, 0;
@%more bra AGAIN;
st.global.b32 [%address], %x;
ret;
}
"""
CTAS = 40


def expected() -> list[int]:
    power = 3**1000
    return [(power * i + (power - 1) // 2) % 2**32 for i in range(32 * CTAS)]


@pytest.fixture
def levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the level of each compilation of blocks, also of those in other processes."""
    path, original = tmp_path / "levels", native.compile_text
    path.write_text("")

    def noted(text: str, level: Level) -> bytes:
        if "define i32 @block0(" in text:
            with path.open("a") as file:
                file.write(f"{level.name}\n")
        return original(text, level)

    monkeypatch.setattr(native, "compile_text", noted)
    return path


def launch(threads: int) -> list[int]:
    out = np.zeros(32 * CTAS, np.uint32)
    run_ptx(TEXT, "k", (CTAS, 1, 1), (32, 1, 1), [out], threads=threads)
    values: list[int] = out.tolist()
    return values


@pytest.mark.parametrize("threads", [1, 3])
def test_a_long_launch(threads: int, levels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimiser, "SECONDS_PER_BYTE", 0.0)
    monkeypatch.setattr(optimiser, "LEAST_SECONDS", 0.0)
    assert launch(threads) == expected()
    first, *others = levels.read_text().split()
    assert first == "BASELINE"
    assert others
    assert set(others) == {"OPTIMISED"}
    levels.write_text("")
    assert launch(threads) == expected()
    assert levels.read_text() == ""


def test_a_short_launch(levels: Path) -> None:
    assert launch(1) == launch(1) == expected()
    assert levels.read_text() == "BASELINE\n"


def test_a_launch_that_waits_for_a_processor_is_not_long(
    levels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has taken no processor time looks again later, whatever the clock says."""
    monkeypatch.setattr(optimiser, "LEAST_SECONDS", 1.0)
    clocks = {"process_time": 50.0, "perf_counter": 100.0}
    monkeypatch.setattr(
        optimiser, "time", SimpleNamespace(**{name: partial(clocks.get, name) for name in clocks})
    )
    waiting = optimiser.Optimiser("kernel", native.Compiled((), {}), 0, list)
    clocks |= {"process_time": 50.25, "perf_counter": 109.0}
    assert waiting.look() == (None, 109.75)
    assert levels.read_text() == ""


def test_a_cache_that_cannot_be_written(
    tmp_path: Path, levels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GDNBENCH_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(optimiser, "SECONDS_PER_BYTE", 0.0)
    monkeypatch.setattr(optimiser, "LEAST_SECONDS", 0.0)
    assert launch(3) == expected()


def test_results_in_order() -> None:
    texts = ["a", "b" * 300_000, "c"]
    for processes in (1, 2, 5):
        assert map_in_processes(str.encode, texts, processes) == [text.encode() for text in texts]


def test_the_first_refusal_of_several_processes() -> None:
    """As one process would raise it, wherever and whenever the others fail."""

    def refuse(number: int) -> bytes:
        time.sleep(0.01 * (5 - number))
        if number:
            raise UnsupportedError(f"number {number}")
        return b""

    with pytest.raises(UnsupportedError, match="number 1"):
        map_in_processes(refuse, range(5), 3)


def test_a_process_that_fails_or_dies() -> None:
    here = os.getpid()

    def fail(text: str) -> bytes:
        if os.getpid() == here:
            time.sleep(0.2)  # the other process takes the rest
        elif text == "fails":
            raise ValueError("no such register")
        else:
            os._exit(1)
        return text.encode()

    with pytest.raises(WorkerError, match=wording("sim.compiler.part-failed", reason="Traceback")) as failed:
        map_in_processes(fail, ["fails"] * 9, 2)
    assert "no such register" in str(failed.value)
    with pytest.raises(WorkerError, match=wording("sim.compiler.part-died")):
        map_in_processes(fail, ["dies"] * 9, 2)
