# SPDX-License-Identifier: Apache-2.0
"""Wrong kernels of gdn_prefill: a wrong index, order, border or state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.power import spoiled_values as spoil
from tests.power.gdn_prefill_kernel import CLOSED, Chunks, Prefill
from tests.power.library import Shelf

shelf = Shelf("gdn_prefill", right=False)


# Heads


class ModuloHeads(Prefill):
    """Value head hv reads key head hv % H, not hv // (Hv // H)."""

    def key_heads(self, heads: int, value_heads: int) -> Tensor:
        return torch.arange(value_heads) % heads


class ShiftedHeads(Prefill):
    """Groups of value heads begin one head late."""

    def key_heads(self, heads: int, value_heads: int) -> Tensor:
        return (torch.arange(value_heads) + 1) // (value_heads // heads) % heads


class FirstKeyHead(Prefill):
    """All value heads read key head 0: the head index was not passed on."""

    def key_heads(self, heads: int, value_heads: int) -> Tensor:
        return torch.zeros(value_heads, dtype=torch.int64)


class ModuloQueries(Prefill):
    """k by hv // (Hv // H), q by hv % H."""

    def query_heads(self, keys: Tensor) -> Tensor:
        return torch.arange(len(keys)) % (int(keys.max()) + 1)


def by_key_head(x: Tensor, _: Chunks) -> Tensor:
    """The gate of the group's first head, as if there were one a key head."""
    return x[:, torch.arange(x.shape[1]) // 2 * 2]


shelf.add("heads", "value head hv reads key head hv % H", ModuloHeads())
shelf.add("heads", "groups of value heads begin one head late", ShiftedHeads())
shelf.add("heads", "all value heads read key head 0", FirstKeyHead())
shelf.add("heads", "q by hv % H", ModuloQueries())
shelf.add("heads", "outputs of heads 0 and 1 exchanged", Prefill(o=spoil.swapped_heads))
shelf.add("heads", "final states of heads 0 and 1 exchanged", Prefill(final=spoil.swapped_heads))
shelf.add("heads", "initial state of the next head", Prefill(S0=spoil.neighbouring_head))
shelf.add("heads", "gate of the next head", Prefill(g=spoil.neighbouring_head))
shelf.add("heads", "beta of the next head", Prefill(beta=spoil.neighbouring_head))
shelf.add("heads", "one gate for two heads", Prefill(g=by_key_head))
shelf.add("heads", "v of the next head in U", Prefill(v=spoil.neighbouring_head))


# Gates


def one_token_late(g_cu: Tensor, _: Chunks) -> Tensor:
    """An exclusive sum."""
    return torch.cat([torch.zeros_like(g_cu[..., :1]), g_cu[..., :-1]], -1)


def next_token(g: Tensor, _: Chunks) -> Tensor:
    return torch.cat([g[..., 1:], torch.zeros_like(g[..., :1])], -1)


def missing(x: Tensor, _: Chunks) -> Tensor:
    """No decay: a factor of 1."""
    return torch.ones_like(x)


def lower_ones(gamma: Tensor, _: Chunks) -> Tensor:
    return torch.ones_like(gamma).tril()


class DecayAtRow(Prefill):
    """The decay of a chunk is that of a fixed row, not of the last one."""

    def __init__(self, row: int) -> None:
        super().__init__()
        self.row = row

    def advance(self, state: Tensor, v_new: Tensor, k: Tensor, g_cu: Tensor, chunks: Chunks) -> Tensor:
        g_last = g_cu[..., self.row : self.row + 1]
        factor = self.exp((g_last - g_cu).clamp(max=0.0))
        scaled = self.store("V_scaled", v_new * factor.unsqueeze(-1), chunks)
        return state * self.exp(g_last).unsqueeze(-1) + self.product(scaled.mT, k)


class NoBetaInW(Prefill):
    """W from keys that beta does not scale."""

    def form_uw(
        self, k: Tensor, v: Tensor, g_cu: Tensor, beta: Tensor, ai: Tensor, chunks: Chunks
    ) -> tuple[Tensor, Tensor]:
        u, _ = super().form_uw(k, v, g_cu, beta, ai, chunks)
        _, w = super().form_uw(k, v, g_cu, torch.ones_like(beta), ai, chunks)
        return u, w


class SumsRunOn(Prefill):
    """Sums of gates do not begin anew with a chunk."""

    def load_gates(self, g: Tensor, chunks: Chunks) -> Tensor:
        rows = super().load_gates(g, chunks)
        before = torch.zeros_like(rows[..., 0])
        for c in range(1, len(rows)):
            if int(chunks.index[c]):
                before[c] = before[c - 1] + rows[c - 1].sum(-1)
        rows[..., 0] += before
        return rows


class ClampedGates(Prefill):
    """Gates below a limit are that limit."""

    def __init__(self, low: float) -> None:
        super().__init__(g=lambda g, _: g.clamp(min=low))


class ClampedSums(Prefill):
    """A chunk's sums of gates below a limit are that limit."""

    def __init__(self, low: float) -> None:
        super().__init__(g_cu=lambda g_cu, _: g_cu.clamp(min=low))


shelf.add("gates", "sum without the token's own gate", Prefill(g_cu=one_token_late))
shelf.add("gates", "gate of the next token", Prefill(g=next_token))
shelf.add("gates", "no gate in A", Prefill(Gamma_A=lower_ones))
shelf.add("gates", "no gate in P", Prefill(Gamma_P=lower_ones))
shelf.add("gates", "no gate within a chunk", Prefill(Gamma=lower_ones))
shelf.add("gates", "state not decayed between chunks", Prefill(exp_last=missing))
shelf.add("gates", "state not decayed for the outputs", Prefill(exp_Q=missing))
shelf.add("gates", "state not decayed for the updates", Prefill(exp_W=missing))
shelf.add("gates", "updates not decayed to the chunk's end", Prefill(exp_V=missing))
for row in (57, 59, 60, 61, 62):
    shelf.add("gates", f"the chunk's decay is that of row {row} of 64", DecayAtRow(row))
shelf.add("gates", "2^g instead of exp(g)", Prefill(exp=torch.exp2))
shelf.add("gates", "2^g for the state alone", Prefill(exp_last=lambda x, _: x**0.6931471805599453))
shelf.add("gates", "sign of the sums for the outputs", Prefill(exp_Q=lambda x, _: (1 / x).clamp(max=1e30)))
shelf.add(
    "gates", "sign of Gamma's exponent in P", Prefill(Gamma_P=lambda x, _: (1 / x.clamp(min=1e-30)).tril())
)
shelf.add("gates", "sums run on over chunks", SumsRunOn())
shelf.add(
    "gates",
    "gates clamped at -10",
    ClampedGates(-10.0),
    excuse="e^-10 of what should be gone stays, 5e-5: bf16 rounds to 2e-3",
)
shelf.add("gates", "gates clamped at -5", ClampedGates(-5.0))
shelf.add("gates", "a chunk's sums clamped at -20", ClampedSums(-20.0))
shelf.add("gates", "a chunk's sums clamped at -5", ClampedSums(-5.0))
shelf.add(
    "gates",
    "gates rounded to bf16",
    Prefill(g=lambda g, _: g.bfloat16().float()),
    excuse="moves exp(g) by 2^-9 |g| exp(g), below 2^-10: less than bf16 rounds",
)
shelf.add("gates", "sums of gates in bf16", Prefill(g_cu=lambda g, _: g.bfloat16().float()))
shelf.add("gates", "sums of gates in fp16", Prefill(g_cu=lambda g, _: g.half().float()))
shelf.add("gates", "beta rounded to bf16", Prefill(beta=lambda beta, _: beta.bfloat16().float()))
shelf.add("gates", "beta of the next token", Prefill(beta=next_token))
shelf.add("gates", "no beta in W", NoBetaInW())
shelf.add("gates", "beta clamped at 1 (beta_max 2)", Prefill(beta=lambda beta, _: beta.clamp(max=1.0)))


# Tails


class Unmasked(Prefill):
    """The last chunk of a sequence has the rows of the next sequence, or the batch's last row again."""

    def mask(self, chunks: Chunks) -> Tensor:
        return torch.ones_like(chunks.inside)


class UnmaskedGates(Prefill):
    """Rows past the end are zeros, but their gates are the next sequence's."""

    def load_gates(self, g: Tensor, chunks: Chunks) -> Tensor:
        return g.clamp(min=CLOSED)[chunks.rows.clamp(max=len(g) - 1)].movedim(2, 1)


class TailOff(Prefill):
    """The mask of the last chunk is off by some rows; `written` too if `outputs`."""

    def __init__(self, rows: int, *, outputs: bool = False) -> None:
        super().__init__()
        self.off = rows
        self.outputs = outputs

    def _off(self, chunks: Chunks) -> Tensor:
        rows = chunks.length + torch.where(chunks.is_last, self.off, 0)
        return torch.arange(chunks.size) < rows.unsqueeze(1)

    def mask(self, chunks: Chunks) -> Tensor:
        return self._off(chunks)

    def written(self, chunks: Chunks) -> Tensor:
        return chunks.inside & self._off(chunks) if self.outputs else chunks.inside


class Planned(Prefill):
    """Another list of chunks: `plan` gives their lengths."""

    def __init__(self, plan: Any, **edits: Any) -> None:
        super().__init__(**edits)
        self.plan = plan

    def planned(self, chunks: Chunks) -> Chunks:
        return replace(chunks, length=self.plan(chunks).clamp(min=0))


def without_full_tail(chunks: Chunks) -> Tensor:
    """length // 64 * 64 == length: the remainder, 0, is taken for the last chunk's length."""
    full = chunks.is_last & (chunks.length == chunks.size)
    return chunks.length.masked_fill(full, 0)


def without_short_tail(chunks: Chunks) -> Tensor:
    return chunks.length.masked_fill(chunks.is_last & (chunks.length < 16), 0)


def whole_sixteens(chunks: Chunks) -> Tensor:
    return torch.where(chunks.length > 16, chunks.length // 16 * 16, chunks.length)


class ReadsStaleRows(Prefill):
    """Rows past the end are those of the chunk before, still in shared memory; outputs are masked."""

    def load(self, x: Tensor, chunks: Chunks) -> Tensor:
        rows = torch.where(chunks.inside, chunks.rows, (chunks.rows - chunks.size).clamp(min=0))
        return x[rows.clamp(max=max(0, len(x) - 1))].movedim(2, 1) if len(x) else super().load(x, chunks)


class TailOfUpdate(Prefill):
    """Only the state's update is unmasked: its product runs over all 64 rows, the last `rows` of which are
    the first ones again."""

    def advance(self, state: Tensor, v_new: Tensor, k: Tensor, g_cu: Tensor, chunks: Chunks) -> Tensor:
        outside = ~chunks.inside[:, None, :, None]
        k = torch.where(outside, k[..., :1, :], k)
        v_new = torch.where(outside, v_new[..., :1, :], v_new)
        return super().advance(state, v_new, k, g_cu, chunks)


def garbage_last_row(g_cu: Tensor, chunks: Chunks) -> Tensor:
    """Past the end sums of gates are 0, and the chunk's decay is read at its last row."""
    return torch.where(chunks.inside[:, None], g_cu, torch.zeros_like(g_cu))


shelf.add("tails", "rows of the next sequence are not masked", Unmasked())
shelf.add("tails", "gates of the next sequence are not masked", UnmaskedGates())
shelf.add("tails", "the last token is dropped", TailOff(-1))
shelf.add("tails", "the last token is neither read nor written", TailOff(-1, outputs=True))
shelf.add("tails", "one token past the end is read", TailOff(1))
shelf.add("tails", "a last chunk of 64 tokens is taken for one of 0", Planned(without_full_tail))
shelf.add("tails", "a last chunk below 16 tokens is skipped", Planned(without_short_tail))
shelf.add("tails", "lengths rounded down to whole 16s", Planned(whole_sixteens))
shelf.add("tails", "rows of the chunk before are read", ReadsStaleRows())
shelf.add("tails", "the state's update has rows past the end", TailOfUpdate())
shelf.add("tails", "sums of gates are 0 past the end", Prefill(g_cu=garbage_last_row))


# Borders


class StateAfter(Prefill):
    """Outputs read the state after their chunk."""

    def scan(self, state: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        h, v_new, last = super().scan(state, *rest)
        chunks: Chunks = rest[-1]
        after = torch.where(chunks.is_last[:, None, None, None], last[chunks.sequence], h.roll(-1, 0))
        return self.store("h", after, chunks), v_new, last


class StateOfChunkBefore(Prefill):
    """Outputs read the state of one chunk earlier: a stage of the ring is read too early."""

    def scan(self, state: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        h, v_new, last = super().scan(state, *rest)
        return torch.where(rest[-1].index[:, None, None, None] > 0, h.roll(1, 0), h), v_new, last


class Leaking(Prefill):
    """A persistent CTA does not reset its state between sequences. An initial state is loaded; without one
    the registers keep the sequence before."""

    def scan(self, state: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        self.previous: Tensor | None = None
        self.loads = bool(state.any())
        return super().scan(state, *rest)

    def waves(self, chunks: Chunks) -> Iterator[Tensor]:
        for c in range(len(chunks.sequence)):
            yield torch.tensor([c])

    def edit(self, name: str, x: Tensor, chunks: Chunks) -> Tensor:
        if name == "S" and not self.loads and not int(chunks.index[0]) and self.previous is not None:
            return self.previous
        if name == "S_next":
            self.previous = x
        return super().edit(name, x, chunks)


class Offset(Prefill):
    """The bounds of sequences are off: they begin or end one token late or early."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self.first, self.last = first, last

    def __call__(self, *, cu_seqlens: Tensor, **given: Any) -> dict[str, Tensor]:
        moved = cu_seqlens.clone()
        moved[1:-1] += self.first
        moved[-1] += self.last
        moved = moved.clamp(0, int(cu_seqlens[-1])).cummax(0).values
        return super().__call__(cu_seqlens=moved, **given)


class SkipsUpdate(Prefill):
    """Every 8th chunk of a sequence leaves the state as it was, but for the decay."""

    def edit(self, name: str, x: Tensor, chunks: Chunks) -> Tensor:
        if name == "exp_V":
            return torch.where((chunks.index % 8 == 7)[:, None, None], torch.zeros_like(x), x)
        return super().edit(name, x, chunks)


class ChunksOfOneSequence(Prefill):
    """Chunks are cut over the whole batch; the first one of a sequence that begins within a chunk does not
    reset the state."""

    def __call__(
        self, *, cu_seqlens: Tensor, initial_state: Tensor | None = None, **given: Any
    ) -> dict[str, Tensor]:
        whole = torch.stack([cu_seqlens[0], cu_seqlens[-1]])
        final = given.pop("final_state", None)
        first = None if initial_state is None else initial_state[:1]
        one = None if final is None else final[:1].clone()
        found = super().__call__(cu_seqlens=whole, initial_state=first, final_state=one, **given)
        if final is not None:
            found["final_state"] = found["final_state"].expand(final.shape).contiguous()
        return found


class HalfOverwritten(Prefill):
    """The outputs of the last chunk read a state whose first half of V is already the next one."""

    def scan(self, state: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        h, v_new, last = super().scan(state, *rest)
        chunks: Chunks = rest[-1]
        half = h.shape[2] // 2
        mixed = torch.cat([last[chunks.sequence][:, :, :half], h[:, :, half:]], 2)
        return torch.where(chunks.is_last[:, None, None, None], mixed, h), v_new, last


shelf.add("borders", "outputs read the state after their chunk", StateAfter())
shelf.add("borders", "outputs read the state of the chunk before", StateOfChunkBefore())
shelf.add("borders", "the state leaks into the next sequence", Leaking())
shelf.add("borders", "sequences begin one token late", Offset(1, 0))
shelf.add("borders", "sequences begin one token early", Offset(-1, 0))
shelf.add("borders", "the batch ends one token early", Offset(0, -1))
shelf.add("borders", "every 8th chunk's update is lost", SkipsUpdate())
shelf.add("borders", "the batch is one sequence", ChunksOfOneSequence())
shelf.add("borders", "the last chunk's state is half overwritten", HalfOverwritten())
shelf.add(
    "borders",
    "h of chunk 0 is the initial state of sequence 0",
    Prefill(h=lambda h, _: h.where(torch.arange(len(h))[:, None, None, None] > 0, h[-1:])),
)


# States


class FinalBeforeLast(Prefill):
    """The final state is that before the last chunk."""

    def scan(self, state: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        h, v_new, last = super().scan(state, *rest)
        chunks: Chunks = rest[-1]
        last[chunks.sequence[chunks.is_last]] = h[chunks.is_last]
        return h, v_new, last


def of_sequence_zero(state: Tensor, _: Chunks) -> Tensor:
    kept = torch.zeros_like(state)
    kept[:1] = state[:1]
    return kept


def empty_are_zero(state: Tensor, chunks: Chunks) -> Tensor:
    """A sequence without tokens has no CTA that copies its initial state."""
    empty = (chunks.offsets.diff() == 0)[:, None, None, None]
    return torch.where(empty, torch.zeros_like(state), state)


shelf.add("states", "the initial state is ignored", Prefill(S0=lambda s, _: torch.zeros_like(s)))
shelf.add("states", "the initial state is transposed", Prefill(S0=spoil.transposed))
shelf.add("states", "the initial state of sequence 0 alone", Prefill(S0=of_sequence_zero))
shelf.add("states", "the initial state of the next sequence", Prefill(S0=lambda s, _: s.roll(-1, 0)))
shelf.add(
    "states",
    "the initial state of sequence 0 for all",
    Prefill(S0=lambda s, _: s[:1].expand(s.shape).clone()),
)
shelf.add("states", "the final state is that before the last chunk", FinalBeforeLast())
shelf.add("states", "the final state is transposed", Prefill(final=spoil.transposed))
shelf.add("states", "the final state of the next sequence", Prefill(final=lambda s, _: s.roll(-1, 0)))
shelf.add("states", "the final state of an empty sequence is 0", Prefill(final=empty_are_zero))
shelf.add("states", "the final state is rounded to bf16", Prefill(final=lambda s, _: s.bfloat16().float()))
shelf.add("states", "the final state is rounded to fp16", Prefill(final=lambda s, _: s.half().float()))
shelf.add("states", "the state is bf16 between chunks", Prefill(S_next=lambda s, _: s.bfloat16().float()))
shelf.add("states", "the state is fp16 between chunks", Prefill(S_next=lambda s, _: s.half().float()))
shelf.add("states", "the initial state is rounded to bf16", Prefill(S0=lambda s, _: s.bfloat16().float()))
shelf.add("states", "the final state has the scale", Prefill(final=lambda s, chunks: s * chunks.scale))
shelf.add("states", "updates are added before the state decays", Prefill(exp_V=lambda x, _: x * x[..., :1]))


class LateDecay(Prefill):
    """The state is decayed after the update was added."""

    def advance(self, state: Tensor, v_new: Tensor, k: Tensor, g_cu: Tensor, chunks: Chunks) -> Tensor:
        rounded = self.store("V_new", v_new, chunks)
        return (state + self.product(rounded.mT, k)) * self.exp(g_cu[..., -1:]).unsqueeze(-1)


class HalfUpdated(Prefill):
    """The second chunk reads a state of which some updates are missing: the mean of old and new."""

    def scan(self, state: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        self.old = state.clone()
        return super().scan(state, *rest)

    def edit(self, name: str, x: Tensor, chunks: Chunks) -> Tensor:
        if name == "S_next":
            changed = self.old[chunks.sequence]
            self.old[chunks.sequence] = x
            return torch.where(chunks.index[:, None, None, None] == 1, (x + changed) / 2, x)
        return super().edit(name, x, chunks)


shelf.add("states", "the state decays after the update", LateDecay())
shelf.add("states", "the second chunk's state is the mean of two", HalfUpdated())
FAULTS = shelf.done()
