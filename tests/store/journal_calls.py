# SPDX-License-Identifier: Apache-2.0
"""Deterministic calls: call `n` can be made and checked bit for bit without the code under test.

Their sizes differ, one payload is empty and some have odd lengths; the bits are random, so every NaN payload
and subnormal comes along. State `n + 1` leaves call `n` and enters call `n + 1`, as in decode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from gdnbench.record import BitsDraft, Pool, RecordDraft, RecordInfo, Status, TensorDraft, TensorMeta

Bits = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]

_STATE = (6, 32, 32)  # fp32, 24 KiB: large enough to be carried from step to step


class ReadTensor(Protocol):
    def read(self) -> Tensor: ...


def _random(key: int, salt: int, nbytes: int) -> Bits:
    return np.frombuffer(
        np.random.Generator(np.random.Philox(key=[key, salt])).bytes(nbytes), np.uint8
    ).copy()


def _shapes(n: int) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """name -> (dtype, shape, bytes); some of `v` are larger than a row of a shared array."""
    tokens = 600 if n % 11 == 5 else n % 4
    return {
        "q": ("bfloat16", (1, 2, 128), 512),
        "v": ("bfloat16", (tokens, 2, 128), tokens * 512),
        "code": ("float8_e4m3fn", (n % 13,), n % 13),
        "scale": ("float32", (), 4),
    }


def expected(n: int) -> dict[str, dict[str, Bits]]:
    """The bytes of every tensor of call `n`, by when and name."""
    before = {
        name: _random(n, salt, nbytes)
        for salt, (name, (_, _, nbytes)) in enumerate(sorted(_shapes(n).items()))
    }
    state_bytes = 4 * int(np.prod(_STATE))
    return {
        "before": {**before, "state": _random(n, 100, state_bytes)},
        "after": {"o": _random(n, 99, 512), "state": _random(n + 1, 100, state_bytes)},
    }


def info(n: int, status: Status = Status.COMPLETE) -> RecordInfo:
    return RecordInfo(
        op="gdn_decode",
        target="somewhere:function",
        layer="layers.3",
        layer_index=3,
        call=n,
        step=n,
        status=status,
        scalars={"scale": 0.1 + n, "use_norm": True, "missing": None},
        conventions={"state_layout": "kv"},
        pools={"state": Pool(64, (3, 9), "before", "after")},
        dispatch={"branch": ["decode", n]},
    )


def tensors(n: int, when: str) -> dict[str, TensorDraft]:
    described = {**_shapes(n), "state": ("float32", _STATE, 0), "o": ("bfloat16", (1, 2, 128), 0)}
    return {
        name: _draft(bits, described[name][0], described[name][1]) for name, bits in expected(n)[when].items()
    }


def _draft(bits: Bits, dtype: str, shape: tuple[int, ...]) -> TensorDraft:
    logical = getattr(torch, dtype)
    data = (
        torch.from_numpy(bits).view(logical).reshape(shape)
        if bits.size
        else torch.empty(shape, dtype=logical)
    )
    axes = tuple(f"axis{i}" for i in range(len(shape)))
    return TensorDraft(data, TensorMeta(dtype, shape, axes, shape, data.stride(), 7, "cuda:1"))


def draft(n: int) -> RecordDraft:
    return RecordDraft(info(n), tensors(n, "before"), tensors(n, "after"))


def tensors_of(drafts: Mapping[str, BitsDraft]) -> dict[str, Tensor]:
    """The tensors whose bits a journal held."""
    return {
        name: torch.from_numpy(draft.bits.copy()).view(getattr(torch, draft.meta.dtype))
        for name, draft in drafts.items()
    }


def bits_of(tensor: Tensor) -> Bits:
    """The bytes of a tensor, through numpy's own dtypes and ml_dtypes."""
    dtype = {"bfloat16": ml_dtypes.bfloat16, "float8_e4m3fn": ml_dtypes.float8_e4m3fn}
    name = str(tensor.dtype).removeprefix("torch.")
    if name in dtype:
        plain = (
            tensor.contiguous()
            .view(torch.int16 if name == "bfloat16" else torch.uint8)
            .numpy()
            .view(dtype[name])
        )
    else:
        plain = tensor.numpy()
    return np.frombuffer(plain.tobytes(), np.uint8)


def assert_is_call(found: RecordInfo, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
    """`found` and its tensors are those of call `found.call`, every bit."""
    n = found.call
    assert found == info(n, found.status)
    wanted = expected(n)
    if found.status is Status.UNFINISHED:
        wanted["after"] = {}
    for when, tensors_read in (("before", before), ("after", after)):
        assert tensors_read.keys() == wanted[when].keys()
        for name, tensor in tensors_read.items():
            assert np.array_equal(bits_of(tensor), wanted[when][name]), f"call {n}: {name} {when} differs"
