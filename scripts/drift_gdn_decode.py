#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""How the error of a gdn_decode kernel grows over 256 tokens of a trained model, going on from its own state.

    python scripts/drift_gdn_decode.py                        simulated; 256 launches a line
    python scripts/drift_gdn_decode.py --on cuda
    python scripts/drift_gdn_decode.py --kernel torch --on cpu --per-call 1,4 --json FILE

The tokens are the first of a prompt of prefill.zarr.zip, which a trained model's layer was given; they are
decoded from a state of zeros, `--per-call` of them a call, and the fp64 oracle carries a state of its own
beside it. The model rounded beta to bf16. A served kernel gets b and keeps beta in fp32, and so it does here:
b and a are what give the recorded beta and g, rounded to bf16, and gates are raw. `--slow N` divides the log
gates by N: as recorded the model forgets within a few tokens, and errors with what they are in.

It passes where the error is at most twice torch's, plus rounding, in every 16 tokens, of all heads and of
each, and does not grow faster (gdnbench_kernels.gdn_decode.drift). Exit status: 0 all pass, 1 one does not, 2
bad arguments, 3 cannot run here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gdnbench.cli.console import table
from gdnbench.errors import BAD_INPUT_ERRORS, CANNOT_RUN_ERRORS, BadInputError, CannotRunError, Exit
from gdnbench.ops import operation
from gdnbench.replay.call import call_kernel, conversion
from gdnbench.replay.execute import device_of
from gdnbench.replay.kernels import LoadedKernel, load
from gdnbench.replay.simulated import simulated
from gdnbench.store.recover import open_store
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_decode.drift import (
    Curve,
    Tokens,
    error_curve,
    faults,
    growth_exponent,
    rms_by_stretch,
    rollout_states,
)

CAPTURE = Path(__file__).parents[1] / "captures" / "prefill.zarr.zip"
RECORD = 4  # its longest prompt
BY_TOKEN = ("q", "k", "v", "g", "beta")
DECODE = operation("gdn_decode")
STATES = ("float32", "bfloat16")


def captured(count: int, slow: float, start: int = 0) -> Tokens:
    """`count` tokens of the captured prompt from `start`, with raw gates; log gates divided by `slow`."""
    with open_store(CAPTURE) as store:
        record = store.records[RECORD]
        found = {name: record.before[name].read() for name in BY_TOKEN}
        conventions, scalars = record.info.conventions, record.info.scalars
    there = len(found["v"])
    if not 0 < count <= there - start:
        raise BadInputError(f"--tokens {count}: the captured prompt has {there}")
    tokens = {name: tensor[start : start + count] for name, tensor in found.items()}
    raw, shared = raw_gates(tokens["g"].double() / slow, tokens["beta"].double())
    heads, values, keys = tokens["v"].shape[1], tokens["v"].shape[2], tokens["k"].shape[2]
    return Tokens(
        {**tokens, **raw},
        shared,
        torch.zeros(heads, values, keys),
        {name: scalars[name] for name in ("scale", "beta_max")},
        {"gate": "raw", "state_layout": "VK", "qk": conventions["qk"], "offsets": "any"},
    )


def raw_gates(g: Tensor, beta: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """a and b (bf16) as g and beta, and the A_log and dt_bias, that make about this g and beta [T, Hv]."""
    shared = {"A_log": torch.zeros(g.shape[1]), "dt_bias": torch.zeros(g.shape[1])}
    softplus = -g
    a = softplus + torch.log(-torch.expm1(-softplus))
    return {"g": a.to(torch.bfloat16), "beta": torch.logit(beta).to(torch.bfloat16)}, shared


def stepper(kernel: LoadedKernel, on: str) -> Any:
    """A `Step` of `kernel` on the device called `on`: converted to what it takes, and back."""

    def step(call: Call) -> Mapping[str, Tensor]:
        given = DECODE.convert(call, conversion(call, DECODE, kernel).target)
        with simulated(on):
            returned = call_kernel(given, DECODE, kernel)
        return DECODE.convert_outputs(returned, given.conventions, call.conventions)

    return step


def on_device(tokens: Tokens, device: torch.device) -> Tokens:
    by_token, shared = (
        {name: tensor.to(device) for name, tensor in given.items()}
        for given in (tokens.by_token, tokens.shared)
    )
    return Tokens(by_token, shared, tokens.state.to(device), tokens.scalars, tokens.conventions)


def curves(kernel: LoadedKernel, on: str, tokens: Tokens, per_call: int, dtype: torch.dtype) -> list[Curve]:
    """Of the kernel, and of torch's on the CPU."""
    oracle, plain = (stepper(load(name, DECODE), "cpu") for name in ("reference", "torch"))
    exact = list(rollout_states(oracle, tokens, per_call, torch.float64))
    there = on_device(tokens, device_of(on))
    return [
        error_curve(rollout_states(stepper(kernel, on), there, per_call, dtype), exact),
        error_curve(rollout_states(plain, tokens, per_call, dtype), exact),
    ]


def asked_states(text: str) -> list[str]:
    """Names of dtypes, which a pool may have."""
    names = text.split(",")
    for name in names:
        if name not in STATES:
            raise BadInputError(f"--states has {name!r}; there are {', '.join(STATES)}")
    return names


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    found.add_argument("--kernel", default="cute")
    found.add_argument("--on", default="sim")
    found.add_argument("--tokens", type=int, default=256)
    found.add_argument("--per-call", default="1", help="tokens a call, separated by commas")
    found.add_argument("--states", default="float32,bfloat16")
    found.add_argument("--slow", default="1,64")
    found.add_argument("--json", type=Path, help="the curves, token by token")
    return found


def main() -> Exit:
    options = parser().parse_args()
    rows, kept, failed = [], [], 0
    try:
        kernel = load(options.kernel, DECODE)
        if options.on not in kernel.devices:
            raise CannotRunError(
                f"kernel {kernel.name} runs on {' or '.join(kernel.devices)}, not on {options.on}"
            )
        for dtype in asked_states(options.states):
            for slow in map(float, options.slow.split(",")):
                for per_call in map(int, options.per_call.split(",")):
                    tokens = captured(options.tokens, slow)
                    pool: torch.dtype = getattr(torch, dtype)
                    mine, theirs = curves(kernel, options.on, tokens, per_call, pool)
                    wrong = faults(mine, theirs, torch.finfo(pool).eps / 2)
                    failed += bool(wrong)
                    kept.append(as_json(dtype, slow, per_call, mine, theirs, wrong))
                    rows.append(row(dtype, slow, per_call, mine, theirs, wrong))
                    print(" ".join(map(str, rows[-1])), file=sys.stderr, flush=True)
    except (*CANNOT_RUN_ERRORS, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.CANNOT_RUN
    except (*BAD_INPUT_ERRORS, ValueError, NotImplementedError) as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.BAD_INPUT
    heads = (
        "states",
        "slow",
        "per call",
        "verdict",
        "at 16",
        "torch's",
        "at the end",
        "torch's",
        "growth",
        "",
    )
    print(table(heads, rows, right=heads[1:3] + heads[4:9]))
    print(f"{options.tokens} tokens, {options.kernel} on {options.on}: {failed} of {len(rows)} failed")
    if options.json:
        options.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return Exit.MISMATCH if failed else Exit.PASS


def row(
    dtype: str, slow: float, per_call: int, mine: Curve, theirs: Curve, wrong: list[str]
) -> tuple[object, ...]:
    """Errors of the first 16 tokens and of the last, as root mean squares, and how their ratio grows."""
    a, b = rms_by_stretch(mine.whole), rms_by_stretch(theirs.whole)
    slope = f"t^{growth_exponent(a, b):.2f}" if len(a) > 1 else ""
    figures = (f"{a[0]:.3g}", f"{b[0]:.3g}", f"{a[-1]:.3g}", f"{b[-1]:.3g}", slope)
    return (dtype, f"{slow:g}", per_call, "FAIL" if wrong else "pass", *figures, *(wrong[:1] or [""]))


def as_json(
    dtype: str, slow: float, per_call: int, mine: Curve, theirs: Curve, wrong: list[str]
) -> dict[str, Any]:
    return {
        "states": dtype,
        "slow": slow,
        "per_call": per_call,
        "faults": wrong,
        "error": mine.whole.tolist(),
        "error_by_head": mine.by_head.tolist(),
        "torch_error": theirs.whole.tolist(),
        "torch_error_by_head": theirs.by_head.tolist(),
    }


if __name__ == "__main__":
    sys.exit(main())
