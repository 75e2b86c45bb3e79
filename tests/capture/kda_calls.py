# SPDX-License-Identifier: Apache-2.0
"""What tests of the adapters of Kimi Delta Attention share: inputs, and the replay of what they recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gdnbench.capture import capturing
from gdnbench.errors import Exit
from gdnbench.ops import operation
from gdnbench.replay.replay import replay
from gdnbench.store.reader import Store, StoredRecord
from gdnbench_kernels.contract import Call

H, HV, D, SLOTS = 2, 4, 16, 9
LOWER_BOUND = -5.0


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def ints(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def pool(dtype: torch.dtype = torch.float32) -> Tensor:
    """[slots, Hv, V, K], its slots further apart than they are long: convolution states lie between them."""
    return random(SLOTS, HV * D * D + 24).to(dtype)[:, 24:].unflatten(1, (HV, D, D))


def rows(*leading: int, heads: int = H) -> dict[str, Tensor]:
    """q, k, v, not normalised."""
    return {
        "q": random(*leading, heads, D, seed=1).bfloat16(),
        "k": random(*leading, heads, D, seed=2).bfloat16(),
        "v": random(*leading, HV, D).bfloat16(),
    }


def raw_gates(*leading: int) -> tuple[Tensor, Tensor]:
    """x [..., Hv, K], far apart, so that some gates close at once, and logits of beta."""
    return 4 * random(*leading, HV, D, seed=3).bfloat16(), random(*leading, HV, seed=5).bfloat16()


def gates(*leading: int) -> tuple[Tensor, Tensor]:
    """Log decays in fp32, and step sizes."""
    x, b = raw_gates(*leading)
    return -torch.nn.functional.softplus(x.float()), b.float().sigmoid()


def parameters() -> tuple[Tensor, Tensor]:
    """A_log [1, 1, Hv, 1] and dt_bias [Hv K], as layers keep them."""
    return random(1, 1, HV, 1), random(HV * D, seed=4)


def recorded(path: Path, call: Callable[[], Any]) -> tuple[Any, StoredRecord]:
    """What the call returned, and its record, the only one."""
    with capturing(path) as counts:
        result = call()
    assert (counts.failures, counts.first_failure, counts.passed_over) == (0, None, {})
    (record,) = Store.open(path).records
    return result, record


def assert_replays(path: Path) -> None:
    """The record is a valid call, and the oracle gets what the function returned from what is recorded,
    within torch's bound."""
    for record in Store.open(path).records:
        before = {one: handle.read() for one, handle in record.before.items()}
        if not record.info.pools:
            operation(record.info.op).validate(Call(before, record.info.scalars, record.info.conventions))
    for kernel in ("reference", "torch"):
        report = replay(Store.open(path), kernel=kernel, against="recorded", isolate=False)
        assert report.exit_code is Exit.PASS, [(kernel, r.reason) for r in report.records]


def read(record: StoredRecord, *names: str) -> list[Any]:
    return [record.before[name].read().tolist() for name in names]


def states(record: StoredRecord) -> dict[int, Tensor]:
    """By slot in the caller's pool, after the call."""
    return dict(zip(record.info.pools["state"].rows, record.after["state"].read(), strict=True))


def assert_parameters(record: StoredRecord, A_log: Tensor, dt_bias: Tensor) -> None:
    assert torch.equal(record.before["A_log"].read(), A_log.flatten())
    assert torch.equal(record.before["dt_bias"].read(), dt_bias.view(HV, D))
