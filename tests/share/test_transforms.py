# SPDX-License-Identifier: Apache-2.0
"""Other bases, against the fp64 oracles, which know nothing of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.errors import BadInputError
from gdnbench.ops import operation
from gdnbench.share.anonymize import Change, of_delta_rule, of_window
from gdnbench.share.transforms import Bases, Kind, Permutation
from gdnbench.synth import synthesise
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_decode.reference import reference as decode_oracle
from gdnbench_kernels.gdn_prefill.reference import reference as prefill_oracle
from gdnbench_kernels.kda_decode.reference import reference as kda_decode_oracle
from gdnbench_kernels.swa_decode.layouts import unpack
from gdnbench_kernels.validate import resolved_conventions
from tests.messages import wording

ORACLES: dict[str, Any] = {
    "gdn_prefill": prefill_oracle,
    "gdn_decode": decode_oracle,
    "kda_decode": kda_decode_oracle,
}
SMALL: dict[str, dict[str, Any]] = {
    "gdn_prefill": {"seqlens": (1, 20), "heads": (2, 4), "head_dim": (16, 24), "initial_state": True},
    "gdn_decode": {"batch": 3, "heads": (2, 4), "head_dim": (16, 24)},
    "kda_decode": {"batch": 3, "heads": (2, 4), "head_dim": (16, 24), "gate": "bounded"},
}
# Each element of a result comes of at most 21 tokens, each of some 4 sums of 24 products, of numbers below
# 8: their roundings in fp64 come to 21 * 4 * 24 * 8 * 2^-53 = 1.8e-12. Turning there and back adds less.
FP64 = 4e-12


def bases(kind: Kind, secret: bytes = b"a") -> Bases:
    return Bases(secret, kind)


def in_fp64(call: Call) -> dict[str, Tensor]:
    return {name: x.double() if x.is_floating_point() else x for name, x in call.tensors.items()}


def changed(op: str, call: Call, change: Change, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    contract = operation(op)
    conventions = resolved_conventions(contract.conventions, call.conventions)
    return {name: change(name, contract.spec(name).axes_in(conventions), x) for name, x in tensors.items()}


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("layout", ["VK", "KV"])
@pytest.mark.parametrize("qk", ["normalised", "raw"])
@pytest.mark.parametrize("op", ORACLES)
def test_the_delta_rule_does_not_notice(op: str, qk: str, layout: str, kind: Kind) -> None:
    call = synthesise(op, state_layout=layout, qk=qk, **SMALL[op])
    by_channel = op.startswith("kda")
    change = of_delta_rule(bases(kind), ("segment", "layer"), 2, by_channel=by_channel)
    inputs = in_fp64(call)
    known = {"state_layout": layout, "qk": qk}
    if by_channel:
        known |= {"gate": "bounded", "lower_bound": -5.0}
    wanted = changed(op, call, change, ORACLES[op](**inputs, **known))
    found = ORACLES[op](**changed(op, call, change, inputs), **known)
    assert wanted.keys() == found.keys()
    for name, tensor in wanted.items():
        assert float((tensor - found[name]).abs().max()) < FP64, name
    moved = changed(op, call, change, inputs)
    assert all(not torch.equal(moved[name], inputs[name]) for name in ("q", "k", "v"))
    assert torch.equal(moved["g"], inputs["g"]) != by_channel


def test_heads_have_bases_of_their_own_and_share_them_with_their_values() -> None:
    """With H = 2 and Hv = 4 the state's heads 0 and 1 turn with key head 0, 2 and 3 with key head 1."""
    change = of_delta_rule(bases(Kind.ROTATION), ("segment", "layer"), 2)
    ones = torch.ones(1, 2, 8, dtype=torch.float64)
    turned = change("k", ("T", "H", "K"), ones)[0]
    assert not torch.allclose(turned[0], turned[1])
    state = torch.eye(8, dtype=torch.float64).expand(1, 4, 8, 8)  # [slots, Hv, V, K] -> P R^T
    p_r = change("state", ("slots", "Hv", "V", "K"), state)[0]
    values = torch.ones(1, 4, 8, dtype=torch.float64)
    p = change("v", ("T", "Hv", "V"), values)[0]
    assert not any(torch.allclose(p[one], p[other]) for one in range(4) for other in range(one))
    for head in range(4):
        # P R^T R 1 = P 1
        assert float((p_r[head] @ turned[head // 2] - p[head]).abs().max()) < FP64


def test_a_rotation_is_orthogonal_and_of_its_secret() -> None:
    one, again, other = (bases(Kind.ROTATION, secret).basis(64, "x", 1) for secret in (b"a", b"a", b"b"))
    eye = torch.eye(64, dtype=torch.float64)
    matrix = one.transform(eye).T
    # 64 products of numbers below 1, in fp64.
    assert float((matrix @ matrix.T - eye).abs().max()) < 64 * 2.0**-52
    assert torch.equal(one.transform(eye), again.transform(eye))
    assert not torch.allclose(one.transform(eye), other.transform(eye))


@pytest.mark.parametrize("kind", Kind)
def test_a_basis_hangs_on_the_whole_secret(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's generators take 32 bits of their seed, which can be tried one by one: none is asked."""
    x = torch.randn(64)
    seeds = [torch.Generator().manual_seed(1 + (high << 32)) for high in (0, 9)]
    assert torch.equal(*(torch.randn(64, generator=one) for one in seeds))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a generator of torch's")

    for name in ("Generator", "manual_seed", "randn", "randperm", "randint", "rand"):
        monkeypatch.setattr(torch, name, refuse)
    secrets = [bytes(32), bytes(31) + b"\1", b"\1" + bytes(31), bytes(15) + b"\x80" + bytes(16)]
    turned = [bases(kind, secret).basis(64, "k", 0).transform(x) for secret in secrets]
    assert not any(torch.allclose(turned[a], turned[b]) for a in range(4) for b in range(a))


def test_rotations_and_permutations_are_uniform() -> None:
    """A row of an orthogonal matrix drawn uniformly is z / |z| of normal numbers z, whose direction does not
    depend on |z|: E z_1^4 = 3 and E |z|^4 = n (n + 2), so that an entry has E r^4 = 3 / (n (n + 2))."""
    n = 64
    matrix = bases(Kind.ROTATION).basis(n, "x").transform(torch.eye(n, dtype=torch.float64))
    # The fourth power of a normal number has deviation sqrt(96), so the mean of n^2 of them is off by
    # a part of sqrt(96) / 3 / n = 0.05 at one deviation; five are allowed.
    assert abs(float((matrix**4).mean()) * n * (n + 2) / 3 - 1) < 0.26
    found = [bases(Kind.PERMUTATION).basis(512, "x", part) for part in range(8)]
    assert all(isinstance(one, Permutation) for one in found)
    places = torch.stack([one.places for one in found if isinstance(one, Permutation)])
    negated = torch.stack([one.negated for one in found if isinstance(one, Permutation)])
    assert torch.equal(places.sort(dim=-1).values, torch.arange(512).expand(8, 512))
    # One feature of a permutation stays on average, with deviation 1; of 4096 signs half, with deviation 32.
    assert int((places == torch.arange(512)).sum()) < 8 + 5 * 8**0.5
    assert abs(int(negated.sum()) - 2048) < 5 * 32


def test_a_permutation_rounds_nothing() -> None:
    basis = bases(Kind.PERMUTATION).basis(64, "x")
    x = torch.randn(5, 64).bfloat16()
    moved = basis.transform(x)
    assert torch.equal(moved.abs().sort(dim=-1).values, x.abs().sort(dim=-1).values)
    assert not torch.equal(moved, x)


@pytest.mark.parametrize("layout", ["per_token_scale", "fp8_ds_mla"])
def test_codes_move_and_keep_their_scales(layout: str) -> None:
    """What the pages hold in the new order is what they held, bit for bit, negated where it is."""
    call = synthesise("swa_decode", lens=(17, 3), heads=2, cache_layout=layout, poison=False)
    change = of_window(bases(Kind.PERMUTATION), ("segment", "layer"), layout)
    moved = changed("swa_decode", call, change, dict(call.tensors))
    scale = call.tensors.get("inv_scale")
    rows = unpack(call.tensors["cache"], scale, layout, torch.float64)
    shown = unpack(moved["cache"], scale, layout, torch.float64)
    wanted = change("q", ("T", "H", "512"), rows.reshape(-1, 512)).reshape(rows.shape)
    assert torch.equal(shown, wanted)
    assert not torch.equal(shown, rows)
    # And so do the scores: sums of the same products in another order.
    q, turned = call.tensors["q"].double(), moved["q"].double()
    scores = torch.einsum("thd,nd->thn", q, rows.reshape(-1, 512))
    found = torch.einsum("thd,nd->thn", turned, shown.reshape(-1, 512))
    # 512 products, each below max|q| max|row|, rounded in fp64.
    assert float((scores - found).abs().max()) <= 512 * 2.0**-52 * 512 * float(
        q.abs().max() * rows.abs().max()
    )


def test_codes_of_one_scale_stay_together() -> None:
    basis = bases(Kind.PERMUTATION).basis(512, "x", group=64)
    assert isinstance(basis, Permutation)
    assert torch.equal(basis.places // 64, torch.arange(512) // 64)
    assert not torch.equal(basis.places, torch.arange(512))


@pytest.mark.parametrize("layout", ["per_token_scale", "fp8_ds_mla"])
def test_quantised_rows_are_not_rotated(layout: str) -> None:
    with pytest.raises(BadInputError, match=wording("share.rotation-cache")):
        of_window(bases(Kind.ROTATION), ("segment", "layer"), layout)


def test_codes_are_not_rotated_whatever_the_store_says_of_them() -> None:
    change = of_window(bases(Kind.ROTATION), ("segment", "layer"), "bfloat16")
    with pytest.raises(BadInputError, match=wording("share.rotation-refused", dtype="torch.uint8")):
        change("cache", ("blocks", "block_size", "512"), torch.zeros(1, 1, 512, dtype=torch.uint8))
