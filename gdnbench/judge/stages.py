# SPDX-License-Identifier: Apache-2.0
"""Judges the intermediate tensors (stages) of a kernel, to find the first stage that is wrong.

Each stage is judged by the rule for outputs (see `tensor`), with the staged fp64 form as oracle and torch's
staged kernel as yardstick, and by the operation's own limit and leeway for the stage. A kernel may keep a
stage in another float dtype than torch: both are then judged in the dtype that holds both, unless the
contract names the dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from gdnbench.judge.block_stats import Tolerance
from gdnbench.judge.by_tensor import ByTensor
from gdnbench.judge.record import YARDSTICK, covered_by
from gdnbench.judge.result import LimitCheck, Side, TensorResult
from gdnbench.judge.row_source import Memory
from gdnbench.judge.rule import Bitwise, Bound, Rule
from gdnbench.judge.tensor import Subject, judge, judge_against_target, missing_tensor, show_difference
from gdnbench.record import When
from gdnbench_kernels.contract import Call, Limit, Operation, Region
from gdnbench_kernels.run import run_kernel
from gdnbench_kernels.validate import dtype_name

STAGED_ORACLE = "reference_staged"

Leeway = Callable[[], Tensor | None]
"""By how much each element of a stage may be off besides its bound; computed for stages that fail without."""


def judge_stages(
    operation: Operation,
    call: Call,
    filled: Mapping[str, Tensor],
    rule: Rule | ByTensor,
    other: Mapping[str, Tensor] | None = None,
    *,
    grids: bool = False,
    oracle: Mapping[str, Tensor] | None = None,
) -> tuple[TensorResult, ...]:
    """Results for the stages and outputs in `filled`, in the contract's order; `call` is the kernel's input.

    `other`: the stages of a second kernel; without it the oracle is the other side. `filled` and `other` are
    on the CPU; oracle and torch run on the call's device. `grids`: see `Judge`. `oracle`: the result of
    `exact_stages`, to avoid computing it twice.
    """
    if isinstance(rule, ByTensor):
        return rule.pick(
            operation.name,
            lambda one: judge_stages(operation, call, filled, one, other, grids=grids, oracle=oracle),
        )
    yardstick: dict[str, Tensor] = {}
    bound = rule if isinstance(rule, Bound) else None
    filled = {name: in_named_dtype(operation, name, tensor) for name, tensor in filled.items()}
    if other is not None:
        other = {name: in_named_dtype(operation, name, tensor) for name, tensor in other.items()}
    if oracle is None:
        oracle = exact_stages(operation, call) if bound is not None or other is None else {}
    if bound is not None:
        yardstick = _with_stages(operation, YARDSTICK, call)
    results: list[TensorResult] = []
    for name in (*(stage.tensor.name for stage in operation.stages), *operation.outputs(call)):
        if name not in filled:
            continue
        subject, tensor = replace(stage_subject(operation, call, name), grid=grids), filled[name]
        if bound is not None:
            limit = operation.stage_limit(call, name)
            leeway = partial(operation.stage_leeway, call, name, oracle)
            given = (oracle[name], yardstick[name], bound, limit, leeway)
            results.append(judge_stage(subject, tensor, *given))
            if other is not None:
                results += _against(subject, tensor, other, *given)
        elif other is not None and name not in other:
            results.append(_lacking(subject))
        else:
            assert not isinstance(rule, Bound)
            results.append(
                judge_against_exact(subject, tensor, (oracle if other is None else other)[name], rule)
            )
    stages = {stage.tensor.name for stage in operation.stages}
    return tuple(replace(result, stage=result.tensor in stages) for result in results)


def exact_stages(operation: Operation, call: Call) -> dict[str, Tensor]:
    """The exact stages and outputs for a kernel's input `call`: fp64, on the CPU."""
    return _with_stages(operation, STAGED_ORACLE, operation.stage_call(call))


def _with_stages(operation: Operation, kernel: str, call: Call) -> dict[str, Tensor]:
    """Stages and outputs of a listed kernel, on the CPU."""
    stages: dict[str, Tensor] = {}
    outputs = run_kernel(operation, kernel, call, stages)
    return {name: tensor.cpu() for name, tensor in {**stages, **outputs}.items()}


def in_named_dtype(operation: Operation, name: str, tensor: Tensor) -> Tensor:
    """`tensor` rounded to the dtype that the contract names for stage `name`, if it names one."""
    for stage in operation.stages:
        named = getattr(torch, stage.rounded_to, None)  # None: rounded_to names a tensor
        if stage.tensor.name == name and isinstance(named, torch.dtype) and tensor.is_floating_point():
            return tensor.to(named)
    return tensor


def stage_subject(operation: Operation, call: Call, name: str) -> Subject:
    """The subject for stage `name`. Two equal last axes are renamed to row and column."""
    axes = operation.spec(name).axes_in(call.conventions)
    if len(axes) > 1 and axes[-2] == axes[-1]:
        axes = (*axes[:-2], "row", "column")
    return Subject(name, When.AFTER, operation.partition(call, name), axes)


def judge_stage(
    subject: Subject,
    tensor: Tensor,
    oracle: Tensor,
    yardstick: Tensor,
    bound: Bound,
    limit: Limit | None,
    leeway: Leeway | None = None,
) -> TensorResult:
    """Judge one stage by its limit and, unless the limit replaces it, by `bound`. A stage that fails is
    judged once more without the part of its error that `leeway` covers."""
    if not tensor.is_floating_point():
        reason = f"dtype {dtype_name(tensor.dtype)}; a stage is of a float dtype"
        return missing_tensor(subject.name, subject.when, subject.side, reason)
    yardstick = _excused(subject, oracle, yardstick)
    common = torch.promote_types(tensor.dtype, yardstick.dtype)
    ratio = None if limit is not None and limit.instead else bound
    added = limit.relative if limit is not None and limit.added else 0.0

    def judged(exact: Tensor, torchs: Tensor) -> TensorResult:
        found = judge(subject, tensor.to(common), exact, torchs, ratio, added, by_line=False)
        found = replace(found, dtype=dtype_name(tensor.dtype))
        if limit is None or limit.added or found.errors is None:
            return found
        return replace(
            found,
            reasons=(*found.reasons, *beyond_limit(subject, tensor, exact, limit)),
            held=(*found.held, *against_limit(subject, tensor, exact, limit)),
        )

    torchs = yardstick.to(common)
    result = judged(oracle, torchs)
    if result.passed or result.errors is None or leeway is None:
        return result
    covered = covered_by(leeway(), tensor.double() - oracle)
    if covered is None:
        return result
    # Torch's error stays what it was: its result moves with the exact one.
    lenient = judged(oracle + covered, torchs.double() + covered)
    return replace(result, reasons=lenient.reasons, held=lenient.held)


def _excused(subject: Subject, oracle: Tensor, yardstick: Tensor) -> Tensor:
    """`yardstick` with NaN, which permits any value, in every chunk and head whose oracle is not all finite.

    Within a chunk a NaN may reach any token, since a kernel multiplies masked tiles by dense values (0 *
    NaN). Token by token it reaches no earlier token.
    """
    excused = yardstick
    for region in subject.partition.regions:
        if region.chunk is None:
            continue
        rows = oracle[region.start : region.stop]
        if region.tokens is not None:
            rows = rows[:, :, : region.tokens]
        wrong = ~torch.isfinite(rows).movedim(1, 0).flatten(1).all(dim=1)
        if bool(wrong.any()):
            excused = excused.clone() if excused is yardstick else excused
            excused[region.start : region.stop, wrong] = torch.nan
    return excused


def against_limit(subject: Subject, tensor: Tensor, oracle: Tensor, limit: Limit) -> tuple[LimitCheck, ...]:
    """The (sequence, chunk, head), and the part of one, that come closest to the limit or exceed it most.

    Elements that are not finite in both count as equal: another check judges whether they may be so.
    """
    tiles = list(_chunks(subject, tensor, oracle))
    found = []
    for what, errors in (
        ("norm of a chunk and head", _whole),
        (f"norm of a part of {limit.block} x {limit.block}", _parts),
    ):
        if errors is _parts and limit.block is None:
            continue
        all_held = [
            LimitCheck(what, one.error, one.allowed, region.sequence, region.chunk, one.head)
            for region, x, y in tiles
            for one in errors(region, x, y, limit)
        ]
        if all_held:
            found.append(max(all_held, key=lambda held: held.ratio))
    return tuple(found)


def beyond_limit(subject: Subject, tensor: Tensor, oracle: Tensor, limit: Limit) -> tuple[str, ...]:
    """A line for the worst (sequence, chunk, head) beyond the limit, and one for the worst part of one."""
    found: list[str] = []
    tiles = list(_chunks(subject, tensor, oracle))
    over = _over(error for region, x, y in tiles for error in _whole(region, x, y, limit))
    if over:
        found.append(f"{len(over)} (sequence, chunk, head) beyond their limit: worst {max(over)[1]}")
    if limit.block is not None:
        over = _over(error for region, x, y in tiles for error in _parts(region, x, y, limit))
        if over:
            size = limit.block
            found.append(f"{len(over)} parts of {size} x {size} beyond their limit: worst {max(over)[1]}")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Error:
    """The error of a chunk and head, or of a part of one."""

    error: float
    allowed: float
    scale: float
    head: int
    place: str


def _over(errors: Iterable[_Error]) -> list[tuple[float, str]]:
    return [_excess(one) for one in errors if not one.error <= one.allowed]


def _chunks(subject: Subject, tensor: Tensor, oracle: Tensor) -> Iterator[tuple[Region, Tensor, Tensor]]:
    """(region, x, y) of every chunk, heads first, in fp64, with zeros where an element does not count."""
    heads = subject.partition.head_axis
    assert heads is not None
    for region in subject.partition.regions:
        x, y = tensor[region.start : region.stop].double(), oracle[region.start : region.stop].double()
        if region.tokens is not None:  # [1, Hv, C, ...]
            assert heads == 1
            x, y = x[0, :, : region.tokens], y[0, :, : region.tokens]
        else:
            x, y = x.movedim(heads, 0), y.movedim(heads, 0)
        counts = torch.isfinite(x) & torch.isfinite(y)
        yield region, x.where(counts, 0.0), y.where(counts, 0.0)


def _whole(region: Region, x: Tensor, y: Tensor, limit: Limit) -> Iterator[_Error]:
    error, size = (x - y).flatten(1).norm(dim=1), y.flatten(1).norm(dim=1)
    allowed = limit.relative * size + limit.absolute
    for head in range(len(error)):
        place = _place(region, head)
        yield _Error(float(error[head]), float(allowed[head]), float(size[head]), head, place)


def _parts(region: Region, x: Tensor, y: Tensor, limit: Limit) -> Iterator[_Error]:
    step = limit.block
    assert step is not None
    for row in range(0, x.shape[-2], step):
        for column in range(0, x.shape[-1], step):
            part = (..., slice(row, row + step), slice(column, column + step))
            error, size = (x - y)[part].flatten(1).norm(dim=1), y[part].flatten(1).norm(dim=1)
            scale = size.clamp(min=step**0.5)
            allowed = limit.relative * scale + limit.absolute
            for head in range(len(error)):
                place = f"{_place(region, head)} row {row} column {column}"
                yield _Error(float(error[head]), float(allowed[head]), float(scale[head]), head, place)


def _excess(one: _Error) -> tuple[float, str]:
    text = f"{one.place}, |x - y| {one.error:.3g} over {one.allowed:.3g}"
    if one.scale > 0:
        text += f", relative {one.error / one.scale:.3g} over {one.allowed / one.scale:.3g}"
    return (one.error / one.allowed if one.allowed > 0 else float("inf")), text


def _place(region: Region, head: int) -> str:
    chunk = "" if region.chunk is None else f" chunk {region.chunk}"
    return f"sequence {region.sequence}{chunk} head {head}"


def _against(
    subject: Subject,
    tensor: Tensor,
    other: Mapping[str, Tensor],
    oracle: Tensor,
    yardstick: Tensor,
    bound: Bound,
    limit: Limit | None,
    leeway: Leeway | None,
) -> Iterator[TensorResult]:
    """The other kernel's stage judged too, and the difference shown."""
    if subject.name not in other:
        yield _lacking(subject)
        return
    theirs = other[subject.name]
    given = (oracle, yardstick, bound, limit, leeway)
    yield judge_stage(replace(subject, side=Side.AGAINST), theirs, *given)
    common = torch.promote_types(tensor.dtype, theirs.dtype)
    difference = replace(subject, side=Side.DIFFERENCE)
    yield show_difference(difference, Memory(tensor.to(common)), Memory(theirs.to(common)))


def _lacking(subject: Subject) -> TensorResult:
    """A result that shows that the other kernel does not expose this stage, which is no failure."""
    found = missing_tensor(subject.name, subject.when, Side.AGAINST, "")
    return replace(found, reasons=(), judged=False)


def judge_against_exact(
    subject: Subject, tensor: Tensor, target: Tensor, rule: Bitwise | Tolerance
) -> TensorResult:
    """Compare `tensor` with `target` itself; an fp64 target is first rounded to the tensor's dtype for
    `Bitwise`."""
    if isinstance(rule, Bitwise) and target.dtype == torch.float64:
        target = target.to(tensor.dtype)
    return judge_against_target(subject, Memory(tensor), Memory(target), rule)
