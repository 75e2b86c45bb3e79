# SPDX-License-Identifier: Apache-2.0
"""`gdnbench sim --explore all`: verdicts, exit statuses and what is printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts import prove_orders, zoo

Invoke = Callable[..., Any]  # the fixture `gdnbench`

# Thread 0 fills a slot twice, and is slow in between; thread 32 waits for both, and releases nothing.
PTX = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out)
{
.reg .pred %p<8>; .reg .b32 %r<16>;
.shared .align 8 .b64 full;
mov.u32 %r0, %tid.x;
setp.eq.u32 %p0, %r0, 0;
setp.eq.u32 %p1, %r0, 32;
@%p0 mbarrier.init.shared.b64 [full], 1;
bar.sync 0;
@!%p0 bra others;
mbarrier.arrive.shared.b64 _, [full];
mov.u32 %r4, 0;
spin: add.u32 %r4, %r4, 1; setp.lt.u32 %p4, %r4, 20000; @%p4 bra spin;
mbarrier.arrive.shared.b64 _, [full];
bra end;
others: @!%p1 bra end;
a: mbarrier.try_wait.parity.shared.b64 %p3, [full], 0; @!%p3 bra a;
b: mbarrier.try_wait.parity.shared.b64 %p3, [full], 1; @!%p3 bra b;
end: ret;
}
"""
ONE_FILL = PTX.replace("bra spin;\nmbarrier.arrive.shared.b64 _, [full];", "bra spin;").replace(
    "b: mbarrier.try_wait.parity.shared.b64 %p3, [full], 1; @!%p3 bra b;\n", ""
)
LAUNCH = ("--grid", "1", "--block", "64", "f32[4]", "--explore", "all")


@pytest.fixture
def kernel(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        (tmp_path / "k.ptx").write_text(text, encoding="utf-8")
        return f"{tmp_path}/k.ptx:k"

    return write


def test_the_shortest_order_that_hangs_is_printed(gdnbench: Invoke, kernel: Callable[[str], str]) -> None:
    """Its events: the init, two arrivals at bar.sync, one that goes on, and both fills."""
    done = gdnbench("sim", kernel(PTX), *LAUNCH)
    assert done.code == 1
    assert "the shortest order that shows it has 6 of 9 events" in done.out
    waits = "    warp 1: mbarrier.try_wait.parity.shared.b64, PTX line 20"
    assert f"  then hang: these wait for ever\n{waits}\n" in done.out
    found = json.loads(gdnbench("sim", kernel(PTX), *LAUNCH, "--json").out)
    (part,) = found["orders"][""][0]["parts"]
    assert not found["ok"]
    assert part["verdict"] == "broken"
    assert [line.rsplit(" ", 1)[1] for line in part["wrong"]["order"]] == ["11", "12", "12", "12", "14", "17"]


def test_one_fill_is_proved(gdnbench: Invoke, kernel: Callable[[str], str]) -> None:
    done = gdnbench("sim", kernel(ONE_FILL), *LAUNCH)
    assert done.code == 0
    assert "all orders proved of CTA 0: up to 7 events" in done.out


def test_what_the_check_does_not_cover_is_said(gdnbench: Invoke, kernel: Callable[[str], str]) -> None:
    """Warp 0 exits before a barrier of all warps."""
    head = PTX[: PTX.index("setp.eq")]
    text = head + "setp.lt.u32 %p0, %r0, 32;\n@%p0 bra end;\nbar.sync 0;\nend: ret;\n}\n"
    done = gdnbench("sim", kernel(text), *LAUNCH)
    assert done.code == 3
    assert "not checked" in done.out


def test_options_of_one_run_are_refused(gdnbench: Invoke, kernel: Callable[[str], str]) -> None:
    assert gdnbench("sim", kernel(PTX), *LAUNCH, "--check").code == 2
    assert gdnbench("sim", kernel(PTX), "f32[4]", "--explore", "none").code == 2


COPIED = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out)
{
.reg .pred %p<8>; .reg .b32 %r<16>; .reg .b64 %d<8>;
.shared .align 128 .b8 data[256]; .shared .align 8 .b64 full;
ld.param.u64 %d0, [out];
mov.u32 %r0, %tid.x;
setp.eq.u32 %p0, %r0, 0;
setp.eq.u32 %p1, %r0, 32;
@%p0 mbarrier.init.shared.b64 [full], 1;
@%p0 fence.mbarrier_init.release.cluster;
bar.sync 0;
@!%p0 bra others;
mbarrier.arrive.expect_tx.shared.b64 _, [full], 256;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [data], [%d0], 256, [full];
bra end;
others: @!%p1 bra end;
poll: POLL
ld.shared.b32 %r5, [data];
st.global.b32 [%d0+1024], %r5;
end: bar.sync 0; ret;
}
"""
TRY = "mbarrier.try_wait.parity.shared.b64 %p3, [full], 0;"


@pytest.mark.parametrize(
    ("poll", "code", "assumed"),
    [
        (f"{TRY} @!%p3 bra poll;", 0, ""),
        (TRY, 1, "the poll at PTX line 20 orders nothing: both answers go on alike"),
        (TRY.replace("try", "test"), 1, "the poll at PTX line 20 orders nothing: both answers go on alike"),
        (
            f"{TRY} @!%p3 bra end;",
            0,
            "the poll at PTX line 20, which no loop repeats, answers true as in the run",
        ),
    ],
)
def test_a_poll_that_nothing_repeats(
    gdnbench: Invoke, kernel: Callable[[str], str], poll: str, code: int, assumed: str
) -> None:
    """It may answer false at once (PTX ISA, "mbarrier.test_wait, mbarrier.try_wait"): then the load races."""
    name, launch = kernel(COPIED.replace("POLL", poll)), ("--grid", "1", "--block", "64", "f32[512]")
    done = gdnbench("sim", name, *launch, "--check")
    assert done.code == code
    assert ("operation in flight" in done.out) == bool(code)
    lines = gdnbench("sim", name, *launch, "--explore", "all").out.splitlines()
    assert [line for line in lines if "assumed" in line] == [f"  assumed: {assumed}"] * bool(assumed)


def test_branches_on_what_an_atomic_returns_are_assumed(
    gdnbench: Invoke, kernel: Callable[[str], str]
) -> None:
    """Here by way of shared memory; and the summary says what the proof is about."""
    head = COPIED[: COPIED.index("@!%p0 bra")].replace("POLL", "")
    counts = "@%p0 atom.global.add.u32 %r1, [%d0], 1;\n@%p0 st.shared.b32 [data], %r1;\nbar.sync 0;\n"
    branch = "ld.shared.b32 %r2, [data];\nsetp.ne.u32 %p2, %r2, 0;\n@%p2 bra end;\n"
    texts = [f"{head}{counts}{more}end: ret;\n}}\n" for more in (branch, "")]
    branching, other = (
        gdnbench("sim", kernel(text), "--grid", "1", "--block", "64", "u32[512]", "--explore", "all")
        for text in texts
    )
    line = "  assumed: branches on what atomics return go as in the run: PTX line 15"
    assert line in branching.out.splitlines()
    assert "assumed" not in other.out
    assert "data races are found by --check" in other.out


def test_a_fault_of_the_run_has_its_lines(gdnbench: Invoke, kernel: Callable[[str], str]) -> None:
    never = ONE_FILL.replace("[full], 1;", "[full], 3;")
    done = gdnbench("sim", kernel(never), *LAUNCH)
    assert done.code == 1
    assert "\\n" not in done.out
    assert "\n  warp 1" in done.out


@pytest.mark.parametrize(
    "given", [("--k", "2"), ("--tol", "1e-3"), ("--bitwise",), ("--stages",), ("--shapes", "0")]
)
def test_options_of_judging_are_refused(gdnbench: Invoke, given: tuple[str, ...]) -> None:
    done = gdnbench("explore", "none.zarr", "--kernel", "cute", "--schedules", "all", *given)
    assert done.code == 2
    assert given[0] in done.err
    assert "none.zarr" not in done.err


def test_scripts_refuse_a_name_that_nothing_has(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert zoo.main(["--list", "nosuch", "flash*"]) == 2
    monkeypatch.setattr("sys.argv", ["prove_orders.py", "--list", "decode", "nosuch"])
    assert prove_orders.main() == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.startswith("error: no ") and "nosuch" in line for line in err.splitlines()] == [True, True]
