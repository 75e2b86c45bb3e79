# SPDX-License-Identifier: Apache-2.0
"""The commands of `gdnbench` by name: where each is, under which heading, and what it does in one line.

A command's module is imported when the command is called, completed or explained, and not before: all of them
together take longer to import than most commands run.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Entry:
    """`target`: the module below `gdnbench.cli` and, after a colon, the function or the `typer.Typer`.
    `summary`: one line of the list of commands. `foreign`: it takes options that are not its own.
    `writes`: it writes its result to stdout itself, so that a reader may leave; `capture` runs a program that
    does."""

    name: str
    target: str
    summary: str
    foreign: bool = False
    writes: bool = True

    def load(self) -> Any:
        """The function, or the `typer.Typer` of a group; imports its module."""
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(f"gdnbench.cli.{module}"), attribute)


RECORD, JUDGE, FIND = "Record, make and keep calls", "Judge a kernel", "Find what is wrong, and where"
TIME, SHARE, CHECK = "Time, compile and simulate", "Share", "Check the machine and get help"

COMMANDS = {
    RECORD: (
        Entry("capture", "capture:capture", "Run a program and record its attention calls.", writes=False),
        Entry("synth", "synth:synth", "Make records of an operation, such as decode steps.", foreign=True),
        Entry("ls", "ls:ls", "List the records of a store."),
        Entry("show", "show:show", "Show one record: origin, scalars, tensors with ranges."),
        Entry("verify", "verify:verify", "Check a store against its digests."),
        Entry("prune", "prune:prune", "Drop records from a store."),
        Entry("merge", "merge:merge", "Merge several stores into one."),
    ),
    JUDGE: (
        Entry("prove", "prove:prove", "Check a kernel in every way there is, in one command."),
        Entry("replay", "replay:replay", "Replay records through a kernel and judge its outputs."),
        Entry("explore", "explore:explore", "Simulate records under many schedules and shapes."),
        Entry("suite", "suite:suite", "Replay the captures of a suite: for CI."),
        Entry("baseline", "baseline:app", "Show and change the errors that a suite accepts."),
        Entry("lineage", "lineage:lineage", "Check that each state read is the state last written."),
    ),
    FIND: (
        Entry("diff", "diff:diff", "Compare two stores, or two value traces."),
        Entry("bisect", "bisect:app", "Find the commit, input, stage, ... that broke a kernel."),
        Entry("trace", "trace:trace", "Write the values that simulated instructions compute."),
    ),
    TIME: (
        Entry("time", "time:time", "Time kernels on recorded calls, side by side."),
        Entry("compile", "compile:compile", "Compile an operation's kernels without a GPU.", foreign=True),
        Entry("sim", "sim:sim", "Run any CuTe DSL, PTX or CUDA kernel on a simulated GPU."),
    ),
    SHARE: (
        Entry("report", "report:report", "Show runs as one HTML file."),
        Entry("share", "share:share", "Copy records without private data."),
        Entry("export", "export:export", "Write a record for torch, NumPy or safetensors."),
        Entry("upload", "upload:upload", "Copy a store to an object store, e.g. s3://."),
    ),
    CHECK: (
        Entry("doctor", "doctor:doctor", "Say what can run on this machine."),
        Entry("samples", "samples:samples", "Copy the captures that come with gdnbench."),
        Entry("help", "help:show_help", "Explain a command, e.g. gdnbench help bisect commit."),
    ),
}
"""By heading, in the order of the help."""

AXES = (
    Entry("input", "bisect.input:input", "Shrink a failing call to the smallest that still fails."),
    Entry("commit", "bisect.commit:commit", "Find the commit of a git repository."),
    Entry("env", "bisect.env:env", "Find the package, and its release."),
    Entry("instruction", "bisect.instruction:instruction", "Find the first instruction whose value differs."),
    Entry("stage", "bisect.stage:stage", "Find the stage inside a kernel that first goes wrong."),
    Entry("record", "bisect.record:record", "Find the first bad call of a capture."),
)
"""The commands of `gdnbench bisect`."""

BASELINE = (
    Entry("update", "baseline:update", "Accept errors of a run that are new or have changed."),
    Entry("show", "baseline:show", "List the accepted errors."),
    Entry("history", "baseline:history", "List what was accepted, when and why."),
)
"""The commands of `gdnbench baseline`."""
