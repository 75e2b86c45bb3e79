"""Rollout error of decode: how the error grows over many tokens when a kernel continues from its own state.

A sequence of T tokens is decoded from a state, S tokens per call. Every token writes its own slot, and the
next call reads the last one. The fp64 oracle decodes the same tokens from its own unrounded state. The curve
is the relative error of the state after each token, over all heads and per head:

    e(t) = |S(t) - S64(t)| / |S64(t)|             Frobenius norms

A single call from a recorded state does not show such errors: small in one step, but repeated in each.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, Scalar

Step = Callable[[Call], Mapping[str, Tensor]]
"""Runs one call of gdn_decode in the call's conventions; returns o and state."""

FACTOR = 2.0
"""The allowed ratio of a kernel's error to torch's, as everywhere in this project: a kernel may round as
often as torch in another order, and use the hardware's exp and reciprocal root, which add about as much
again."""
GROWTH = 0.25
"""The allowed slope of log(kernel's error / torch's) over log t. Unbiased roundings accumulate like the root
of t, biased ones like t. So the slope is 0 if both accumulate alike, and 1/2 if only the kernel's roundings
are biased; the limit is halfway."""
STRETCH = 16
"""Tokens over which errors are averaged, as root mean square: exp contributes one error per token and head to
a state, and a single one says little."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A sequence as input of decode: the tensors of T tokens, and the state [Hv, V, K] before the first."""

    by_token: Mapping[str, Tensor]  # q, k, v, g, beta [T, ...]
    shared: Mapping[str, Tensor]  # A_log, dt_bias if the gate is raw
    state: Tensor  # its dtype is that of the pool
    scalars: Mapping[str, Scalar]
    conventions: Mapping[str, str]  # state_layout VK

    def __len__(self) -> int:
        return len(self.by_token["v"])


@dataclass(frozen=True, slots=True)
class Curve:
    """Relative errors of the state after each token."""

    whole: Tensor  # [T] fp64
    by_head: Tensor  # [T, Hv] fp64


def rollout_states(step: Step, tokens: Tokens, per_call: int, dtype: torch.dtype) -> Iterator[Tensor]:
    """Yield the state [Hv, V, K] after each token, from a pool of `dtype` that only `step` writes."""
    first = tokens.state.to(dtype)
    pool = torch.full((per_call, *first.shape), torch.nan, dtype=dtype, device=first.device)
    pool[-1] = first
    for start in range(0, len(tokens), per_call):
        count = min(per_call, len(tokens) - start)
        given = {name: tensor[start : start + count].unsqueeze(0) for name, tensor in tokens.by_token.items()}
        # read_indices names the last slot; num_accepted could not, if this call has fewer tokens.
        slots = torch.arange(per_call, dtype=torch.int32, device=first.device)
        given["state_indices"], given["read_indices"] = slots[:count].unsqueeze(0), slots[-1:]
        given |= {**tokens.shared, "state": pool.clone()}
        pool = step(Call(given, tokens.scalars, tokens.conventions))["state"]
        yield from (pool[token].clone() for token in range(count))


def error_curve(found: Iterator[Tensor], exact: Sequence[Tensor]) -> Curve:
    """The error of each of the states `found` against `exact`, one per token."""
    by_head, whole = [], []
    for state, true in zip(found, exact, strict=True):
        true = true.double().cpu()
        wrong, size = (x.flatten(1).norm(dim=1) for x in (state.double().cpu() - true, true))
        by_head.append(wrong / size)
        whole.append(wrong.norm() / size.norm())
    return Curve(torch.stack(whole), torch.stack(by_head))


def rms_by_stretch(errors: Tensor) -> Tensor:
    """The root mean square of errors [T] over each complete stretch of tokens, or over all if there are
    fewer."""
    size = min(STRETCH, len(errors))
    return errors[: len(errors) // size * size].view(-1, size).square().mean(1).sqrt()


def growth_exponent(kernel: Tensor, yardstick: Tensor) -> float:
    """The least-squares slope of log(kernel / yardstick) over log t, for errors of two or more stretches."""
    t = torch.arange(1, len(kernel) + 1, dtype=torch.float64).log()
    t -= t.mean()
    return float((t * (kernel / yardstick).log()).sum() / (t * t).sum())


def faults(kernel: Curve, yardstick: Curve, rounding: float) -> list[str]:
    """What makes the error of a kernel grow faster than torch's, the `yardstick`, a line each; none if it
    does not.

    `rounding` is half an ULP of the state's dtype, relative: a floor that every error is allowed.
    """
    found = []
    for head in (None, *range(kernel.by_head.shape[1])):
        name = "state" if head is None else f"state of head {head}"
        mine, theirs = (
            rms_by_stretch(one.whole if head is None else one.by_head[:, head]) for one in (kernel, yardstick)
        )
        over = ~(mine <= FACTOR * theirs + rounding)  # NaN is over
        if bool(over.any()):
            i = int(over.nonzero()[0])
            most = float(FACTOR * theirs[i] + rounding)
            found.append(
                f"{name}, tokens from {i * STRETCH}: error {float(mine[i]):.3g} over {most:.3g} ="
                f" {FACTOR:g} x torch's {float(theirs[i]):.3g} + rounding, in {int(over.sum())} of"
                f" {len(over)} stretches"
            )
        elif len(mine) > 1 and (slope := growth_exponent(mine, theirs)) > GROWTH:
            first, last = (float(mine[i] / theirs[i]) for i in (0, -1))
            found.append(
                f"{name}: error from {first:.2f} to {last:.2f} times torch's, like t^{slope:.2f}; at most"
                f" t^{GROWTH:g}"
            )
    return found
