# SPDX-License-Identifier: Apache-2.0
"""Ranges of calls, against NumPy over every element and pair of keys."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from gdnbench_kernels.contract import Call, Operation
from gdnbench_kernels.gdn_decode.contract import OPERATION as DECODE
from gdnbench_kernels.gdn_prefill.contract import OPERATION as PREFILL
from gdnbench_kernels.gdn_ranges import KeyCosines
from gdnbench_kernels.kda_decode.contract import OPERATION as KDA_DECODE
from gdnbench_kernels.kda_prefill.contract import OPERATION as KDA_PREFILL
from gdnbench_kernels.swa_decode.contract import OPERATION as SWA
from gdnbench_kernels.swa_decode.layouts import unpack


def ranges(operation: Operation, call: Call) -> dict[str, dict[str, float]]:
    assert operation.ranges is not None
    return {one.name: dict(one.values) for one in operation.ranges(call)}


def cosines_by_hand(k: np.ndarray, bounds: list[int], chunk: int) -> np.ndarray:
    found = []
    for start, stop in itertools.pairwise(bounds):
        for first in range(start, stop, chunk):
            for i, j in itertools.combinations(range(first, min(first + chunk, stop)), 2):
                for head in range(k.shape[1]):
                    a, b = k[i, head], k[j, head]
                    found.append(a @ b / np.sqrt((a @ a) * (b @ b)))
    return np.array(found)


def test_of_a_prefill() -> None:
    call = PREFILL.synth(seqlens=(70, 0, 3), heads=(2, 4), head_dim=(16, 8), initial_state=True)
    found = ranges(PREFILL, call)
    g, beta, k = (call.tensors[name].double().numpy() for name in ("g", "beta", "k"))
    assert found["g"] == {"min": g.min(), "max": g.max()}
    assert found["beta"] == {"min": beta.min(), "max": beta.max()}
    chunks = [g[:64], g[64:70], g[70:]]
    assert found["g_chunk"]["min"] == pytest.approx(min(part.sum(0).min() for part in chunks), rel=1e-12)
    cosines = cosines_by_hand(k, [0, 70, 70, 73], 64)
    assert found["key_cosine"]["mean"] == pytest.approx(cosines.mean(), abs=1e-12)
    assert found["key_cosine"]["max"] == pytest.approx(cosines.max(), abs=1e-12)
    # By the documented 2^-13: at least 99 % are at most the quantile, and not all of them below it.
    above = found["key_cosine"]["99 %"]
    exact = np.sort(cosines)[int(np.ceil(0.99 * cosines.size)) - 1]
    assert exact <= above <= exact + 2**-13
    states = call.tensors["initial_state"].double().numpy()
    assert found["initial_state"]["rms"] == pytest.approx(np.sqrt((states**2).mean()), rel=1e-12)
    assert found["initial_state"]["max abs"] == np.abs(states).max()


def test_gates_are_in_log_space_whatever_the_convention() -> None:
    call = PREFILL.synth(seqlens=(5,), heads=(1, 1), head_dim=(16, 8))
    linear = PREFILL.convert(call, {**call.conventions, "gate": "linear"})
    assert ranges(PREFILL, linear)["g"]["min"] == pytest.approx(ranges(PREFILL, call)["g"]["min"], rel=1e-5)


def test_of_a_prefill_with_gates_by_channel() -> None:
    """In chunks of 16, of each channel, and from what the call holds instead of gates and step sizes."""
    call = KDA_PREFILL.synth(
        seqlens=(20, 0, 3), heads=(1, 2), head_dim=(16, 8), gate="raw", beta_form="logit"
    )
    found = ranges(KDA_PREFILL, call)
    x, b, rate, bias = (call.tensors[name].double().numpy() for name in ("g", "beta", "A_log", "dt_bias"))
    g = -np.exp(rate)[:, None] * np.log1p(np.exp(x + bias))
    beta = 1 / (1 + np.exp(-b))
    sums = [part.sum(0).min() for part in (g[:16], g[16:20], g[20:])]
    wanted = {"g": g, "beta": beta}
    for name, values in wanted.items():
        assert found[name]["min"] == pytest.approx(values.min(), rel=1e-12)
        assert found[name]["max"] == pytest.approx(values.max(), rel=1e-12)
    assert found["g_chunk"]["min"] == pytest.approx(min(sums), rel=1e-12)
    cosines = cosines_by_hand(call.tensors["k"].double().numpy(), [0, 20, 20, 23], 16)
    assert found["key_cosine"]["mean"] == pytest.approx(cosines.mean(), abs=1e-12)


def test_of_a_call_without_tokens_nothing_is_said_of_them() -> None:
    call = PREFILL.synth(seqlens=(0,), heads=(1, 1), head_dim=(16, 8))
    assert ranges(PREFILL, call) == {}


def test_of_a_decode_only_what_runs_counts() -> None:
    call = DECODE.synth(batch=4, heads=(1, 2), head_dim=(16, 8))
    indices = call.tensors["state_indices"].clone()
    indices[1] = -1
    g, state = call.tensors["g"].clone(), call.tensors["state"].clone()
    g[1] = -1000.0  # of a sequence that is padding
    call = Call({**call.tensors, "g": g, "state_indices": indices}, call.scalars, call.conventions)
    found = ranges(DECODE, call)
    active = [0, 2, 3]
    assert found["g"] == {"min": float(g[active].min()), "max": float(g[active].max())}
    read = state[indices.reshape(4, -1)[active, 0].long()].double().numpy()
    assert found["state"]["rms"] == pytest.approx(np.sqrt((read**2).mean()), rel=1e-12)
    assert "key_cosine" not in found  # one token a sequence: no pair of keys
    assert "g_chunk" not in found


def test_raw_gates_are_those_that_the_update_gets() -> None:
    call = DECODE.synth(batch=2, heads=(1, 2), head_dim=(16, 8), gate="raw")
    found = ranges(DECODE, call)
    a, b, scale, bias = (call.tensors[name].double().numpy() for name in ("g", "beta", "A_log", "dt_bias"))
    g = -np.exp(scale) * np.log1p(np.exp(a + bias))
    assert found["g"]["min"] == pytest.approx(g.min(), rel=1e-9)
    assert found["beta"]["max"] == pytest.approx((1 / (1 + np.exp(-b))).max(), rel=1e-9)


def test_bounded_gates_of_drafts_are_those_of_each_channel() -> None:
    call = KDA_DECODE.synth(
        batch=2, steps=3, heads=(1, 2), head_dim=(16, 8), gate="bounded", beta_form="logit"
    )
    found = ranges(KDA_DECODE, call)
    x, b, scale, bias = (call.tensors[name].double().numpy() for name in ("g", "beta", "A_log", "dt_bias"))
    g = -5 / (1 + np.exp(-np.exp(scale)[:, None] * (x + bias)))
    assert found["g"]["min"] == pytest.approx(g.min(), rel=1e-9)
    assert found["g"]["max"] == pytest.approx(g.max(), rel=1e-9)
    assert found["g_chunk"]["min"] == pytest.approx(g.sum(1).min(), rel=1e-9)
    assert found["beta"]["max"] == pytest.approx((1 / (1 + np.exp(-b))).max(), rel=1e-9)


@pytest.mark.parametrize("layout", ["per_token_scale", "fp8_ds_mla", "bfloat16"])
def test_of_a_window(layout: str) -> None:
    call = SWA.synth(cache_layout=layout, sink=0.5, holes=0.1)
    assert SWA.ranges is not None
    windows, scores, span, sinks, *scales = SWA.ranges(call)
    inv_scale = call.tensors.get("inv_scale")
    rows = unpack(call.tensors["cache"], inv_scale, layout, torch.float64).flatten(0, 1).numpy()
    q, lens = call.tensors["q"].double().numpy(), call.tensors["swa_lens"].numpy()
    indices = call.tensors["swa_indices"].reshape(len(lens), -1).numpy()
    attended = [row[: lens[t]][row[: lens[t]] >= 0] for t, row in enumerate(indices)]
    assert windows.values == {"min": min(map(len, attended)), "max": max(map(len, attended))}
    by_request = [q[t] @ rows[slots].T * 512**-0.5 for t, slots in enumerate(attended) if len(slots)]
    assert scores.values["min"] == pytest.approx(min(one.min() for one in by_request), rel=1e-9)
    assert scores.values["max"] == pytest.approx(max(one.max() for one in by_request), rel=1e-9)
    widest = max((one.max(1) - one.min(1)).max() for one in by_request)
    assert span.values["max"] == pytest.approx(widest, rel=1e-9)
    assert sinks.values["max"] == float(call.tensors["attn_sink"].max())
    slots = np.concatenate(attended)
    if inv_scale is not None:
        assert scales[0].values["max"] == float(inv_scale[slots].float().max())
        assert scales[0].unit == ""
    elif layout == "fp8_ds_mla":
        assert scales[0].unit == "2^"
        # A group's scale is the least power of two by which its largest value fits e4m3, at most 448; the
        # values here are rounded already, which may take the largest one power down.
        groups = np.abs(rows[slots][:, :448]).reshape(-1, 64).max(1)
        exponents = np.ceil(np.log2(groups / 448))
        assert abs(scales[0].values["max"] - exponents.max()) <= 1
    else:
        assert scales == []


def test_equal_keys_have_a_cosine_of_one() -> None:
    keys = KeyCosines()
    keys.add(torch.full((3, 1, 16), 0.3), [0, 3])
    assert keys.count == 3
    assert keys.mean == pytest.approx(1.0, abs=1e-12)
    assert keys.quantile(0.99) == keys.largest == pytest.approx(1.0, abs=1e-12)


def test_keys_that_are_not_finite_are_left_out() -> None:
    k = torch.ones(3, 1, 16)
    k[1] = torch.nan
    keys = KeyCosines()
    keys.add(k, [0, 3])
    assert keys.count == 1


def test_a_nan_is_told() -> None:
    call = PREFILL.synth(seqlens=(5,), heads=(1, 1), head_dim=(16, 8), initial_state=True)
    states, g = call.tensors["initial_state"].clone(), call.tensors["g"].clone()
    states[0, 0, 3], g[2] = torch.nan, torch.nan
    found = ranges(
        PREFILL, Call({**call.tensors, "initial_state": states, "g": g}, call.scalars, call.conventions)
    )
    assert all(np.isnan(value) for value in (*found["initial_state"].values(), *found["g"].values()))
