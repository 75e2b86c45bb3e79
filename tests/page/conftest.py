# SPDX-License-Identifier: Apache-2.0
"""Runs that look like what replays leave, made by NumPy, and the page of each in headless Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gdnbench.page.build import render_page
from gdnbench.report.runs import Run
from tests.page import synthetic
from tests.page.chromium import Chromium, find

HOSTILE = (
    "</script><script>window.hit=1</script><img src=x onerror=window.hit=1>\u202eab\0'\"&amp;`${window.hit=1}"
)


@pytest.fixture(scope="session")
def hostile() -> str:
    """A name that would act in a page which took it for markup, for script, or for the end of either."""
    return HOSTILE


@pytest.fixture(scope="session")
def made() -> Any:
    """The module that makes runs."""
    return synthetic


@pytest.fixture(scope="session")
def browser() -> Iterator[Chromium]:
    executable = find()
    if executable is None:
        pytest.skip("no Chromium: Debian's package chromium, or one that GDNBENCH_CHROMIUM names")
    with Chromium.start(executable) as started:
        yield started


@pytest.fixture
def opened(browser: Chromium, tmp_path: Path) -> Callable[[Sequence[Run]], Chromium]:
    """Opens the page of runs, wide and on a screen, and waits until all of it is there."""

    def open_page(runs: Sequence[Run]) -> Chromium:
        file = tmp_path / "report.html"
        file.write_text(render_page(runs), encoding="utf-8")
        browser.media()
        browser.view(1280, 900)
        browser.open(file)
        browser.until("document.documentElement.dataset.ready")
        return browser

    return open_page


@pytest.fixture(scope="session")
def wrong() -> tuple[dict[str, Any], Any, Any]:
    """A failing record of two sequences, 200 and 70 tokens, four heads; and its x and y [T, Hv, V]."""
    x, y, torchs = synthetic.drawn(7, (200, 70), 4, 8)
    x[231, 2, 5] += 0.25
    x[10, 0, 1] -= 0.1
    return synthetic.record(3, [synthetic.tensor(x, y, torchs, (200, 70))]), x, y


@pytest.fixture(scope="session")
def right() -> dict[str, Any]:
    x, y, torchs = synthetic.drawn(8, (200, 70), 4, 8)
    return dict(synthetic.record(0, [synthetic.tensor(x, y, torchs, (200, 70))]))


def access(line: int, does: str) -> dict[str, Any]:
    place = {
        "line": line,
        "text": f"ld.shared.b32 %r{line}, [%r1];",
        "file": "kernel.py",
        "file_line": line + 1000,
    }
    return {"does": does, "asynchronous": False, "cta": [0, 1, 0], "warp": 4, "role": "mma", "place": place}


@pytest.fixture(scope="session")
def full(wrong: tuple[dict[str, Any], Any, Any]) -> dict[str, Any]:
    """A record with every part that a record may have."""
    evidence = {
        "verdict": "error",
        "cause": "proxy",
        "kernel": "k",
        "missing": "fence.proxy.async",
        "section": None,
        "memory": "shared",
        "address": 64,
        "size": 16,
        "where": "shared memory at 0x40",
        "count": 12,
        "places": 2,
        "ctas": 3,
        "warps": [[4, 5]],
        "first": access(21, "writes"),
        "second": access(35, "reads"),
    }
    finding = {
        "severity": "error",
        "kind": "race",
        "message": "shared memory at 0x40, without fence.proxy.async",
        "launch": 0,
        "thread": None,
        "count": 12,
        "ptx_line": 35,
        "ptx": "ld",
        "file": "kernel.py",
        "line": 1035,
        "evidence": evidence,
        "accepted": None,
        "of": None,
    }
    samples = [[1e-5 * (1 + 0.01 * ((7 * i + k) % 11)) * (1 + k / 10) for i in range(48)] for k in range(2)]
    kernels = [
        {
            "name": name,
            "outcome": "pass",
            "reason": "",
            "samples": times,
            "summary": {
                "count": len(times),
                "median": sorted(times)[24],
                "lower": sorted(times)[12],
                "upper": sorted(times)[36],
            },
            "launches": 10,
            "rates": None,
            "programs": {},
        }
        for name, times in zip(("mine", "torch"), samples, strict=True)
    ]
    interval = {"ratio": 1.1, "low": 1.08, "high": 1.12, "confidence": 0.99, "groups": 6, "by": "placement"}
    pair = {
        "first": "mine",
        "other": "torch",
        "interval": interval,
        "verdict": "slower",
        "margin": 0.001,
        "within": 0.1,
    }
    return {
        **wrong[0],
        "number": 9,
        "key": "1700000000000-17-abcd/9",
        "decode": True,
        "printed": "tokens 64\nstate in [V, K]\n",
        "error": {
            "text": "ValueError: odd",
            "traceback": "mine.py:6 in check\n    return x @ y\nValueError: odd",
        },
        "findings": [
            {**finding, "severity": "note", "evidence": None, "message": "legal,\nand odd"},
            finding,
        ],
        "timing": {
            "format": 1,
            "kernels": kernels,
            "pairs": [pair],
            "repeat": None,
            "clock": "cupti",
            "time": "2026-03-01T12:00:00Z",
            "machine": {"device": "NVIDIA B200", "host": "gpu-7"},
            "notes": ["cold cache"],
        },
        "waterfall": [
            {
                "stage": "A",
                "step": "kkt",
                "count": 9,
                "error": 2e-3,
                "added": 2e-3,
                "inherited": 0.0,
                "reference": 1.0,
            },
            {
                "stage": "Ai",
                "step": "inverse",
                "count": 9,
                "error": 5e-2,
                "added": 4e-2,
                "inherited": 1e-3,
                "reference": 2.0,
            },
            {
                "stage": "U",
                "step": "wu",
                "count": 9,
                "error": "nan",
                "added": "nan",
                "inherited": 2e-2,
                "reference": 1.0,
            },
        ],
    }


@pytest.fixture(scope="session")
def steps() -> list[dict[str, Any]]:
    """Decode steps of six layers, an error that doubles with every step in the last layer."""
    found = []
    for number in range(6 * 12):
        layer, step = number % 6, number // 6
        x, y, torchs = synthetic.drawn(number, (1,), 4, 8)
        if layer == 5:
            x = y + (x - y) * 2.0**step
        found.append(
            synthetic.record(
                number + 100,
                [synthetic.tensor(x, y, torchs, (1,))],
                op="gdn_decode",
                layer=f"model.layers.{layer}",
                layer_index=layer,
                step=step,
                decode=True,
            )
        )
    return found
