# SPDX-License-Identifier: Apache-2.0
"""The recurrence written out row by row in numpy fp64, which judges the oracles, what judges stages, and the
script that proves kernels."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from gdnbench.cli.console import table
from gdnbench.errors import Exit
from gdnbench.judge.result import TensorResult
from gdnbench.judge.rule import Bound
from gdnbench.judge.stages import judge_stages
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_prefill.contract import OPERATION as PREFILL
from tests.kernels import proving

Array = NDArray[np.float64]


class Naive:
    """A call's tensors in fp64 numpy, with the conventions undone in the plainest way."""

    def __init__(self, call: Call, key_dim: int) -> None:
        self.call = call
        scale = call.scalars.get("scale")
        self.scale = key_dim**-0.5 if scale is None else float(scale)

    def array(self, name: str) -> Array:
        tensor: Tensor = self.call.tensors[name]
        return tensor.double().numpy()

    def alpha(self, at: tuple[int, ...]) -> float:
        g = float(self.call.tensors["g"][at])
        if self.call.conventions["gate"] == "raw":
            rate, bias = (float(self.call.tensors[name][at[-1]]) for name in ("A_log", "dt_bias"))
            return float(np.exp(-np.exp(rate) * np.log1p(np.exp(np.float64(g + bias)))))
        return g if self.call.conventions["gate"] == "linear" else float(np.exp(np.float64(g)))

    def beta(self, at: tuple[int, ...]) -> float:
        beta = float(self.call.tensors["beta"][at])
        if self.call.conventions["gate"] != "raw":
            return beta
        return float(self.call.scalars["beta_max"] or 1) / (1 + float(np.exp(np.float64(-beta))))

    def vector(self, name: str, at: tuple[int, ...]) -> Array:
        x = self.call.tensors[name][at].double().numpy()
        return x / np.sqrt((x * x).sum() + 1e-6) if self.call.conventions["qk"] == "raw" else x

    def step(self, state: Array, at: tuple[int, ...], head: int) -> Array:
        """One token of one value head: advances `state` [V, K] in place, returns its output [V]."""
        group = self.call.tensors["v"].shape[-2] // self.call.tensors["q"].shape[-2]
        q, k = self.vector("q", (*at, head // group)), self.vector("k", (*at, head // group))
        v = self.call.tensors["v"][(*at, head)].double().numpy()
        alpha, beta = self.alpha((*at, head)), self.beta((*at, head))
        out = np.empty(len(v))
        for row in range(len(v)):
            decayed = alpha * state[row]
            update = beta * (v[row] - sum(decayed[j] * k[j] for j in range(len(k))))
            state[row] = decayed + update * k
            out[row] = self.scale * sum(state[row, j] * q[j] for j in range(len(q)))
        return out


@pytest.fixture
def naive() -> Callable[[Call], Naive]:
    return lambda call: Naive(call, call.tensors["k"].shape[-1])


@pytest.fixture
def relative_error() -> Callable[[Tensor, Tensor], float]:
    """|x - y| / |y| in the Frobenius norm, in fp64; 0 for two empty or two zero tensors."""

    def measure(x: Tensor, y: Tensor) -> float:
        difference, norm = float((x.double() - y.double()).norm()), float(y.double().norm())
        return difference / norm if norm else difference

    return measure


@pytest.fixture(scope="session")
def stage_errors() -> Callable[[Call, Mapping[str, Tensor]], tuple[TensorResult, ...]]:
    """`stage_errors(call, {"U": ..., "o": ...})`: each tensor of a prefill by the rule of `replay --stages`.

    Error against the staged fp64 oracle by torch's, over rows that count, with the worst coordinate.
    """
    return lambda call, found: judge_stages(PREFILL, call, found, Bound())


@pytest.fixture(scope="session")
def assert_stages(
    stage_errors: Callable[[Call, Mapping[str, Tensor]], tuple[TensorResult, ...]],
) -> Callable[[Call, Mapping[str, Tensor]], None]:
    """`assert_stages(call, found)` fails with a table of all of `found` if one of them does not pass."""

    def hold(call: Call, found: Mapping[str, Tensor]) -> None:
        results = stage_errors(call, found)
        assert {result.tensor for result in results} == set(found)
        rows = [
            (
                result.tensor,
                *(
                    f"{errors.rms_ratio:.3g}" if errors else "-"
                    for errors in (result.errors, result.yardstick)
                ),
                "pass" if result.passed else "; ".join(result.reasons),
                result.worst or "",
            )
            for result in results
        ]
        shown = table(("stage", "RMS ratio", "torch's", "verdict", "worst"), rows)
        assert all(result.passed for result in results), f"\n{shown}"

    return hold


@pytest.fixture(scope="session")
def script() -> Callable[[str], ModuleType]:
    """A file of scripts/, imported."""

    def load(name: str) -> ModuleType:
        return importlib.import_module(f"scripts.{name}")

    return load


@pytest.fixture
def prove(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[Exit, str]]:
    """`prove("gdn_prefill", *arguments)`: the exit status of scripts/kernel_grid.py and its stdout. Kernels
    run in this process, users' own too: to start another takes longer than they do."""
    monkeypatch.setattr(proving, "replay", partial(proving.replay, isolate=False))

    def run(*arguments: str) -> tuple[Exit, str]:
        monkeypatch.setattr(sys, "argv", ["kernel_grid.py", *arguments])
        code = proving.main("")
        return code, capsys.readouterr().out

    return run
