# SPDX-License-Identifier: Apache-2.0
"""Orthogonal transforms under which attention computes the same result in another basis.

Per value head the gated delta rule is S' = exp(g) S, u = beta (v - S' k), S'' = S' + u k^T, o = scale S'' q.
For orthogonal R and P, replace k, q, v and S by R k, R q, P v and P S R^T. Since (P S' R^T)(R k) = P S' k, u
becomes P u, the new state P S'' R^T, and o becomes P o. Gates, beta, norms and all products of keys and
queries are unchanged. Sliding-window attention uses one row as key and value: scores are q^T row and outputs
are sums of rows, so a single R transforms q, rows and outputs.

A rotation is drawn uniformly (QR of normal numbers with a positive diagonal; Mezzadri, 2007) and applied in
fp64; the result is rounded to the tensor's dtype. A signed permutation rounds nothing, so it also works for
codes that share a scale, but it reveals the values, though not their positions.
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
    """Feature i of the new basis is feature `places[i]` of the old one, negated if `negated[i]`."""

    places: Tensor  # [D] int64
    negated: Tensor  # [D] bool

    def transform(self, x: Tensor) -> Tensor:
        """`x` [..., D] in the new basis; exact, up to signs."""
        moved = x[..., self.places]
        return torch.where(self.negated, -moved, moved)

    def transform_codes(self, codes: Tensor) -> Tensor:
        """Bytes [..., D] of e4m3 values in the new basis; the highest bit is the sign."""
        assert codes.dtype is torch.uint8
        return codes[..., self.places] ^ (self.negated.to(torch.uint8) << 7)


Basis = Rotation | Permutation


@dataclass(frozen=True, slots=True)
class Bases:
    """Bases by name, derived from a 256-bit secret that is stored nowhere: equal names give equal bases."""

    secret: bytes
    kind: Kind

    def basis(self, size: int, *name: object, group: int | None = None) -> Basis:
        """A basis for `size` features. `group`: features move only within groups of this size, which share a
        scale."""
        return _drawn(self, size, name, group)

    def numbers(self, count: int, *name: object) -> Tensor:
        """int64 [count], uniform in [0, 2^63 - 1]; reveals neither the secret nor other numbers."""
        # Torch's generator uses 32 bits of its seed, which could be found by trying all.
        drawn = hashlib.shake_256(self.secret + repr(name).encode()).digest(8 * max(count, 1))
        return torch.frombuffer(bytearray(drawn), dtype=torch.int64)[:count] & (2**63 - 1)


# Enough for the heads of a layer, which its next step uses again.
@lru_cache(maxsize=128)
def _drawn(bases: Bases, size: int, name: tuple[object, ...], group: int | None) -> Basis:
    if bases.kind is Kind.ROTATION:
        return Rotation(_rotation(normal(bases.numbers(size * size, *name)).view(size, size)))
    parts = bases.numbers(size, "places", *name).view(-1, group or size)
    places = torch.cat([part.argsort() + at * len(part) for at, part in enumerate(parts)])
    return Permutation(places, bases.numbers(size, "signs", *name) % 2 == 1)


def normal(numbers: Tensor) -> Tensor:
    """Map `numbers` of `Bases.numbers` to quantiles of the standard normal distribution, fp64."""
    found: Tensor = torch.special.ndtri(((numbers >> 11).double() + 0.5) * 2.0**-52)  # 52 bits: none is 1
    return found


def _rotation(normal: Tensor) -> Tensor:
    q, r = torch.linalg.qr(normal)
    found: Tensor = q * r.diagonal().sign()
    return found
