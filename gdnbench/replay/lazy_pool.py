# SPDX-License-Identifier: Apache-2.0
"""A large pool of which a few rows were stored: it has all slots, and memory for the stored rows only.

On the CPU the pool is anonymous memory, which the system allocates page by page at the first write. A GPU has
no such memory, so there the pool is as large as the caller's was.
"""

from __future__ import annotations

import math
import mmap

import torch
from torch import Tensor

from gdnbench.bits import as_integers
from gdnbench.errors import CannotRunError
from gdnbench.record import Pool, TensorMeta
from gdnbench.replay.strides import ALIGNMENT, Held
from gdnbench.units import human_bytes


def sparse_pool(rows: Tensor, pool: Pool, meta: TensorMeta, device: torch.device) -> Held:
    """The pool that `meta` describes a part of, `rows` at their slots, zeros at all others.

    Its rows lie as far apart as the caller's did. Within a row only contiguous elements are rebuilt, and the
    storage offset is reduced modulo ALIGNMENT; the note says so. CannotRunError for a pool that does not fit.
    """
    shape = (pool.slots, *rows.shape[1:])
    inner = rows.stride()[1:]
    length = math.prod(rows.shape[1:])
    step, offset, note = length, 0, None
    if meta.caller_shape == shape and meta.caller_strides[1:] == inner and meta.caller_strides[0] >= length:
        step, offset = meta.caller_strides[0], meta.caller_offset % ALIGNMENT
        if offset != meta.caller_offset:
            note = f"storage offset {meta.caller_offset} reduced to {offset} to save memory"
    elif meta.caller_strides != (length, *inner):
        note = f"strides {list(meta.caller_strides)} not rebuilt: rows of this pool are not contiguous"
    storage = _zeros(offset + (pool.slots - 1) * step + length, rows.dtype, device)
    whole = storage.as_strided(shape, (step, *inner), offset)
    slots = torch.tensor(pool.rows, dtype=torch.long, device=device)
    as_integers(whole)[slots] = as_integers(rows).to(device)  # as bits: fp8 cannot be indexed
    return Held(whole, note)


def _zeros(elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    nbytes = elements * dtype.itemsize
    try:
        if device.type != "cpu":
            return torch.zeros(elements, dtype=dtype, device=device)
        return torch.frombuffer(mmap.mmap(-1, nbytes), dtype=torch.uint8).view(dtype)
    except (OSError, OverflowError, torch.OutOfMemoryError):  # of mmap, twice, and of a GPU
        raise CannotRunError(f"a pool of {human_bytes(nbytes)} needs more memory than {device} has") from None
