# SPDX-License-Identifier: Apache-2.0
"""Wrong kernels of gdn_decode: heads, gates, slots and states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.power import spoiled_values as spoil
from tests.power.gdn_decode_kernel import At, Decode
from tests.power.library import Shelf

shelf = Shelf("gdn_decode", right=False)


# Heads


class ModuloHeads(Decode):
    """Value head hv reads key head hv % H."""

    def key_heads(self, heads: int, value_heads: int) -> Tensor:
        return torch.arange(value_heads) % heads


class ShiftedHeads(Decode):
    """Groups of value heads begin one head late."""

    def key_heads(self, heads: int, value_heads: int) -> Tensor:
        return (torch.arange(value_heads) + 1) // (value_heads // heads) % heads


class FirstKeyHead(Decode):
    """All value heads read key head 0."""

    def key_heads(self, heads: int, value_heads: int) -> Tensor:
        return torch.zeros(value_heads, dtype=torch.int64)


shelf.add("heads", "value head hv reads key head hv % H", ModuloHeads())
shelf.add("heads", "groups of value heads begin one head late", ShiftedHeads())
shelf.add("heads", "all value heads read key head 0", FirstKeyHead())
shelf.add("heads", "outputs of heads 0 and 1 exchanged", Decode(o=spoil.swapped_heads))
shelf.add("heads", "stored states of heads 0 and 1 exchanged", Decode(stored=spoil.swapped_heads))
shelf.add("heads", "gate of the next head", Decode(g=spoil.neighbouring_head))
shelf.add("heads", "beta of the next head", Decode(beta=spoil.neighbouring_head))


# Gates


class RawGates(Decode):
    """The gate made of a, b, A_log and dt_bias by another rule."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def raw_gates(
        self, a: Tensor, b: Tensor, A_log: Tensor | None, dt_bias: Tensor | None, beta_max: float
    ) -> tuple[Tensor, Tensor]:
        assert A_log is not None
        assert dt_bias is not None
        if self.what == "no bias":
            dt_bias = torch.zeros_like(dt_bias)
        if self.what == "rate rounded":
            A_log = A_log.bfloat16().float()
        if self.what == "no exp of A_log":
            A_log = A_log.abs().clamp(min=1e-30).log()
        if self.what == "beta_max":
            beta_max = 1.0
        if self.what == "a rounded":
            a = (a.float() + dt_bias.float()).bfloat16()
            dt_bias = torch.zeros_like(dt_bias)
        g, beta = super().raw_gates(a, b, A_log, dt_bias, beta_max)
        return g, beta.bfloat16() if self.what == "beta rounded" else beta

    def softplus(self, x: Tensor) -> Tensor:
        if self.what == "relu":
            return x.clamp(min=0)
        if self.what == "naive softplus":
            return torch.log(1 + torch.exp(x))
        if self.what == "coarse sum":
            return torch.log(((1 + torch.exp(x)) * 2.0**19).round() / 2.0**19)
        if self.what == "lost":
            return torch.where(x < -7, 0.0, super().softplus(x))
        return super().softplus(x)


class NoRecall(Decode):
    """delta = beta v: what the state already has of the key is not subtracted."""

    def edit(self, name: str, x: Tensor, at: At) -> Tensor:
        return torch.zeros_like(x) if name == "seen" else super().edit(name, x, at)


class RecallBeforeDecay(Decode):
    """delta from the state before its decay."""

    def advance(self, state: Tensor, now: dict[str, Tensor], at: At) -> tuple[Tensor, Tensor]:
        delta = now["beta"].unsqueeze(-1) * (now["v"] - self.dot(state, now["k"]))
        state = state * self.exp(now["g"])[..., None, None]
        return state + delta.unsqueeze(-1) * now["k"].unsqueeze(-2), delta


class DecayAfter(Decode):
    """The state decays after the update was added."""

    def advance(self, state: Tensor, now: dict[str, Tensor], at: At) -> tuple[Tensor, Tensor]:
        delta = now["beta"].unsqueeze(-1) * (now["v"] - self.dot(state, now["k"]))
        after = state + delta.unsqueeze(-1) * now["k"].unsqueeze(-2)
        return after * self.exp(now["g"])[..., None, None], delta


class ReadsOldState(Decode):
    """o from the state before the token, decayed or not."""

    def __init__(self, *, decayed: bool) -> None:
        super().__init__()
        self.decayed = decayed

    def advance(self, state: Tensor, now: dict[str, Tensor], at: At) -> tuple[Tensor, Tensor]:
        alpha = self.exp(now["g"])[..., None, None]
        self.old = state * alpha if self.decayed else state
        return super().advance(state, now, at)

    def edit(self, name: str, x: Tensor, at: At) -> Tensor:
        return self.old if name == "S_read" else super().edit(name, x, at)


class FirstGate(Decode):
    """All tokens of a call have the gate and beta of the first."""

    def __call__(self, *, g: Tensor, beta: Tensor, **given: Any) -> dict[str, Tensor]:
        g, beta = (x[:, :1].expand(x.shape) for x in (g, beta))
        return super().__call__(g=g, beta=beta, **given)


class NextSequencesGate(Decode):
    """Sequence i has the gate of sequence i + 1."""

    def __call__(self, *, g: Tensor, **given: Any) -> dict[str, Tensor]:
        return super().__call__(g=g.roll(-1, 0), **given)


class BetaOfValues(Decode):
    """delta = beta v - S' k."""

    def advance(self, state: Tensor, now: dict[str, Tensor], at: At) -> tuple[Tensor, Tensor]:
        values = {"v": now["beta"].unsqueeze(-1) * now["v"], "beta": torch.ones_like(now["beta"])}
        return super().advance(state, {**now, **values}, at)


shelf.add("gates", "no decay", Decode(alpha=lambda x, _: torch.ones_like(x)))
shelf.add("gates", "2^g instead of exp(g)", Decode(exp=torch.exp2))
shelf.add("gates", "exp(-g)", Decode(exp=lambda x: torch.exp(-x).clamp(max=1e6)))
shelf.add("gates", "g is taken for alpha", Decode(exp=lambda x: x.abs().clamp(max=1)))
shelf.add("gates", "gates clamped at -10", Decode(g=lambda g, _: g.clamp(min=-10)))
shelf.add("gates", "gates clamped at -5", Decode(g=lambda g, _: g.clamp(min=-5)))
shelf.add("gates", "g rounded to bf16", Decode(g=lambda g, _: g.bfloat16().float()))
shelf.add("gates", "alpha rounded to bf16", Decode(alpha=lambda x, _: x.bfloat16().float()))
shelf.add("gates", "alpha rounded to fp16", Decode(alpha=lambda x, _: x.half().float()))
shelf.add("gates", "beta rounded to bf16", Decode(beta=lambda x, _: x.bfloat16().float()))
shelf.add("gates", "beta clamped at 1", Decode(beta=lambda x, _: x.clamp(max=1.0)))
shelf.add("gates", "beta is 1", Decode(beta=lambda x, _: torch.ones_like(x)))
shelf.add("gates", "gate of the next sequence", NextSequencesGate())
shelf.add("gates", "all tokens have the first token's gate", FirstGate())
shelf.add("gates", "raw: no dt_bias", RawGates("no bias"))
shelf.add("gates", "raw: A_log rounded to bf16", RawGates("rate rounded"))
shelf.add("gates", "raw: A_log is not exponentiated", RawGates("no exp of A_log"))
shelf.add("gates", "raw: beta_max ignored", RawGates("beta_max"))
shelf.add("gates", "raw: a + dt_bias rounded to bf16", RawGates("a rounded"))
shelf.add("gates", "raw: beta rounded to bf16", RawGates("beta rounded"))
shelf.add("gates", "raw: relu for softplus", RawGates("relu"))
shelf.add(
    "gates",
    "raw: log(1 + exp x), which overflows and has no small values",
    RawGates("naive softplus"),
    excuse="served kernels have it: alpha is off by u exp(A_log), and infinite only where alpha is 0",
)
shelf.add("gates", "raw: log(1 + exp x), the sum rounded to 2^-19", RawGates("coarse sum"))
shelf.add("gates", "raw: no decay below x = -7", RawGates("lost"))
shelf.add("update", "nothing is subtracted from v", NoRecall())
shelf.add("update", "delta from the state before its decay", RecallBeforeDecay())
shelf.add("update", "the state decays after the update", DecayAfter())
shelf.add("update", "o from the decayed state", ReadsOldState(decayed=True))
shelf.add("update", "o from the state before the token", ReadsOldState(decayed=False))
shelf.add("update", "no scale", Decode(o=lambda x, at: x / at.scale))
shelf.add("update", "scale of K = 64", Decode(o=lambda x, _: x * 2**0.5))
shelf.add("update", "beta multiplies v alone", BetaOfValues())


# Slots


class Slots(Decode):
    """Reads other slots: `read(write, num_accepted, read_indices)`."""

    def __init__(self, read: Any) -> None:
        super().__init__()
        self.read = read

    def slots_to_read(
        self, write: Tensor, num_accepted: Tensor | None, read_indices: Tensor | None
    ) -> Tensor:
        right = super().slots_to_read(write, num_accepted, read_indices)
        found: Tensor = self.read(write, num_accepted, right)
        return torch.where(right >= 0, found, right)  # padding stays padding


def of_accepted(shift: int) -> Any:
    def read(write: Tensor, num_accepted: Tensor | None, right: Tensor) -> Tensor:
        if num_accepted is None:
            return right
        column = (num_accepted.long() - 1 + shift).clamp(0, write.shape[1] - 1)
        found = write.gather(1, column.unsqueeze(1)).squeeze(1)
        return torch.where(found >= 0, found, right)

    return read


class Writes(Decode):
    """Writes other slots: `slot(write [A, S], token, read [A], slots)`."""

    def __init__(self, slot: Any) -> None:
        super().__init__()
        self.slot = slot

    def write_slots(self, pool: Tensor, write: Tensor, token: int, state: Tensor, read: Tensor) -> None:
        wrong = self.slot(write, token, read).clamp(max=len(pool) - 1)
        moved = write.clone()
        moved[:, token] = wrong
        super().write_slots(pool, moved, token, state, read)


def next_slot(write: Tensor, token: int, read: Tensor) -> Tensor:
    return torch.where(write[:, token] >= 0, write[:, token] + 1, write[:, token])


def last_of_all_tokens(write: Tensor, token: int, read: Tensor) -> Tensor:
    return write[:, 0]


def shifted_token(write: Tensor, token: int, read: Tensor) -> Tensor:
    return write[:, (token + 1) % write.shape[1]]


class WritesMissing(Decode):
    """-1 is taken for slot 0 (a mask that is missing)."""

    def write_slots(self, pool: Tensor, write: Tensor, token: int, state: Tensor, read: Tensor) -> None:
        super().write_slots(pool, write.clamp(min=0), token, state, read)


class PaddingRuns(Decode):
    """Padding sequences read and write slot 0."""

    def active_sequences(self, read: Tensor) -> Tensor:
        return torch.arange(len(read))

    def edit(self, name: str, x: Tensor, at: At) -> Tensor:
        return x.clamp(min=0) if name == "read" else super().edit(name, x, at)

    def write_slots(self, pool: Tensor, write: Tensor, token: int, state: Tensor, read: Tensor) -> None:
        super().write_slots(pool, write.clamp(min=0), token, state, read)


class PaddingWritesLast(Decode):
    """-1 wraps round to the pool's last slot."""

    def write_slots(self, pool: Tensor, write: Tensor, token: int, state: Tensor, read: Tensor) -> None:
        super().write_slots(pool, write % len(pool), token, state, read)


class StopsAtHole(Decode):
    """A token whose slot is -1 is not computed at all: the state stays as it was."""

    def __call__(self, *, state_indices: Tensor, **given: Any) -> dict[str, Tensor]:
        self.write = state_indices
        return super().__call__(state_indices=state_indices, **given)

    def advance(self, state: Tensor, now: dict[str, Tensor], at: At) -> tuple[Tensor, Tensor]:
        after, delta = super().advance(state, now, at)
        there = (self.write[at.active, at.token] >= 0)[:, None, None, None]
        return torch.where(there, after, state), delta


class RereadsSlot(Decode):
    """Each token reads the state of the call's beginning again: drafts do not build on each other."""

    def advance(self, state: Tensor, now: dict[str, Tensor], at: At) -> tuple[Tensor, Tensor]:
        if at.token == 0:
            self.first = state
        return super().advance(self.first, now, at)


class LastTokenOnly(Decode):
    """Only the last token's state is stored."""

    def write_slots(self, pool: Tensor, write: Tensor, token: int, state: Tensor, read: Tensor) -> None:
        if token == write.shape[1] - 1:
            super().write_slots(pool, write, token, state, read)


class WritesOldState(Decode):
    """A token's slot gets the state before it."""

    def advance(self, state: Tensor, now: dict[str, Tensor], at: At) -> tuple[Tensor, Tensor]:
        self.before = state
        return super().advance(state, now, at)

    def edit(self, name: str, x: Tensor, at: At) -> Tensor:
        return self.before if name == "stored" else super().edit(name, x, at)


class WritesReadSlot(Decode):
    """The new state also overwrites the slot that was read."""

    def write_slots(self, pool: Tensor, write: Tensor, token: int, state: Tensor, read: Tensor) -> None:
        pool[read] = self.round_state(state, pool.dtype)
        super().write_slots(pool, write, token, state, read)


class ReadsNeighbour(Decode):
    """The last sequence of an odd pair reads its neighbour's state: a pointer was not advanced."""

    def edit(self, name: str, x: Tensor, at: At) -> Tensor:
        if name == "S0" and len(x) > 1:
            x = x.clone()
            x[-1] = x[-2]
            return x
        return super().edit(name, x, at)


class SkipsLastSequence(Decode):
    """The last sequence has no CTA."""

    def active_sequences(self, read: Tensor) -> Tensor:
        return super().active_sequences(read)[:-1]


shelf.add(
    "slots",
    "the slot of the next sequence is read",
    Slots(lambda write, _, right: right.roll(-1, 0).where(right.roll(-1, 0) >= 0, right)),
)
shelf.add(
    "slots",
    "slot i is read by sequence i",
    Slots(lambda write, _, right: torch.arange(len(right)).clamp(max=int(write.max().clamp(min=0)))),
)
shelf.add(
    "slots",
    "num_accepted is ignored",
    Slots(
        lambda write, accepted, right: (
            right if accepted is None else write[:, 0].where(write[:, 0] >= 0, right)
        )
    ),
)
shelf.add("slots", "num_accepted is one too large", Slots(of_accepted(1)))
shelf.add("slots", "num_accepted is one too small", Slots(of_accepted(-1)))
shelf.add("slots", "the next slot is written", Writes(next_slot))
shelf.add("slots", "all tokens write the first one's slot", Writes(last_of_all_tokens))
shelf.add("slots", "tokens write the next one's slot", Writes(shifted_token))
shelf.add(
    "slots", "the slot that was read is written, its own is not", Writes(lambda write, token, read: read)
)
shelf.add("slots", "the slot that was read is written too", WritesReadSlot())
shelf.add("slots", "-1 is slot 0", WritesMissing())
shelf.add("slots", "padding sequences use slot 0", PaddingRuns())
shelf.add("slots", "-1 is the last slot", PaddingWritesLast())
shelf.add("slots", "a token without a slot is not computed", StopsAtHole())
shelf.add("slots", "drafts do not build on each other", RereadsSlot())
shelf.add("slots", "only the last token's state is stored", LastTokenOnly())
shelf.add("slots", "slots get the state before their token", WritesOldState())
shelf.add("slots", "the last sequence reads its neighbour's state", ReadsNeighbour())
shelf.add("slots", "the last sequence is skipped", SkipsLastSequence())


# States

shelf.add("states", "the state is read transposed", Decode(S0=spoil.transposed))
shelf.add("states", "the state is stored transposed", Decode(stored=spoil.transposed))
shelf.add("states", "the state read is ignored", Decode(S0=lambda s, _: torch.zeros_like(s)))
shelf.add("states", "the state is read as bf16", Decode(S0=lambda s, _: s.bfloat16().float()))
shelf.add("states", "the state is stored as bf16", Decode(stored=lambda s, _: s.bfloat16().float()))
shelf.add("states", "the state is stored as fp16", Decode(stored=lambda s, _: s.half().float()))
shelf.add("states", "the state is bf16 between tokens", Decode(S=lambda s, _: s.bfloat16().float()))
shelf.add(
    "states",
    "the state is read as fp16 for o",
    Decode(S_read=lambda s, _: s.half().float()),
    excuse="fp16 has more bits than o in bf16; only states above 65504 show it",
)
shelf.add(
    "states",
    "the last 8 rows of V are not stored",
    Decode(stored=lambda s, _: torch.cat([s[..., :-8, :], 0 * s[..., -8:, :]], -2)),
)
FAULTS = shelf.done()
