# SPDX-License-Identifier: Apache-2.0
"""Plans of kda_decode's kernel: those of gdn_decode, with shared memory for a gate per channel."""

from __future__ import annotations

from gdnbench_kernels.gdn_decode import decode_plan
from gdnbench_kernels.gdn_decode.decode_plan import H200_SMS, DecodePlan
from gdnbench_kernels.gdn_decode.sizes import HEAD_DIM
from gdnbench_kernels.plan import WARP

GATE_ELEMENTS = HEAD_DIM // WARP
"""Channels whose gates a lane computes: a warp computes all of a token's."""
GATE_BYTES = 4 * HEAD_DIM
"""Bytes of a token's gates in a warp's shared memory: floats, in place of g."""
SMALL_CTAS = 20
"""The small plan is chosen up to this many CTAs per SM: 96 registers per thread allow 21."""


class ChannelPlan(DecodePlan):
    """A `DecodePlan` whose tokens have a gate per channel among their operands."""

    __slots__ = ()

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's operands in a warp's shared memory: rows of q and k, the warp's elements of v,
        then the gates."""
        return super().token_bytes + GATE_BYTES


def with_channels(plan: DecodePlan) -> ChannelPlan:
    """The plan for a gate per channel."""
    return ChannelPlan(**plan.options)  # type: ignore[arg-type]


def default_plans(state_dtype: str, tokens: int) -> tuple[ChannelPlan, ChannelPlan, ChannelPlan]:
    """The plans for few, medium and many states."""
    small, middle, large = map(with_channels, decode_plan.default_plans(state_dtype, tokens)[:3])
    return small, middle, large


def default_plan(
    batch: int, value_heads: int, state_dtype: str, tokens: int, multiprocessors: int
) -> ChannelPlan:
    """The default plan of a call: gdn_decode's choice, by the resident CTAs of `ChannelUpdate`. Plans in the
    order of slots have not been measured here."""
    found = decode_plan.default_plan(
        batch, value_heads, state_dtype, tokens, multiprocessors, small_ctas=SMALL_CTAS, by_slot=False
    )
    return with_channels(found)


def candidate_plans(batch: int, value_heads: int, state_dtype: str, tokens: int) -> tuple[ChannelPlan, ...]:
    """Plans worth measuring for such a call, starting with an H200's default."""
    first = default_plan(batch, value_heads, state_dtype, tokens, H200_SMS)
    swept = decode_plan.candidate_plans(batch, value_heads, state_dtype, tokens)
    plans = (with_channels(plan) for plan in swept if not plan.ranked)
    return tuple(dict.fromkeys((first, *plans)))
