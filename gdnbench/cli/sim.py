# SPDX-License-Identifier: Apache-2.0
"""`gdnbench sim`: run a compiled SM100 kernel, host code and PTX, on this CPU."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gdnbench.cli.checking import (
    ACCEPT,
    CHECK,
    DELAYS,
    DELAYS_DUMP,
    KEEP_GOING,
    VERBOSE,
    WRITE_ACCEPT,
    check_delays,
    print_unused,
    read_accepted,
    write_delays,
    write_template,
)
from gdnbench.cli.console import print_json, print_lines, print_note, progress, table
from gdnbench.cli.exploring import EXPLORE, conclude, refuse_with, varied
from gdnbench.cli.orders import conclude_orders, schedule_count
from gdnbench.cli.record_options import OUTPUT_PANEL, sms_numbers
from gdnbench.cli.sim_file import BLOCK, CLUSTER, DEFINE, GRID, INCLUDE, SHARED, STD
from gdnbench.cli.sim_precision import SIM_PRECISION, as_json, describe, shadows_of
from gdnbench.cli.sim_program import (
    LAUNCH,
    MACHINE,
    SMS,
    ProgramOptions,
    is_program,
    refuse_for_program,
    refuse_nested,
    run_command,
)
from gdnbench.cli.timelines import check_timeline, write_predicted, write_timeline
from gdnbench.cli.tracing import LIMIT, SELECT, TRACE, trace_to
from gdnbench.errors import BadInputError, CannotRunError, Exit
from gdnbench.kernel_file import FileCall, LaunchOptions, check_options, kernel_file
from gdnbench.simulated_call import (
    FunctionCall,
    GpuOptions,
    arch_for,
    kernels_simulated,
    make_and_launch,
    tensors_of,
)

if TYPE_CHECKING:
    from torch import Tensor

    from gdnbench.cli.sim_shapes import Exploring
    from gdnbench.sim import Report
    from gdnbench.sim.explore import Exploration
    from gdnbench.sim.predict import Predictor

COMPILED, LATE, HARDWARE = "compiled", "late", "hardware"
ARGS_PANEL = "Arguments and compilation"
MACHINE_PANEL = "Simulated GPU"
RUN_PANEL = "Simulation"
CHECK_PANEL = "Races and schedules"
OBSERVE_PANEL = "Profile and values"
HEADERS = ("tensor", "dtype", "shape", "min", "max", "nonfinite")

ARGUMENTS = (
    "Arguments of the function, each [NAME=]VALUE: a number, true, false, none, a Python literal, or a tensor"
    " as TYPE[EXTENTS], TYPE[EXTENTS:STRIDES], either with :FILL, or @FILE (.npy, .pt)."
)


def sim(
    function: Annotated[
        str,
        typer.Argument(
            help="FILE.py:function, package.module:function, FILE.ptx:entry or FILE.cu:kernel; or, after --,"
            " a program, e.g. python.",
            metavar="FUNCTION",
        ),
    ],
    values: Annotated[list[str] | None, typer.Argument(help=ARGUMENTS, metavar="[ARGS]...")] = None,
    args: Annotated[
        list[str] | None,
        typer.Option(
            "--args",
            help="Another way to begin ARGS: --args A B is the same as A B.",
            rich_help_panel=ARGS_PANEL,
        ),
    ] = None,
    grid: Annotated[str | None, GRID] = None,
    block: Annotated[str | None, BLOCK] = None,
    cluster: Annotated[str | None, CLUSTER] = None,
    shared: Annotated[str | None, SHARED] = None,
    include: Annotated[list[str] | None, INCLUDE] = None,
    define: Annotated[list[str] | None, DEFINE] = None,
    std: Annotated[str | None, STD] = None,
    arch: Annotated[
        str | None,
        typer.Option(
            help="Compile for sm_100a, sm_103a or sm_90a. Default: sm_100a.", rich_help_panel=ARGS_PANEL
        ),
    ] = None,
    machine: Annotated[str | None, typer.Option(help=MACHINE, rich_help_panel=MACHINE_PANEL)] = None,
    sms: Annotated[str | None, typer.Option(metavar="N,...", help=SMS, rich_help_panel=MACHINE_PANEL)] = None,
    launch: Annotated[
        str | None, typer.Option(metavar="LAUNCHES", help=LAUNCH, rich_help_panel=MACHINE_PANEL)
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="Engine to use: compiled, or interpreter, which is slower and finds uninitialised reads.",
            rich_help_panel=RUN_PANEL,
        ),
    ] = COMPILED,
    schedule: Annotated[
        str,
        typer.Option(
            help="Complete asynchronous operations late, early or in the order random:SEED, e.g. random:5.",
            rich_help_panel=RUN_PANEL,
        ),
    ] = LATE,
    mma: Annotated[
        str,
        typer.Option(
            help="Compute tensor-core products as the hardware does, or exactly: hardware or exact.",
            rich_help_panel=RUN_PANEL,
        ),
    ] = HARDWARE,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Number of CPU threads. Default: all cores.", rich_help_panel=RUN_PANEL),
    ] = None,
    max_instructions: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Stop a launch after N warp instructions, e.g. 1000000. Default: 100 billion, 40 times as"
            " many as a prefill of 262,144 tokens and 64 heads executes.",
            rich_help_panel=RUN_PANEL,
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Stop a launch after SECONDS, in which its PTX is also read and compiled, e.g. 60. Default:"
            " 86400, a day.",
            rich_help_panel=RUN_PANEL,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of random tensors, including those that a Python function draws from torch.",
            rich_help_panel=ARGS_PANEL,
        ),
    ] = 0,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="Print counts of instructions, bytes and waits.", rich_help_panel=OBSERVE_PANEL
        ),
    ] = False,
    timeline: Annotated[
        Path | None,
        typer.Option(
            help="Write a timeline of the warps for Perfetto, e.g. t.json; implies --profile. With --time: of"
            " an SM in predicted microseconds, with its units and the critical path.",
            rich_help_panel=OBSERVE_PANEL,
        ),
    ] = None,
    time: Annotated[
        bool,
        typer.Option(
            "--time",
            help="Predict how long each launch takes on --machine h200, b200 or b300, and what its critical"
            " path is; with --profile also by source line.",
            rich_help_panel=OBSERVE_PANEL,
        ),
    ] = False,
    trace: Annotated[Path | None, typer.Option(help=TRACE, rich_help_panel=OBSERVE_PANEL)] = None,
    select: Annotated[str | None, typer.Option(help=SELECT, rich_help_panel=OBSERVE_PANEL)] = None,
    trace_limit: Annotated[int | None, typer.Option(min=1, help=LIMIT, rich_help_panel=OBSERVE_PANEL)] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="fp64", help=SIM_PRECISION, rich_help_panel=OBSERVE_PANEL)
    ] = None,
    check: Annotated[bool, typer.Option("--check", help=CHECK, rich_help_panel=CHECK_PANEL)] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help=KEEP_GOING, rich_help_panel=CHECK_PANEL)
    ] = False,
    accept: Annotated[Path | None, typer.Option(help=ACCEPT, rich_help_panel=CHECK_PANEL)] = None,
    write_accept: Annotated[Path | None, typer.Option(help=WRITE_ACCEPT, rich_help_panel=CHECK_PANEL)] = None,
    delays: Annotated[Path | None, typer.Option(help=DELAYS, rich_help_panel=CHECK_PANEL)] = None,
    delays_dump: Annotated[Path | None, typer.Option(help=DELAYS_DUMP, rich_help_panel=CHECK_PANEL)] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help=VERBOSE, rich_help_panel=CHECK_PANEL)
    ] = False,
    explore: Annotated[
        str | None, typer.Option(metavar="N|all", help=EXPLORE, rich_help_panel=CHECK_PANEL)
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="With --explore: replace {NAME} in the arguments and the launch by each value of NAME=V1,V2."
            " Repeatable. Of a program: sms=1,2,4 runs it again with so many SMs each; engine=interpreter"
            " runs each launch in that engine too and compares the bits.",
            rich_help_panel=CHECK_PANEL,
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Write every tensor after the run to DIR/NAME.pt.", rich_help_panel=OUTPUT_PANEL),
    ] = None,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object instead of text.", rich_help_panel=OUTPUT_PANEL),
    ] = False,
) -> None:
    """Run a CuTe DSL, PTX or CUDA C++ kernel on a simulated GPU, or a program on a virtual GPU.

    FUNCTION is a @cute.jit host function or a Python function. A @cute.jit function is compiled for ARGS;
    leave its stream argument out. A Python function is called with ARGS and returns (compiled, args): what
    cute.compile returned, and the torch CPU tensors and numbers to call it with.

    A kernel of FILE.ptx or FILE.cu is launched with --grid and --block. ARGS are its parameters in order: a
    tensor for a pointer, none for a null pointer; NAME= names one in the results. With one kernel in the file
    its name may be left out; a template of FILE.cu is named with its arguments.

    TYPE is f64 f32 f16 bf16 e4m3 e5m2 ue8m0 i8..i64 u8..u64 or bool. An extent ?N is N in this call, and
    dynamic in the compiled kernel. FILL is randn, rand, randint, zeros, ones, arange, nan or a number.

      gdnbench sim gemm.py:gemm 'bf16[128,64]' 'bf16[256,64]' 'f32[128,256]:nan' alpha=0.5

      gdnbench sim norm.py:norm 'f32[?{M},64]' 'f32[?{M},64]:nan' --explore 10 --vary M=1,63,64 --check

      gdnbench sim gemm.py:gemm 'bf16[512,64]' 'bf16[256,64]' 'f32[512,256]:nan' --explore 2 --sms 1,2,148

      gdnbench sim add.ptx:add --grid 4 --block 256 'f32[1000]' 'f32[1000]' 'f32[1000]:nan' 1000

      gdnbench sim sum.cu:'sum<float, 64>' --grid 1000/64 --block 64 -D FAST 'f32[1000]' 'f32[1]:0' 1000

    A program after -- runs unmodified: it sees one GPU, its torch operations on cuda run on the CPU, and its
    kernels are simulated.

      gdnbench sim --sms 4 --check -- python their_script.py --batch 2

      gdnbench sim --explore 8 --launch chunk_fwd --vary sms=1,2,4 -- python their_script.py

    Exit status: 0 the kernel did nothing illegal; 1 it did, it was stopped, or --check found an error that
    --accept does not accept; 2 bad input; 3 it cannot be simulated. Of a program: its own if that is not 0;
    3 also if it went on after something was refused.
    """
    refuse_nested(os.environ)

    from gdnbench.sim import Settings

    count = None if explore is None else schedule_count("--explore", explore)
    every = explore is not None and count is None
    if every:
        refuse_with(
            "--explore all",
            schedule=None if schedule == LATE else schedule,
            trace=trace,
            timeline=timeline,
            time=time,
            vary=vary,
            precision=precision,
            profile=profile,
            check=check,
            delays=delays,
        )
    accepted = read_accepted(accept, write_accept, check=check)
    launched = check_delays(delays, delays_dump, check=check, time=time)
    numbers = sms_numbers(sms)
    if len(numbers) > 1 and explore is None:
        raise BadInputError(f"--sms {sms} runs on several GPUs: give --explore N too, or one number")
    only = numbers[0] if len(numbers) == 1 else None
    texts = [*(args or ()), *(values or ())]
    options = LaunchOptions(grid, block, cluster, shared, tuple(include or ()), tuple(define or ()), std)
    bounds: dict[str, Any] = {"max_instructions": max_instructions, "timeout": timeout}
    bounds = {name: value for name, value in bounds.items() if value is not None}
    bounds |= {"keep_going": True} if keep_going else {}
    if is_program(function):
        check_options(None, options, arch)
        refuse_for_program(
            arch=arch,
            seed=seed or None,
            timeline=timeline,
            time=time,
            precision=precision,
            save=save,
            args=args or None,
            delays=delays,
        )
        run_command(
            ProgramOptions(
                [function, *(values or ())],
                machine,
                numbers[0] if numbers else None,
                {
                    "mma": mma,
                    "engine": engine,
                    "schedule": schedule,
                    "profile": profile,
                    "threads": threads,
                    "check": check,
                    **bounds,
                },
                launch,
                count,
                every,
                (*(vary or ()), *([f"sms={sms}"] if len(numbers) > 1 else [])),
                trace,
                select,
                trace_limit,
            ),
            accepted,
            write_accept,
            json=json,
            verbose=verbose,
        )
    file = kernel_file(function)
    check_options(file, options, arch)
    if launch is not None:
        raise BadInputError("--launch goes with a program after --, not with FILE.py:function")
    compiled_for = arch_for(machine, arch)
    if vary and explore is None:
        raise BadInputError("--vary names the shapes that --explore N tries: give --explore too")
    if count is not None:
        from gdnbench.cli.sim_shapes import Exploring
        from gdnbench.sim.explore import schedules

        chosen = None if schedule == LATE else schedule
        refuse_with(
            "--explore",
            schedule=chosen,
            trace=trace,
            timeline=timeline,
            time=time,
            save=save,
            profile=profile,
            precision=precision,
            delays=delays,
        )
        given = {
            "--arch": arch,
            "--engine": None if engine == COMPILED else engine,
            "--mma": None if mma == HARDWARE else mma,
            "--seed": seed or None,
            "--threads": threads,
            "--max-instructions": max_instructions,
            "--timeout": timeout,
            "--accept": accept,
        }
        words = [word for name, value in given.items() if value is not None for word in (name, value)]
        words += ["--check"] * check + ["--keep-going"] * keep_going

        settings = Settings(mma, engine, threads=threads, check=check, **bounds)
        exploring = Exploring(
            function,
            texts,
            options,
            varied(vary or ()),
            seed,
            compiled_for,
            settings,
            machine,
            tuple(map(str, words)),
            schedules(count),
        )
        found = _explore(exploring, numbers)
        conclude(found, accepted, write_accept, json=json, verbose=verbose)
    shadows = shadows_of(
        precision,
        trace=trace,
        timeline=timeline,
        time=time,
        profile=profile,
        check=check,
        keep_going=keep_going,
    )
    check_timeline(timeline)
    predictor = predictor_for(machine, drawn=timeline is not None) if time else None
    orders = None
    if every:
        from gdnbench.sim.protocol import OrdersOfLaunches

        orders = OrdersOfLaunches()
    profiled = profile or (timeline is not None and not time)
    # What the kernel's file prints is no part of the result.
    with (
        progress("sim") as advance,
        contextlib.redirect_stdout(sys.stderr),
        trace_to(trace, select, trace_limit, advance.say) as tracing,
    ):
        watch = shadows if tracing is None else tracing.watch()
        settings = Settings(
            *(mma, engine, schedule, profiled, threads, advance, watch, check),
            before=predictor or launched or orders,
            **bounds,
        )
        gpu = GpuOptions(machine, only)
        with kernels_simulated(settings, compiled_for if file is None else None, gpu) as session:
            made = (
                FunctionCall(function, texts, seed, compiled_for)
                if file is None
                else FileCall(file, options, texts, seed, compiled_for, print_note)
            )
            call = make_and_launch(made.call, session)
    if orders is not None and session.reports:
        faults = [fault for report in session.reports for fault in report.findings if fault.fails]
        failed = {"the run itself": str(faults[0])} if faults else {}
        conclude_orders({"": orders.launches}, failed, faulty=bool(faults), json=json, verbose=verbose)
    tensors = {} if call is None else tensors_of(call)
    if save is not None:
        _save(tensors, save)
    reports = session.reports
    if accepted is not None:
        reports = [replace(report, findings=accepted.apply(report.findings)) for report in reports]
    if not reports:
        raise BadInputError(f"{function} returned no (compiled, args) and ran nothing on the simulator")
    if timeline is not None and predictor is not None:
        write_predicted(timeline, predictor.timelines or [])
    elif timeline is not None:
        _write_timeline(reports, timeline)
    print_unused(accepted)
    if write_accept is not None:
        write_template(write_accept, (finding for report in reports for finding in report.findings))
    if delays is not None and launched is not None:
        everything = [finding for report in reports for finding in report.findings]
        write_delays(delays, everything, launched, machine)
    if json:
        from gdnbench.timing.json_values import to_plain

        print_json(
            {
                "calls": [report.as_json() for report in reports],
                "tensors": _summaries(tensors),
                "unused": [] if accepted is None else accepted.unused(),
                **({} if predictor is None else {"predicted": to_plain(predictor.launches)}),
                **({} if shadows is None else {"precision": as_json(shadows, tensors)}),
            }
        )
    else:
        for report in reports:
            print_lines(report.text(verbose=verbose))
        if tensors:
            print(table(HEADERS, [*map(_row, _summaries(tensors))], right=("min", "max", "nonfinite")))
        if shadows is not None:
            print_lines("\n".join(describe(shadows, tensors)))
        if predictor is not None and predictor.launches:
            from gdnbench.timing.table import predicted_text

            print_lines(predicted_text(predictor.launches, table, by_line=profile))
    if not all(report.ok for report in reports):
        raise typer.Exit(Exit.MISMATCH)
    if predictor is not None and predictor.refused:
        raise CannotRunError(f"not predicted: {predictor.refused}")
    raise typer.Exit(Exit.PASS)


def predictor_for(machine: str | None, *, drawn: bool) -> Predictor:
    """What predicts the launches of a call, and keeps their timelines if they are `drawn`. BadInputError
    without a GPU that has a time model."""
    from gdnbench.replay.predicting import machine_to_predict
    from gdnbench.sim.predict import Predictor, machine_model

    return Predictor(machine_model(machine_to_predict(machine)), timelines=[] if drawn else None)


def _explore(exploring: Exploring, sms: Sequence[int]) -> Exploration:
    from gdnbench.cli.sim_shapes import explore_on, explore_shapes
    from gdnbench.replay.explore import explore_gpus

    with progress("explore") as advance:
        if len(sms) > 1:
            return explore_gpus(explore_on, exploring, sms, advance)
        return explore_shapes(exploring, sms[0] if sms else None, advance)


def _summaries(tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    from gdnbench.bits import dtype_name, to_bits
    from gdnbench.value_range import value_range

    rows = []
    for name, tensor in tensors.items():
        dtype = dtype_name(tensor.dtype)
        low, high, nonfinite = value_range(to_bits(tensor), dtype)
        values = (name, dtype, list(tensor.shape), low, high, nonfinite)
        rows.append(dict(zip(HEADERS, values, strict=True)))
    return rows


def _row(summary: Mapping[str, Any]) -> list[object]:
    name, dtype, shape, low, high, nonfinite = summary.values()
    shown = ("" if value is None else f"{value:.6g}" for value in (low, high))
    return [name, dtype, "x".join(map(str, shape)) or "scalar", *shown, nonfinite or ""]


def _write_timeline(reports: Sequence[Report], path: Path) -> None:
    """All launches of all calls, one after the other."""
    launches = tuple(launch for report in reports for launch in report.launches)
    if not any(launch.finished for launch in launches):
        print_note(f"gdnbench: no launch finished; {path} is not written")
        return
    write_timeline(path, replace(reports[0], launches=launches).write_trace)


def _save(tensors: Mapping[str, Tensor], folder: Path) -> None:
    import torch

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, tensor in tensors.items():
            torch.save(tensor.contiguous(), folder / f"{name}.pt")
    except OSError as error:
        raise BadInputError(f"--save {folder}: {error.strerror or error}") from None
