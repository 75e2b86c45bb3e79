# SPDX-License-Identifier: Apache-2.0
"""A recorded call: what the store keeps besides the elements, and how a draft of one is handed to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


ACCESS_LOG: Final = "access_log"
"""In the place of an operation: the record is a piece of an access log (`gdnbench.store.access_pieces`)."""


class Status(StrEnum):
    COMPLETE = "complete"
    UNFINISHED = "unfinished"  # inputs were written first (--sync) and the call never came back


class When(StrEnum):
    BEFORE = "before"  # inputs, and mutated tensors as they were
    AFTER = "after"  # outputs, and mutated tensors as the call left them


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """How a recorded tensor is stored, and how the caller held it. Sizes and strides are in elements."""

    dtype: str  # torch's name without the prefix: bfloat16, float8_e4m3fn, float8_e8m0fnu, int32, ...
    shape: tuple[int, ...]  # as stored: contiguous, in the contract's axes
    axes: tuple[str, ...]
    caller_shape: tuple[int, ...]
    caller_strides: tuple[int, ...]
    caller_offset: int  # storage offset
    device: str


@dataclass(frozen=True, slots=True)
class Pool:
    """A captured pool: of `slots` rows the caller holds, only `rows` are stored, in this order."""

    slots: int
    rows: tuple[int, ...]
    untouched_before: str | None = None  # checksum over the rows not stored
    untouched_after: str | None = None


@dataclass(frozen=True, slots=True)
class RecordInfo:
    """A call but for its elements. `step` counts the calls of a layer, `call` those of the process."""

    op: str
    target: str  # the function that was called, "package.module:function", or the kernel that ran
    layer: str
    layer_index: int | None
    call: int
    step: int
    status: Status
    scalars: Mapping[str, Any]
    conventions: Mapping[str, str]
    pools: Mapping[str, Pool] = field(default_factory=dict)
    dispatch: Mapping[str, Any] = field(default_factory=dict)  # what else decided how the call ran
    run: Mapping[str, Any] = field(default_factory=dict)  # of a replayed one: kernel, source, outcome

    @property
    def has_layer(self) -> bool:
        """Whether the call's layer is known. Otherwise `layer` is the function, whose calls may be those of
        any layer."""
        return self.layer_index is not None or self.layer != self.target.rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class TensorDraft:
    """A tensor to be stored: contiguous CPU elements and their description."""

    data: Tensor
    meta: TensorMeta


@dataclass(frozen=True, slots=True)
class RecordDraft:
    info: RecordInfo
    before: Mapping[str, TensorDraft]
    after: Mapping[str, TensorDraft]


@dataclass(frozen=True, slots=True)
class BitsDraft:
    """A tensor of a journal, to be stored: its bits, see `gdnbench.bits`, and its description."""

    bits: NDArray[np.generic]
    meta: TensorMeta


@dataclass(frozen=True, slots=True)
class JournalDraft:
    """A record of a journal. It needs no torch: a sealer runs beside every captured process, and importing
    torch would cost it more than sealing a small capture."""

    info: RecordInfo
    before: Mapping[str, BitsDraft]
    after: Mapping[str, BitsDraft]
