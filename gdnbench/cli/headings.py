# SPDX-License-Identifier: Apache-2.0
"""Where an option stands in a command's help, and what stands for its value, by the option's name.

An option means the same in every command that has it, so that one table serves all of them. A declaration
that names a heading (`rich_help_panel`) or a placeholder (`metavar`) of its own comes first.
"""

from __future__ import annotations

KERNEL, VERDICT, SIMULATOR = "Kernel and records", "Verdict", "Simulator (--on sim)"
PROCESSES, MEASURING, OUTPUT = "Processes", "Time", "Output"
FUNCTIONS, CALLS, SWITCH = "Which functions and layers", "Which calls", "Switching on and off"
TENSORS, STORE = "What is kept of a call", "Store, queue and limits"

BY_HEADING = {
    KERNEL: "kernel against on kernel-env op layer records",
    VERDICT: "k tol bitwise rule stages same-kind same-tensor symptom tensor baseline carry",
    SIMULATOR: "machine sms check schedule",
    MEASURING: "cache form clock seconds precision time-wrong strict",
    PROCESSES: "isolate timeout workers scheduler budget",
    OUTPUT: "json csv save compare timeline junit out script state fresh verbose",
}
_CAPTURE = {
    FUNCTIONS: "target op layer table",
    CALLS: "first every when on-nonfinite on-lineage on-mismatch around ring-bytes",
    SWITCH: "paused control signal",
    TENSORS: "digests digest-sample full-pools sync graphs break-graphs cache-layout block-size",
    STORE: "max-bytes when-over when-full queue zstd",
    "Virtual GPU": "virtual sms",
}
_PRUNE = {
    "Which records": "op layer step status older-than max-records max-bytes keep",
    "Action": "yes",
    OUTPUT: "json",
}
OF_COMMAND = {"gdnbench capture": _CAPTURE, "gdnbench prune": _PRUNE}
"""Of commands whose options say what a program records, or which records go: headings of their own."""
FEW = 8  # options that need no headings

PLACEHOLDERS = {
    "-o": "FILE",
    "--accept": "FILE",
    "--against": "KERNEL",
    "--also": "PATH",
    "--around": "N",
    "--bad": "VERSION",
    "--build": "COMMAND",
    "--compare": "RUN",
    "--control": "FILE",
    "--explain": "REQUEST",
    "--find-links": "URL",
    "--good": "VERSION",
    "--index-url": "URL",
    "--junit": "FILE",
    "--k": "[TENSOR=]K",
    "--keep": "RECORDS",
    "--max-bytes": "SIZE",
    "--older-than": "AGE",
    "--on": "DEVICE",
    "--python": "PROGRAM",
    "--queue": "SIZE",
    "--ring-bytes": "SIZE",
    "--rule": "TENSOR=RULE",
    "--save": "STORE",
    "--seconds": "SECONDS",
    "--select": "CONDITIONS",
    "--step": "STEPS",
    "--table": "FILE",
    "--tb": "LENGTH",
    "--timeout": "SECONDS",
    "--tol": "ABS[,REL]",
    "--when": "EXPRESSION",
    "--with": "PACKAGES",
    "--write-accept": "FILE",
    "--write-baseline": "FILE",
    "--zstd": "LEVEL",
}


def heading(command: str, spelling: str) -> str:
    """The heading of an option of a command, e.g. ("gdnbench time", "--cache") -> "Time"; "" without one."""
    table = OF_COMMAND.get(command, BY_HEADING)
    name = spelling.removeprefix("--")
    return next((title for title, names in table.items() if name in names.split()), "")
