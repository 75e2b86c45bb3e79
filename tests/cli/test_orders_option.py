# SPDX-License-Identifier: Apache-2.0
"""`gdnbench sim --explore all`: verdicts, exit statuses and what is printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
