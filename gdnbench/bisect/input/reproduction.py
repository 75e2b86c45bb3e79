# SPDX-License-Identifier: Apache-2.0
"""Runs a kernel on a stored record and holds it to a reference. With torch, numpy and zarr alone: its text
becomes part of the files that `script` writes, which run without this project."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr
from torch import Tensor

BAD_INPUT, CANNOT_RUN = 2, 3


class NotJudgedError(Exception):
    """The kernel could not be judged. `status`: BAD_INPUT if the input is wrong, CANNOT_RUN if hardware or a
    package is missing."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def exit_status(reproduced: Callable[[], int]) -> int:
    """The exit status: that of `reproduced`, or of why it cannot be told."""
    try:
        return reproduced()
    except NotJudgedError as error:
        print(shown(error), file=sys.stderr)
        return error.status


def shown(text: object) -> str:
    """One line that does nothing to a terminal: an error may quote the store of a stranger."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def record_of(store: Path) -> dict[str, Any]:
    """The one record of a store: JSON that describes every tensor. NotJudgedError if there is none."""
    try:
        segments: Any = zarr.open_group(store, mode="r")["segments"]
        lines = [
            bytes(batch["records"][:]).splitlines()[0]
            for _, segment in segments.groups()
            for name, batch in segment.groups()
            if name != "end"
        ]
        record: dict[str, Any] = json.loads(lines[0])
    except Exception as error:
        raise NotJudgedError(
            BAD_INPUT, f"{store} holds no record ({type(error).__name__}); put the store beside this file"
        ) from None
    return record


def stored(store: Path, tensor: Mapping[str, Any]) -> Tensor:
    """A tensor, bit by bit."""
    place, _, row = tensor["location"].partition("#")
    array: Any = zarr.open_array(store / "segments" / place, mode="r")
    bits = np.array(array[int(row)] if row else array[...])
    return torch.from_numpy(bits).view(getattr(torch, tensor["dtype"])).reshape(tensor["shape"])


def integers(tensor: Tensor) -> Tensor:
    """The bits of a tensor, as a view."""
    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(sizes[tensor.element_size()])


def poisoned(elements: int, dtype: torch.dtype) -> Tensor:
    """Memory in which every float is NaN."""
    return torch.full((elements * dtype.itemsize,), 0xFF, dtype=torch.uint8).view(dtype)


def as_called(store: Path, record: Mapping[str, Any], name: str, device: str) -> Tensor:
    """A tensor as the kernel got it: all slots of a pool, the caller's strides."""
    tensor, pool = record["before"][name], record["info"]["pools"].get(name)
    values = stored(store, tensor)
    if pool is not None:
        whole = poisoned(pool["slots"] * math.prod(values.shape[1:]), values.dtype)
        whole = whole.view(pool["slots"], *values.shape[1:])
        integers(whole)[pool["rows"]] = integers(values)
        values = whole
    if list(values.shape) == tensor["caller_shape"] and values.numel():
        strides, offset = tensor["caller_strides"], tensor["caller_offset"]
        reach = 1 + sum((size - 1) * stride for size, stride in zip(values.shape, strides, strict=True))
        memory = poisoned(offset + reach, values.dtype)
        bits = np.lib.stride_tricks.as_strided(
            integers(memory)[offset:].numpy(), values.shape, [stride * values.itemsize for stride in strides]
        )
        bits[...] = integers(values).numpy()
        values = memory.to(device).as_strided(values.shape, strides, offset)
    return values.to(device)


def unplain(value: Any) -> Any:
    """A scalar as it was: JSON has no infinity."""
    return float(value["$float"]) if isinstance(value, dict) else value


def function_of(name: str) -> Callable[..., Any]:
    """ "module:function" or "file.py:function", looked for here and beside this file. NotJudgedError if it is
    not there, or what it imports is not."""
    place, _, function = name.rpartition(":")
    if not place:
        raise NotJudgedError(
            BAD_INPUT, f"{name!r} names no kernel; write module:function or FILE.py:function"
        )
    sys.path[:0] = ["", str(Path(__file__).parent)]
    try:
        found: Any = module_of(place)
    except NotJudgedError:
        raise
    except (Exception, SystemExit) as error:
        absent = isinstance(error, ModuleNotFoundError) and f"{place}.".startswith(f"{error.name}.")
        raise NotJudgedError(
            BAD_INPUT if absent else CANNOT_RUN,
            f"{place} cannot be imported: {type(error).__name__}: {error}",
        ) from None
    try:
        for part in function.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise NotJudgedError(BAD_INPUT, f"{place} has no {function!r}; name the kernel as it does") from None
    kernel: Callable[..., Any] = found
    return kernel


def module_of(place: str) -> Any:
    """As imported: by its name, or a file."""
    if not place.endswith(".py"):
        return importlib.import_module(place)
    here = [path for path in (Path(place), Path(__file__).parent / Path(place).name) if path.is_file()]
    if not here:
        raise NotJudgedError(
            BAD_INPUT, f"{place} is not here; put it beside this file, or name the kernel: FILE.py:NAME"
        )
    spec = importlib.util.spec_from_file_location("kernel_under_test", here[0])
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ran(
    kernel: Callable[..., Any], arguments: Mapping[str, Any], outputs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Outputs by name: buffers that the kernel filled, or what it returned instead."""
    known = inspect.signature(kernel).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    given = {**arguments, **outputs}
    returned = kernel(**{name: value for name, value in given.items() if takes_all or name in known})
    if returned is None:
        returned = {}
    if not isinstance(returned, Mapping):
        values = returned if isinstance(returned, tuple | list) else (returned,)
        returned = dict(zip(outputs, values, strict=False))
    return {**outputs, **{name: value for name, value in returned.items() if value is not None}}


def wrong(
    name: str, found: Tensor, exact: Tensor, dtype: str, limit: Mapping[str, float], unowed: Tensor | None
) -> str | None:
    """What is wrong with a tensor. `unowed`: rows that are not looked at."""
    if found.shape != exact.shape:
        return f"{name} has shape {list(found.shape)}, not {list(exact.shape)}"
    if found.dtype != getattr(torch, dtype):
        return f"{name} has dtype {str(found.dtype).removeprefix('torch.')}, not {dtype}"
    x, y = found.double().cpu(), exact.cpu()
    kept = torch.ones(y.shape, dtype=torch.bool)
    if unowed is not None:
        kept[unowed.cpu()] = False
    spoilt = kept & ((x.isnan() != y.isnan()) | ((x != y) & (x.isinf() | y.isinf())))
    if bool(spoilt.any()):
        return (
            f"{name}: {int(spoilt.sum())} elements are not finite, or ought not to be,"
            f" first {spoilt.nonzero()[0].tolist()}"
        )
    kept &= y.isfinite()
    error = (x - y)[kept].abs()
    rms = float(error.square().mean().sqrt()) if len(error) else 0.0
    largest = float(error.max()) if len(error) else 0.0
    print(f"{name}: RMS error {rms:.3g}, largest {largest:.3g}; limits {json.dumps(dict(limit))}")
    if "bitwise" in limit:
        unequal = kept & (found.cpu() != y.to(found.dtype))
        return f"{name}: {int(unequal.sum())} elements differ in their bits" if bool(unequal.any()) else None
    if "absolute" in limit:
        beyond = error > limit["absolute"] + limit["relative"] * y[kept].abs()
        return f"{name}: {int(beyond.sum())} elements beyond the limit" if bool(beyond.any()) else None
    over = [what for what, value in (("rms", rms), ("largest", largest)) if value > limit.get(what, math.inf)]
    return f"{name}: over the limit of {' and '.join(over)}" if over else None


HERE = "--here"
OWN = 64
"""Added to the exit status of a process that `apart` starts: a smaller one is the kernel's doing."""


def apart(script: str, kernel: str, seconds: float) -> int:
    """The exit status of `script` in a process of its own, which the kernel may end, or hang in: then 1."""
    try:
        ended = subprocess.run([sys.executable, script, kernel, HERE], timeout=seconds).returncode
    except subprocess.TimeoutExpired:
        print(f"no answer within {seconds:g} s")
    else:
        if OWN <= ended <= OWN + CANNOT_RUN:
            return ended - OWN
        print(f"the process ended by {f'signal {-ended}' if ended < 0 else f'exit status {ended}'}")
    print("it reproduces")
    return 1


def reproduce(
    store: Path,
    kernel: str,
    reference: Callable[..., dict[str, Tensor]],
    unowed: Callable[..., dict[str, Tensor]],
    outputs: Mapping[str, tuple[tuple[int, ...], str]],
    limits: Mapping[str, Mapping[str, float]],
    takes: Mapping[str, tuple[str, ...]],
    device: str,
) -> int:
    """Exit status: 1 where the failure is there, 0 where it is not, 2 where the kernel takes something else.
    NotJudgedError if that cannot be told.

    `outputs`: shapes and dtypes of the buffers. `takes`: values of conventions that the kernel takes.
    """
    record = record_of(store)
    if device == "cuda" and not torch.cuda.is_available():
        raise NotJudgedError(CANNOT_RUN, "torch finds no GPU here, which the kernel needs")
    conventions = record["info"]["conventions"]
    scalars = {name: unplain(value) for name, value in record["info"]["scalars"].items()}
    call = {name: as_called(store, record, name, device) for name in record["before"]}
    exact = reference(**{name: tensor.clone() for name, tensor in call.items()}, **scalars, **conventions)
    free = unowed(**call)
    function = function_of(kernel)
    declared = {
        name: (value,) if isinstance(value, str) else tuple(value)
        for name, value in getattr(function, "conventions", {}).items()
    }
    for name, value in conventions.items():
        accepted = {**takes, **declared}.get(name, (value,))
        if value not in accepted:
            print(shown(f"the kernel takes {name} as {' or '.join(accepted)}; this record has {value}"))
            return BAD_INPUT
    before = {name: tensor.clone() for name, tensor in call.items()}
    buffers = {
        name: poisoned(math.prod(shape), getattr(torch, dtype)).view(shape).to(device)
        for name, (shape, dtype) in outputs.items()
    }
    try:
        with torch.no_grad():
            found = ran(function, {**conventions, **scalars, **call}, buffers)
        if device == "cuda":
            torch.cuda.synchronize()
    except Exception as error:
        print(shown(f"the kernel raised {type(error).__name__}: {error}"))
        return 1
    bad = []
    for name, tensor in before.items():
        if name not in exact and not torch.equal(integers(call[name]), integers(tensor)):
            bad.append(f"input {name} was written to")
    for name, tensor in exact.items():
        result = found.get(name, call.get(name))
        assert result is not None
        if name in before:  # a pool: slots that the call does not touch keep their bits
            rows = torch.ones(len(tensor), dtype=torch.bool)
            rows[record["info"]["pools"].get(name, {"rows": []})["rows"]] = False
            if not torch.equal(integers(result)[rows], integers(before[name])[rows]):
                bad.append(f"{name}: slots were written that the call must not touch")
        dtype = outputs[name][1] if name in outputs else record["before"][name]["dtype"]
        bad += filter(None, [wrong(name, result, tensor, dtype, limits.get(name, {}), free.get(name))])
    for line in bad:
        print(shown(line))
    print("it reproduces" if bad else "it does not reproduce")
    return 1 if bad else 0
