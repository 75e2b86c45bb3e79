# SPDX-License-Identifier: Apache-2.0
"""Wrong kernels of v4_compress: windows, scores, norm, rotation and states."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.power.library import Shelf
from tests.power.number_formats import normal, truncated
from tests.power.v4_compress_kernel import Closed, Compressor

shelf = Shelf("v4_compress", right=False)


# Windows


class Slots(Compressor):
    """An entry has other slots: `edit(positions, ratio)`."""

    def __init__(self, edit: Callable[[list[int], int], list[int]]) -> None:
        super().__init__()
        self.edit_slots = edit

    def slots(self, position: int) -> list[int]:
        found = self.edit_slots(super().slots(position), self.ratio)
        return [at if at <= position else position for at in found]


class Columns(Compressor):
    """The halves of the columns are exchanged: a window's own tokens give the first."""

    def columns(self, x: Tensor, closed: Closed) -> Tensor:
        features = closed.features
        return torch.cat([x[: closed.ratio, features:], x[closed.ratio :, :features]])


class LastHalf(Compressor):
    """All slots give the last half of the columns."""

    def columns(self, x: Tensor, closed: Closed) -> Tensor:
        return x[:, closed.features :]


class ZeroScores(Compressor):
    """Slots before the sequence have score 0: they are in the sum."""

    def missing(self, columns: int) -> Tensor:
        return torch.zeros(2 * columns, dtype=self.compute)


class Closes(Compressor):
    """Other tokens close a window: `closes(position, number, ratio)`."""

    def __init__(self, closes: Callable[[int, int, int], bool]) -> None:
        super().__init__()
        self.other = closes

    def closes(self, position: int, number: int) -> bool:
        return self.other(position, number, self.ratio)


class Row(Compressor):
    """An entry is written to the row of the window's first token of the call."""

    def row_of(self, closed: Closed) -> int:
        return max(0, closed.row + 1 - closed.ratio)


shelf.add(
    "windows", "the overlap shifted by one token", Slots(lambda at, r: [at[0] - 1, *at[: r - 1], *at[r:]])
)
shelf.add("windows", "no overlap", Slots(lambda at, r: [-1] * (len(at) - r) + at[len(at) - r :]))
shelf.add("windows", "the first slot is lost", Slots(lambda at, r: [-1, *at[1:]]))
shelf.add("windows", "the last slot is lost", Slots(lambda at, r: [*at[:-1], -1]))
shelf.add("windows", "halves of the columns exchanged", Columns())
shelf.add("windows", "all slots give the last half", LastHalf())
shelf.add("windows", "slots before the sequence have score 0", ZeroScores())
shelf.add("windows", "closed one token early", Closes(lambda p, number, r: (p + 2) % r == 0))
shelf.add(
    "windows", "counted from the call's first token", Closes(lambda p, number, r: (number + 1) % r == 0)
)
shelf.add("windows", "the entry in the row of the first token", Row())


# Scores


class Place(Compressor):
    """Another row of ape: `place(position, ratio)`."""

    def __init__(self, place: Callable[[int, int], int]) -> None:
        super().__init__()
        self.other = place

    def place(self, position: int) -> int:
        return self.other(position, self.ratio)


class WithoutApe(Compressor):
    """ape is not added."""

    def token(self, kv: Tensor, score: Tensor, ape: Tensor, position: int) -> Tensor:
        return super().token(kv, score, torch.zeros_like(ape), position)


class Sum(Compressor):
    """The weighted sum is not divided by the sum of the weights."""

    def pooled(self, x: Tensor, z: Tensor) -> Tensor:
        return (torch.exp(z - z.amax(0)) * x).sum(0)


class NoMaximum(Compressor):
    """exp of the scores themselves, which overflows above 88."""

    def pooled(self, x: Tensor, z: Tensor) -> Tensor:
        p = torch.exp(z)
        return (p * x).sum(0) / p.sum(0)


class OneScore(Compressor):
    """One weight a slot, of the mean score, for all features."""

    def pooled(self, x: Tensor, z: Tensor) -> Tensor:
        return super().pooled(x, z.mean(1, keepdim=True).expand(z.shape))


shelf.add("scores", "no ape", WithoutApe())
shelf.add("scores", "ape of the next place", Place(lambda p, r: (p + 1) % r))
shelf.add("scores", "ape of place 0 for all", Place(lambda p, r: 0))
shelf.add("scores", "a sum, not a mean", Sum())
shelf.add("scores", "no maximum", NoMaximum(), excuse="exact unless a score is above 88 or all are below -87")
shelf.add("scores", "one weight for all features", OneScore())
shelf.add(
    "scores", "a plain mean", Compressor(z=lambda z, _: torch.where(z.isneginf(), z, torch.zeros_like(z)))
)
shelf.add("scores", "rounded to bf16", Compressor(z=lambda z, _: z.bfloat16().float()))
shelf.add("scores", "1% too large", Compressor(z=lambda z, _: z * 1.01))
shelf.add("scores", "2^z instead of exp z", Compressor(exp=torch.exp2))


# Norm and rotation


class WithoutNorm(Compressor):
    """Entries are not normalised."""

    def normalised(self, c: Tensor, weight: Tensor) -> Tensor:
        return c * weight


class WithoutWeight(Compressor):
    """The norm has no weight."""

    def normalised(self, c: Tensor, weight: Tensor) -> Tensor:
        return super().normalised(c, torch.ones_like(weight))


class SumOfSquares(Compressor):
    """The root of the sum of squares, not of their mean."""

    def normalised(self, c: Tensor, weight: Tensor) -> Tensor:
        return c / (c.square().sum() + self.eps).sqrt() * weight


class MeanRemoved(Compressor):
    """A layer norm: the mean is subtracted first."""

    def normalised(self, c: Tensor, weight: Tensor) -> Tensor:
        return super().normalised(c - c.mean(), weight)


class WithoutEps(Compressor):
    """eps is not added."""

    def normalised(self, c: Tensor, weight: Tensor) -> Tensor:
        return c / c.square().mean().sqrt() * weight


class Angle(Compressor):
    """The angle of another position: `angle(closed)`."""

    def __init__(self, angle: Callable[[Closed], int]) -> None:
        super().__init__()
        self.other = angle

    def angle(self, closed: Closed) -> int:
        return max(0, self.other(closed))


class Halves(Compressor):
    """Pairs are of the two halves of the features, not of neighbours."""

    def rotated(self, c: Tensor, angles: Tensor) -> Tensor:
        cos, sin = angles.chunk(2)
        kept, turned = c[: len(c) - len(angles)], c[len(c) - len(angles) :]
        one, other = turned.chunk(2)
        return torch.cat([kept, one * cos - other * sin, other * cos + one * sin])


class Backwards(Compressor):
    """The rotation is the inverse one."""

    def rotated(self, c: Tensor, angles: Tensor) -> Tensor:
        cos, sin = angles.chunk(2)
        return super().rotated(c, torch.cat([cos, -sin]))


class FirstFeatures(Compressor):
    """The first features are turned, not the last."""

    def rotated(self, c: Tensor, angles: Tensor) -> Tensor:
        width = len(angles)
        return super().rotated(c.roll(-width), angles).roll(width)


class WithoutRotation(Compressor):
    """Entries are not turned."""

    def rotated(self, c: Tensor, angles: Tensor) -> Tensor:
        return c


shelf.add("norm", "missing", WithoutNorm())
shelf.add("norm", "no weight", WithoutWeight())
shelf.add("norm", "the sum of squares", SumOfSquares())
shelf.add("norm", "the mean removed", MeanRemoved())
shelf.add("norm", "no eps", WithoutEps())
shelf.add("rope", "missing", WithoutRotation())
shelf.add("rope", "of the window's last token", Angle(lambda closed: closed.last))
shelf.add("rope", "of the first token of the overlap", Angle(lambda closed: closed.positions[0]))
shelf.add("rope", "of the entry's number", Angle(lambda closed: closed.last // closed.ratio))
shelf.add("rope", "halves for pairs", Halves())
shelf.add("rope", "the inverse", Backwards())
shelf.add("rope", "the first features", FirstFeatures())


# States


class Kept(Compressor):
    """The state holds something else of a token: `edit(token)`."""

    def __init__(self, edit: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.edit_kept = edit

    def kept(self, token: Tensor) -> Tensor:
        return self.edit_kept(token)


class WithoutApeInState(Compressor):
    """The state holds scores without ape, which is not added when they are read."""

    def token(self, kv: Tensor, score: Tensor, ape: Tensor, position: int) -> Tensor:
        self.bare = torch.cat([kv.to(self.compute), score.to(self.compute)])
        return super().token(kv, score, ape, position)

    def kept(self, token: Tensor) -> Tensor:
        return self.bare


class Read(Compressor):
    """Another token of the state is read: `read(state, page, offset)`."""

    def __init__(self, read: Callable[[Tensor, int, int], Tensor]) -> None:
        super().__init__()
        self.other = read

    def read(self, state: Tensor, page: int, offset: int) -> Tensor:
        return self.other(state, page, offset)


class NotKept(Compressor):
    """Tokens that close a window are not kept: the next window overlaps with them."""

    def page(self, block_table: Tensor, n: int, position: int, size: int) -> int:
        found = super().page(block_table, n, position, size)
        return found if (position + 1) % self.ratio else -1


shelf.add("states", "kv and scores exchanged", Kept(lambda token: torch.cat(token.chunk(2)[::-1])))
shelf.add("states", "kept as bf16", Kept(lambda token: token.bfloat16().float()))
shelf.add("states", "scores without ape", WithoutApeInState())
shelf.add(
    "states", "the next token's place is read", Read(lambda s, page, at: s[page, (at + 1) % s.shape[1]])
)
shelf.add("states", "the next page is read", Read(lambda s, page, at: s[(page + 1) % len(s), at]))
shelf.add("states", "read as zeros", Read(lambda s, page, at: torch.zeros_like(s[page, at])))
shelf.add("states", "tokens that close a window are not kept", NotKept())


# Sizes and repetition


class Truncating(Compressor):
    """Entries are cut off instead of rounded."""

    def rounded(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return truncated(x, dtype)


class DependsOnCalls(Compressor):
    """A counter is not reset: every second call is off by 2^-6."""

    def rounded(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return super().rounded(x * (1 + 2.0**-6) if self.calls % 2 else x, dtype)

    def finish(self, found: dict[str, Tensor], _: object) -> dict[str, Tensor]:
        self.calls += 1
        return found


shelf.add("sizes", "entries 1% too large", Compressor(entry=lambda x, _: x * 1.01))
shelf.add("sizes", "noise of 1%", Compressor(entry=lambda x, _: x * (1 + 0.01 * normal(x))))
shelf.add("sizes", "entries cut off", Truncating())
shelf.add(
    "sizes", "the last feature is 0", Compressor(entry=lambda x, _: x * (torch.arange(len(x)) < len(x) - 1))
)
shelf.add("repeat", "every second call is off", DependsOnCalls(), repeats=True)
FAULTS = shelf.done()
