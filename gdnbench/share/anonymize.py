# SPDX-License-Identifier: Apache-2.0
"""Anonymises the tensors of a record by expressing them in another basis; see `transforms`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gdnbench.errors import BadInputError
from gdnbench.share.transforms import Bases, Basis, Kind, Permutation
from gdnbench.store.reader import StoredRecord
from gdnbench_kernels.swa_decode.layouts import DATA_BYTES, CacheLayout
from gdnbench_kernels.swa_decode.sizes import GROUP, HEAD_DIM, NOPE_DIM

Hidden = tuple[dict[str, Tensor], dict[str, Tensor]]
"""Tensors before and after the call."""
KDA = ("kda_prefill", "kda_decode")
DELTA_RULES = ("gdn_prefill", "gdn_decode", *KDA)
CHANNEL_GATES = ("g", "dt_bias")
"""The tensors of KDA with a number, not a coordinate, for each channel of a key."""
Change = Callable[[str, Sequence[str], Tensor], Tensor]
"""A function of a tensor's name, axes and elements: the tensor in another basis, in its dtype."""


def anonymized_tensors(record: StoredRecord, bases: Bases) -> Hidden:
    """The tensors of `record` in other bases, one for each process, layer and head.

    BadInputError for an operation without a derived transform, or a layout whose codes a transform cannot
    keep.
    """
    where = record.segment.name, record.info.layer
    if record.info.op in DELTA_RULES:
        if "k" not in record.line.before:
            raise BadInputError(f"record {record.key} has no k, by whose heads the others go; leave it out")
        keys = record.line.before["k"].meta
        key_heads = keys.shape[keys.axes.index("H")]
        change = of_delta_rule(bases, where, key_heads, by_channel=record.info.op in KDA)
    elif record.info.op == "swa_decode":
        change = of_window(bases, where, record.info.conventions.get("cache_layout", ""))
    elif record.info.op == "v4_decode":
        extra = record.info.conventions.get("extra_layout", "") if "extra_cache" in record.before else None
        change = of_window(bases, where, record.info.conventions.get("cache_layout", ""), extra)
    else:
        raise BadInputError(f"--hide {bases.kind} knows nothing of {record.info.op}; leave it out")
    before, after = (
        {name: change(name, handle.meta.axes, handle.read()).contiguous() for name, handle in handles.items()}
        for handles in (record.before, record.after)
    )
    return before, after


def of_delta_rule(bases: Bases, where: Sequence[str], key_heads: int, *, by_channel: bool = False) -> Change:
    """Transform for the gated delta rule: one basis for each key head (q, k, the K axis of states), one for
    each value head (everything with V). `by_channel`: gates belong to channels of a key, so that the basis of
    a key head is a signed permutation, and gates move with it."""
    of_keys = replace(bases, kind=Kind.PERMUTATION) if by_channel else bases

    def key_basis(name: str, head: int, size: int) -> Basis:
        basis = of_keys.basis(size, *where, "k", head)
        if name in CHANNEL_GATES and isinstance(basis, Permutation):
            return replace(basis, negated=torch.zeros_like(basis.negated))
        return basis

    def change(name: str, axes: Sequence[str], x: Tensor) -> Tensor:
        x = by_head(x, axes, "K", key_heads, lambda head, size: key_basis(name, head, size))
        return by_head(x, axes, "V", None, lambda head, size: bases.basis(size, *where, "v", head))

    return change


def of_window(bases: Bases, where: Sequence[str], layout: str, extra: str | None = None) -> Change:
    """Transform for attention over latent rows: one basis for q, the rows of both caches and o. `extra`: the
    layout of the extra cache, None without one. BadInputError for a rotation of quantised rows."""
    layouts = {"cache": layout} | ({} if extra is None else {"extra_cache": extra})
    for one in layouts.values():
        if bases.kind is Kind.ROTATION and one != CacheLayout.BFLOAT16:
            raise BadInputError(
                f"--hide rotation would quantise a {one} cache anew, another failure: use --hide permutation"
            )
    grouped = CacheLayout.FP8_DS_MLA in layouts.values()
    basis = bases.basis(HEAD_DIM, *where, group=GROUP if grouped else None)

    def change(name: str, axes: Sequence[str], x: Tensor) -> Tensor:
        if layouts.get(name) == CacheLayout.FP8_DS_MLA and isinstance(basis, Permutation):
            return _pages(x, basis)
        return _transformed(basis, x) if str(HEAD_DIM) in axes else x

    return change


def _transformed(basis: Basis, x: Tensor) -> Tensor:
    """`x` [..., D] in `basis`; quantised codes by a permutation only."""
    if x.dtype in (torch.uint8, torch.float8_e4m3fn):
        if not isinstance(basis, Permutation):  # an untrusted store may have codes anywhere
            raise BadInputError(
                f"--hide rotation would quantise {x.dtype} codes anew: use --hide permutation"
            )
        return basis.transform_codes(x.view(torch.uint8)).view(x.dtype)
    return basis.transform(x)


def _pages(pages: Tensor, basis: Permutation) -> Tensor:
    """Permute fp8_ds_mla pages, uint8 [blocks, block_size, 584].

    e4m3 codes move within the 64 that share a scale; the bfloat16 rope part moves within itself. See
    kernels/gdnbench_kernels/swa_decode/layouts.py.
    """
    blocks, size, _ = pages.shape
    flat = pages.clone().reshape(blocks, -1)
    data = flat[:, : size * DATA_BYTES].reshape(blocks, size, DATA_BYTES)
    nope = Permutation(basis.places[:NOPE_DIM], basis.negated[:NOPE_DIM])
    rope = Permutation(basis.places[NOPE_DIM:] - NOPE_DIM, basis.negated[NOPE_DIM:])
    codes = nope.transform_codes(data[..., :NOPE_DIM])
    turned = rope.transform(data[..., NOPE_DIM:].contiguous().view(torch.bfloat16)).view(torch.uint8)
    flat[:, : size * DATA_BYTES] = torch.cat([codes, turned], dim=-1).reshape(blocks, -1)
    return flat.reshape(pages.shape)


def by_head(
    data: Tensor, axes: Sequence[str], axis: str, key_heads: int | None, basis: Callable[[int, int], Basis]
) -> Tensor:
    """`data` with each head's `axis` in that head's basis; with `key_heads`, the basis of key head hv // (Hv
    // H)."""
    name = next((one for one in ("H", "Hv") if one in axes), None)
    if axis not in axes or name is None or not data.numel():
        return data
    at = axes.index(name)
    heads = data.shape[at]
    ratio = heads // key_heads if key_heads and name == "Hv" else 1
    moved = data.movedim((at, axes.index(axis)), (0, -1))  # [heads, ..., D]
    turned = [_transformed(basis(head // ratio, moved.shape[-1]), moved[head]) for head in range(heads)]
    return torch.stack(turned).movedim((0, -1), (at, axes.index(axis)))
