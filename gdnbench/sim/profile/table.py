# SPDX-License-Identifier: Apache-2.0
"""A launch's profile as text: instructions by class, bytes by path, tensor-core work, waits by warp role."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from gdnbench.sim.profile.classes import counter_class
from gdnbench.sim.profile.recorder import LaunchRecord
from gdnbench.sim.profile.roles import role


def by_class(instructions: Mapping[str, int]) -> Counter[str]:
    """Counts of warp instructions by class, from counts by opcode."""
    classes: Counter[str] = Counter()
    for op, count in instructions.items():
        classes[counter_class(op)] += count
    return classes


def waits_by_role(record: LaunchRecord) -> dict[tuple[str, str], tuple[int, int, int]]:
    """(role, opcode of the wait) -> (warps of that role in a CTA, waits, steps waited), summed over all
    CTAs."""
    waits: Counter[tuple[str, str]] = Counter()
    steps: Counter[tuple[str, str]] = Counter()
    warps: dict[str, set[int]] = {}
    for cta in record.ctas.values():
        roles = {warp: role(cta.ops.get(warp, {})) for warp in cta.executed}
        for warp, name in roles.items():
            warps.setdefault(name, set()).add(warp)
        for (warp, op), count in cta.waits.items():
            waits[roles[warp], op] += count
            steps[roles[warp], op] += cta.waited[warp, op]
    return {key: (len(warps[key[0]]), waits[key], steps[key]) for key in waits}


def profile_table(
    instructions: Mapping[str, int], traffic: Mapping[str, int], mma_macs: int, record: LaunchRecord
) -> str:
    """The whole profile as text. Counts are sums over all CTAs, largest first."""
    return "\n".join(_lines(instructions, traffic, mma_macs, record))


def _lines(
    instructions: Mapping[str, int], traffic: Mapping[str, int], mma_macs: int, record: LaunchRecord
) -> Iterator[str]:
    total = sum(instructions.values())
    yield f"  {'warp instructions':<34}{'count':>16}  share"
    for name, count in by_class(instructions).most_common():
        yield f"    {name:<32}{count:>16,}  {count / total:6.1%}"
    if traffic:
        yield f"  {'bytes moved':<34}{'bytes':>16}"
        for name, count in sorted(traffic.items(), key=lambda item: (-item[1], item[0])):
            yield f"    {name:<32}{count:>16,}"
    if mma_macs:
        products = instructions.get("tcgen05.mma", 0) + instructions.get("mma", 0)
        products += instructions.get("wmma.mma", 0)
        products += instructions.get("wgmma.mma_async", 0) // 4  # four warps issue one
        yield f"  {'tensor core':<34}{'MACs':>16}"
        yield f"    {f'{products:,} products':<32}{mma_macs:>16,}"
    waits = waits_by_role(record)
    if waits:
        yield f"  {'waits by warp role':<34}{'waits':>16}  steps waited"
        for (name, op), (warps, count, steps) in sorted(waits.items(), key=lambda item: -item[1][2]):
            plural = "" if warps == 1 else "s"
            yield f"    {f'{name} ({warps} warp{plural})':<32}{count:>16,}  {steps:>12,}  {op}"
