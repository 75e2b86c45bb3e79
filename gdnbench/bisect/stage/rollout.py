# SPDX-License-Identifier: Apache-2.0
"""The calls that a record's states come from, each on what the one before it left, with some stages exact in
each: whether a stage that adds little to one call is what many of them add up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gdnbench.bisect.cache_key import open_unchanged
from gdnbench.bisect.record.drift import Over, first_over
from gdnbench.bisect.record.links import Links, links_of
from gdnbench.bisect.record.rollout import Carried, RecordKernel, advance, failure
from gdnbench.bisect.stage.chain import chain, chain_of
from gdnbench.bisect.verdict import CONTENT, State, Verdict
from gdnbench.errors import EXPECTED_ERRORS
from gdnbench.judge.record import compared_tensors
from gdnbench.judge.stages import STAGED_ORACLE
from gdnbench.replay.call import conversion
from gdnbench.replay.execute import device_of
from gdnbench.replay.run import kernel_errors
from gdnbench.replay.simulated import simulated
from gdnbench.report.outcome import Outcome
from gdnbench.store.recover import open_store
from gdnbench_kernels.contract import Call, Operation


@dataclass(frozen=True, slots=True)
class _Grafted(RecordKernel):
    """A kernel's steps, with the stages `exact` as the oracle makes them of the same call, in the dtypes that
    the kernel keeps them in."""

    exact: Mapping[str, str]

    def _once(self, op: Operation, call: Call) -> dict[str, Tensor]:
        kernel, device = self.loaded(op), device_of(self.on)
        moved = Call(
            {name: tensor.to(device) for name, tensor in call.tensors.items()}, call.scalars, call.conventions
        )
        given = op.convert(moved, conversion(moved, op, kernel).target)
        true = chain_of(STAGED_ORACLE, op, op.stage_call(given), {}, self.exact)
        put = {name: true[name].to(getattr(torch, dtype)) for name, dtype in self.exact.items()}
        outputs = compared_tensors(op, given)
        with simulated(self.on):
            made = chain(kernel, op, given, put, outputs)
        found = {name: made[name] for name in outputs if name in made}
        found = op.convert_outputs(found, given.conventions, call.conventions)
        return {name: tensor.detach().cpu() for name, tensor in found.items()}


def calls_before(store: str, record: int) -> tuple[list[int], Links]:
    """The calls that a record's states come from, in order, and how they hang together."""
    with open_store(store) as opened:
        records = sorted(opened.records, key=lambda one: (one.info.call, one.number))
        links = links_of(records)
        before = set(links.ancestors(record))
        return [one.number for one in records if one.number in before], links


def carried(
    *,
    store: str,
    kernel: str,
    on: str,
    calls: Sequence[int],
    links: Mapping[str, Any],
    content: str,
    k: float | None,
    tol: tuple[float, float] | None,
    schedules: Sequence[str],
    exact: Mapping[str, str],
) -> Verdict:
    """Runs `calls`, with the stages of which `exact` has dtypes exact in each. Bad where a state is over what
    states that are carried are held to. StoreError if the calls are not those of digest `content`."""
    runs = _Grafted(kernel, on, schedules, exact) if exact else RecordKernel(kernel, on, schedules)
    entries: list[dict[str, Any]] = []
    states: Carried = {}
    with open_unchanged(store, lambda _: calls, content) as (opened, _, _):
        linked = Links.from_json(links)
        for number in calls:
            try:
                entries += advance(opened.records[number], linked, states, runs, tol)
            except EXPECTED_ERRORS:
                raise
            except kernel_errors() as error:
                return failure(error, f"record {opened.records[number].key}")
    read = {CONTENT: content}
    over: Over | None = first_over(entries, k, tol is not None, calls)
    if over is None:
        return Verdict(State.GOOD, str(Outcome.PASS), facts=read)
    return Verdict(State.BAD, str(Outcome.MISMATCH), str(over), facts={"number": over.number, **read})
