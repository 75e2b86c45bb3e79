# SPDX-License-Identifier: Apache-2.0
"""`gdnbench.replay`, `gdnbench.diff` and `gdnbench.sim`: what the commands of these names do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from numbers import Real
from operator import index
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

from gdnbench.api.errors import one_line_errors
from gdnbench.api.store import Record, Store
from gdnbench.api.store import open as open_store
from gdnbench.errors import BadInputError
from gdnbench.record_numbers import record_numbers
from gdnbench.store import reader
from gdnbench.store.address import Address

if TYPE_CHECKING:
    from gdnbench.api.results import DiffResult, ReplayResult, SimResult
    from gdnbench.judge.rule import Rule
    from gdnbench.report.report import RecordResult
    from gdnbench.sim import Accepted

Records = SupportsIndex | str | Record | Sequence[SupportsIndex | Record]
Progress = Callable[[int, int, "RecordResult"], None]


def replay(
    store: Store | Address,
    records: Records | None = None,
    *,
    kernel: str | Callable[..., Any] = "torch",
    against: str = "reference",
    on: str = "cpu",
    op: str | None = None,
    k: float | Mapping[str, float] | None = None,
    tol: float | tuple[float, float] | None = None,
    bitwise: bool = False,
    rule: Mapping[str, Mapping[str, Any]] | None = None,
    stages: bool = False,
    machine: str | None = None,
    sms: int | None = None,
    check: bool = False,
    keep_going: bool = False,
    accept: str | PathLike[str] | None = None,
    isolate: bool | None = None,
    timeout: float | None = None,
    save: str | PathLike[str] | None = None,
    heatmap: bool = True,
    progress: Progress | None = None,
) -> ReplayResult:
    """Run recorded calls through a kernel and judge its outputs, as `gdnbench replay` does.

    `records`: a number, "0,3-5", records of the store or a list of either; all unless given.
    `kernel`: a name as in the command, or a function; one of a notebook or of `__main__` runs in this
    process, which its crash ends.
    `k`: a factor of torch's error, or factors by tensor. `tol`: absolute, or (absolute, relative).
    `rule`: of single tensors, by TENSOR or OPERATION.TENSOR: {"o": {"bitwise": True}, "state": {"k": 3}}.
    `accept`: a file of accepted findings, with `check`. `save`: a new run store for the results.
    `heatmap`: keep the errors by chunk and head, which a notebook draws.
    `progress`: called after each record with how many are done, of how many, and the last result.

    A failing record is part of the result. BadInputError for arguments that do not fit, CannotRunError for
    a missing device or package, StoreError for a store that cannot be read.
    """
    factor, by_tensor = _factors(k)
    accepted = _accepted(accept, check)
    with one_line_errors(), ExitStack() as stack:
        from gdnbench.api.results import ReplayResult
        from gdnbench.replay.replay import replay as replay_records

        rules = _rules(rule)
        opened = stack.enter_context(_opened(store))
        name = kernel
        if not isinstance(kernel, str):
            if not callable(kernel):
                raise BadInputError(f"kernel {kernel!r} is neither a name nor a function; give one of them")
            from gdnbench.replay.kernels import function_given

            name, importable = stack.enter_context(function_given(kernel))
            if not importable:
                if isolate:
                    raise BadInputError(
                        f"{name} is no function of a file, which another process could import: write it to a"
                        " file, or leave isolate out"
                    )
                isolate = False
        report = replay_records(
            opened,
            records=_numbers(opened, records),
            kernel=str(name),
            against=against,
            on=on,
            op=op,
            k=factor,
            k_by_tensor=by_tensor,
            tol=_tolerance(tol),
            bitwise=bitwise,
            rules=rules,
            stages=stages,
            isolate=isolate,
            timeout=timeout,
            save=None if save is None else Path(save),
            grids=heatmap,
            check=check,
            accepted=accepted,
            keep_going=keep_going,
            machine=machine,
            sms=sms,
            progress=progress,
        )
    return ReplayResult.from_report(report, unused=() if accepted is None else tuple(accepted.unused()))


def diff(
    a: Store | Address,
    b: Store | Address,
    *,
    op: str | None = None,
    tol: float | tuple[float, float] | None = None,
    oracle: bool = False,
    k: float | Mapping[str, float] | None = None,
    heatmap: bool = True,
    progress: Progress | None = None,
) -> DiffResult:
    """Compare two stores record by record and tensor by tensor, as `gdnbench diff` does.

    Arguments as of `replay`; `oracle` judges both by the fp64 oracle. Errors as `replay`.
    """
    factor, by_tensor = _factors(k)
    with one_line_errors(), ExitStack() as stack:
        from gdnbench.api.results import DiffResult
        from gdnbench.diff.compare import diff as diff_stores

        report = diff_stores(
            stack.enter_context(_opened(a)),
            stack.enter_context(_opened(b)),
            tol=_tolerance(tol),
            oracle=oracle,
            k=factor,
            k_by_tensor=by_tensor,
            op=op,
            grids=heatmap,
            progress=progress,
        )
    return DiffResult.from_report(report)


def sim(
    function: str | Callable[..., Any],
    *args: Any,
    named: Mapping[str, Any] | None = None,
    grid: str | int | Sequence[int] | None = None,
    block: str | int | Sequence[int] | None = None,
    cluster: str | int | Sequence[int] | None = None,
    shared: int | None = None,
    include: Sequence[str] = (),
    define: Sequence[str] = (),
    std: str | None = None,
    arch: str | None = None,
    machine: str | None = None,
    sms: int | None = None,
    engine: str = "compiled",
    schedule: str = "late",
    mma: str = "hardware",
    threads: int | None = None,
    max_instructions: int | None = None,
    timeout: float | None = None,
    seed: int = 0,
    profile: bool = False,
    check: bool = False,
    keep_going: bool = False,
    accept: str | PathLike[str] | None = None,
) -> SimResult:
    """Run a kernel on a simulated GPU, as `gdnbench sim` does.

    `function`: "FILE.py:function", "package.module:function", "FILE.ptx:entry", "FILE.cu:kernel", a
    `@cute.jit` function, or a Python function that returns (compiled, args).
    `args`: torch CPU tensors, which the kernel writes in place, numbers, None, or the command's texts, such
    as "bf16[128,64]" and "alpha=0.5". `named`: arguments by name.
    `grid` to `std` are of FILE.ptx and FILE.cu, as in the command; `grid` and the like may be numbers.

    A fault, and what the checker found, are part of the result. BadInputError and InputError for arguments
    that do not fit, CannotRunError and CannotSimulateError for what cannot be simulated.
    """
    accepted = _accepted(accept, check)
    notes: list[str] = []
    with one_line_errors():
        from gdnbench.api.results import SimResult
        from gdnbench.kernel_file import FileCall, LaunchOptions, check_options, kernel_file
        from gdnbench.sim import Settings
        from gdnbench.simulated_call import (
            ArgumentValue,
            FunctionCall,
            GpuOptions,
            arch_for,
            kernels_simulated,
            make_and_launch,
            tensors_of,
        )

        given = [*args, *(ArgumentValue(name, value) for name, value in (named or {}).items())]
        options = LaunchOptions(
            _extents(grid),
            _extents(block),
            _extents(cluster),
            None if shared is None else str(shared),
            tuple(include),
            tuple(define),
            std,
        )
        name = function if isinstance(function, str) else getattr(function, "__name__", repr(function))
        file = kernel_file(function) if isinstance(function, str) else None
        check_options(file, options, arch)
        compiled_for = arch_for(machine, arch)
        bounds = {"max_instructions": max_instructions, "timeout": timeout}
        settings = Settings(
            mma,
            engine,
            schedule,
            profile,
            threads,
            check=check,
            keep_going=keep_going,
            **{name: value for name, value in bounds.items() if value is not None},  # type: ignore[arg-type]
        )
        if file is not None:
            make: Callable[[], Any] = FileCall(file, options, given, seed, compiled_for, notes.append).call
        else:
            loaded = None if isinstance(function, str) else function
            make = FunctionCall(name, given, seed, compiled_for, loaded).call
        gpu = GpuOptions(machine, sms)
        with kernels_simulated(settings, compiled_for if file is None else None, gpu) as session:
            call = make_and_launch(make, session)
        reports = session.reports
    if not reports:
        raise BadInputError(f"{name} returned no (compiled, args) and ran nothing on the simulator")
    if accepted is not None:
        reports = [replace(report, findings=accepted.apply(report.findings)) for report in reports]
    tensors = {} if call is None else tensors_of(call)
    unused = () if accepted is None else tuple(accepted.unused())
    return SimResult(tuple(reports), tensors, unused, tuple(notes))


@contextmanager
def _opened(store: Store | Address) -> Iterator[reader.Store]:
    """The store, which is closed behind the block if it was opened for it."""
    if isinstance(store, Store):
        yield store.opened
        return
    with open_store(store) as opened:
        yield opened.opened


def _numbers(store: reader.Store, records: Records | None) -> list[int] | None:
    if records is None:
        return None
    if isinstance(records, str):
        return record_numbers(records, len(store.records))
    given = [records] if isinstance(records, Record | SupportsIndex) else records
    return [_number(store, one) for one in given]


def _number(store: reader.Store, record: SupportsIndex | Record) -> int:
    if not isinstance(record, Record):
        return index(record)
    count = len(store.records)
    if record.number >= count or store.records[record.number].key != record.key:
        raise BadInputError(f"{record!r} is no record of {store.path}; take it from this store")
    return record.number


def _factors(k: float | Mapping[str, float] | None) -> tuple[float | None, dict[str, float]]:
    given: Mapping[str, object] = k if isinstance(k, Mapping) else {} if k is None else {"": k}
    for factor in given.values():
        if not isinstance(factor, Real):
            raise BadInputError(f"k {factor!r} is no number; give one, or one for each tensor")
    return (None, dict(k)) if isinstance(k, Mapping) else (k, {})


def _tolerance(tol: float | tuple[float, float] | None) -> tuple[float, float] | None:
    if tol is None:
        return None
    given: tuple[Any, ...] = tuple(tol) if isinstance(tol, tuple | list) else (tol, 0.0)
    if len(given) != 2 or not all(isinstance(one, Real) for one in given):
        raise BadInputError(f"tol {tol!r} is no tolerance; give a number, or (absolute, relative)")
    return given[0], given[1]


def _rules(rules: Mapping[str, Mapping[str, Any]] | None) -> dict[str, Rule] | None:
    if rules is None:
        return None
    from gdnbench.judge.rule import make_rule

    if not isinstance(rules, Mapping):
        raise BadInputError(f"rule {rules!r} is no mapping; write it like {{'o': {{'bitwise': True}}}}")
    made: dict[str, Rule] = {}
    for name, options in rules.items():
        known = isinstance(options, Mapping) and options.keys() <= {"k", "tol", "bitwise"}
        if not known or len(options) != 1:
            raise BadInputError(f"rule of {name} is {options!r}; give one of k, tol and bitwise")
        made[name] = make_rule(
            **{**options, **({"tol": _tolerance(options["tol"])} if "tol" in options else {})}
        )
    return made


def _accepted(path: str | PathLike[str] | None, check: bool) -> Accepted | None:
    if path is None:
        return None
    if not check:
        raise BadInputError("accept is about what the checker finds: give check=True too")
    with one_line_errors():
        from gdnbench.sim import Accepted

        return Accepted.read(Path(path))


def _extents(given: str | int | Sequence[int] | None) -> str | None:
    if given is None or isinstance(given, str):
        return given
    return str(given) if isinstance(given, int) else ",".join(map(str, given))
