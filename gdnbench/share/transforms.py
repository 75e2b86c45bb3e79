"""Other bases for what attention computes with, under which the operation is the same.

Per value head the gated delta rule is S' = exp(g) S, u = beta (v - S' k), S'' = S' + u k^T, o = scale S'' q.
With orthogonal R and P, put R k, R q, P v and P S R^T in the place of k, q, v and S: S' R^T R k = S' k, so
that u becomes P u, the new state P S'' R^T, and o becomes P o. Gates, beta, norms and all products of keys
and queries stay. Sliding-window attention has one row as key and value: scores are q^T row, outputs sums of
rows, so one R does for q, rows and outputs.

A rotation is drawn uniformly (QR of normal numbers with a positive diagonal; Mezzadri, 2007), computed in
fp64, and what comes out is rounded to the tensor's dtype again. A signed permutation moves bits and rounds
nothing, so it also serves for codes that share a scale, and shows the values, though not where they were.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import torch
from torch import Tensor


class Kind(StrEnum):
    ROTATION = "rotation"
    PERMUTATION = "permutation"


@dataclass(frozen=True, slots=True)
class Rotation:
    """x -> R x along an axis."""

    matrix: Tensor  # [D, D] fp64, orthogonal

    def transform(self, x: Tensor) -> Tensor:
        """`x` [..., D] in the new basis, rounded to its dtype."""
        return (x.double() @ self.matrix.T).to(x.dtype)


@dataclass(frozen=True, slots=True)
class Permutation:
    """Feature i of the new basis is feature `places[i]` of the old one, negated where `negated[i]`."""

    places: Tensor  # [D] int64
    negated: Tensor  # [D] bool

    def transform(self, x: Tensor) -> Tensor:
        """`x` [..., D] in the new basis, bit for bit but for signs."""
        moved = x[..., self.places]
        return torch.where(self.negated, -moved, moved)

    def transform_codes(self, codes: Tensor) -> Tensor:
        """Bytes [..., D] of e4m3 values: a sign is the highest bit."""
        assert codes.dtype is torch.uint8
        return codes[..., self.places] ^ (self.negated.to(torch.uint8) << 7)


Basis = Rotation | Permutation


@dataclass(frozen=True, slots=True)
class Bases:
    """Bases by name, from a secret of 256 bits that is kept nowhere: the same name has the same basis."""

    secret: bytes
    kind: Kind

    def basis(self, size: int, *name: object, group: int | None = None) -> Basis:
        """Of `size` features. `group`: features move only among as many neighbours, which share a scale."""
        return _drawn(self, size, name, group)

    def numbers(self, count: int, *name: object) -> Tensor:
        """int64 [count], uniform from 0 to 2^63 - 1, which tell nothing of one another nor of the secret."""
        # Torch's generator takes 32 bits of its seed: whoever has the copy could try them all.
        drawn = hashlib.shake_256(self.secret + repr(name).encode()).digest(8 * max(count, 1))
        return torch.frombuffer(bytearray(drawn), dtype=torch.int64)[:count] & (2**63 - 1)


# As many as a layer has heads, which the next step asks for again.
@lru_cache(maxsize=128)
def _drawn(bases: Bases, size: int, name: tuple[object, ...], group: int | None) -> Basis:
    if bases.kind is Kind.ROTATION:
        return Rotation(_rotation(normal(bases.numbers(size * size, *name)).view(size, size)))
    parts = bases.numbers(size, "places", *name).view(-1, group or size)
    places = torch.cat([part.argsort() + at * len(part) for at, part in enumerate(parts)])
    return Permutation(places, bases.numbers(size, "signs", *name) % 2 == 1)


def normal(numbers: Tensor) -> Tensor:
    """`numbers` of `Bases.numbers` as quantiles of the standard normal distribution, fp64."""
    found: Tensor = torch.special.ndtri(((numbers >> 11).double() + 0.5) * 2.0**-52)  # 52 bits: none is 1
    return found


def _rotation(normal: Tensor) -> Tensor:
    q, r = torch.linalg.qr(normal)
    found: Tensor = q * r.diagonal().sign()
    return found
