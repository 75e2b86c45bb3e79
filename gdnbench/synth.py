# SPDX-License-Identifier: Apache-2.0
"""Made records: inputs of any operation by its own options, outputs by its same-dtype torch kernel."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from gdnbench.bits import meta_of
from gdnbench.errors import BadInputError
from gdnbench.near_names import nearest_first
from gdnbench.ops import operation
from gdnbench.options import parse_options
from gdnbench.pools import checksum, digits, untouched_rows
from gdnbench.record import Pool, RecordDraft, RecordInfo, Status, TensorDraft
from gdnbench_kernels.contract import Call, ContractError, Operation, Role
from gdnbench_kernels.run import run_kernel
from gdnbench_kernels.validate import resolved_conventions, resolved_scalars

RECORDED_KERNEL = "torch"
LAYER = "synth"


def synthesise(op: str, **options: Any) -> Call:
    """A valid call of operation `op`; the options are those of its `synth`.

    BadInputError for an operation or option that there is not, or a value that makes no valid call.
    """
    found = operation(op)
    known = inspect.signature(found.synth).parameters
    for name in options:
        if name not in known:
            raise BadInputError(f"{op} has no synth option {name!r}; it has {nearest_first(name, known)}")
    try:
        call = found.synth(**options)
        found.validate(call)
    except ContractError as error:
        raise BadInputError(str(error)) from error
    except (RuntimeError, ArithmeticError, TypeError, ValueError) as error:
        # Torch's, of sizes and seeds that no tensor or generator can have.
        raise _cannot_be_made(op, error) from error
    return call


def _cannot_be_made(op: str, error: Exception) -> BadInputError:
    return BadInputError(f"{op} cannot be made with these options: {str(error).splitlines()[0]}")


def options_from_text(op: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """Options of `op`'s synth from text, see `gdnbench.options`."""
    return parse_options(operation(op).synth, texts, op, "synth")


def draft(op: str, call: Call, *, index: int = 0) -> RecordDraft:
    """The record of `call`, recorded outputs and mutated tensors being those of the kernel `RECORDED_KERNEL`.

    `index` is the record's call and step number. The call is in the contract (see `synthesise`).
    """
    found = operation(op)
    try:
        outputs = run_kernel(found, RECORDED_KERNEL, call)
    except ArithmeticError as error:  # heads of no elements have no scale
        raise _cannot_be_made(op, error) from error
    info = RecordInfo(
        op=op,
        target=found.kernels[RECORDED_KERNEL].target,
        layer=LAYER,
        layer_index=None,
        call=index,
        step=index,
        status=Status.COMPLETE,
        scalars=resolved_scalars(found.scalars, call),
        conventions={},
    )
    return drafted(found, call, info, outputs)


def draft_inputs(op: str, call: Call, name: str, index: int = 0, *, whole: bool = False) -> RecordDraft:
    """The record of `call` without outputs; its layer is `name`. `whole`: pools keep all their rows."""
    found = operation(op)
    info = RecordInfo(
        op=op,
        target="",
        layer=name,
        layer_index=None,
        call=index,
        step=0,
        status=Status.COMPLETE,
        scalars=resolved_scalars(found.scalars, call),
        conventions={},
    )
    return drafted(found, call, info, {}, whole=whole)


def drafted(
    found: Operation,
    call: Call,
    info: RecordInfo,
    outputs: Mapping[str, Tensor],
    *,
    whole: bool = False,
) -> RecordDraft:
    """The record of `call` with those outputs and mutated tensors, if any. What `info` says of conventions
    and pools is the call's. Of a pool the rows that the call may access are stored, or all if `whole`."""
    conventions = resolved_conventions(found.conventions, call.conventions)
    touched = {} if whole else found.touched(call)
    rows = {name: indices.cpu() for name, indices in touched.items()}
    inputs = {
        name: tensor for name, tensor in call.tensors.items() if found.spec(name).role is not Role.OUTPUT
    }
    pools = {name: _pool(inputs[name], outputs.get(name), touched) for name, touched in rows.items()}
    return RecordDraft(
        replace(info, conventions=conventions, pools=pools),
        {name: _tensor(found, name, tensor, rows.get(name), conventions) for name, tensor in inputs.items()},
        {name: _tensor(found, name, tensor, rows.get(name), conventions) for name, tensor in outputs.items()},
    )


def _pool(before: Tensor, after: Tensor | None, touched: Tensor) -> Pool:
    """What is said of a pool; checksums of the other rows where it is written to."""
    slots, rows = len(before), tuple(touched.tolist())
    if after is None:
        return Pool(slots, rows)
    untouched = untouched_rows(slots, touched)
    return Pool(slots, rows, *(digits(checksum(pool, untouched)) for pool in (before, after)))


def _tensor(
    found: Operation, name: str, tensor: Tensor, rows: Tensor | None, conventions: Mapping[str, str]
) -> TensorDraft:
    data = (tensor if rows is None else tensor[rows]).contiguous()
    return TensorDraft(data, meta_of(data, found.spec(name).axes_in(conventions), tensor))
