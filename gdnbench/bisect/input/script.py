# SPDX-License-Identifier: Apache-2.0
"""A Python file that reproduces a failure with torch, numpy and zarr alone."""

from __future__ import annotations

import ast
import importlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from gdnbench.bisect.failing import FORM
from gdnbench.bisect.input import reproduction
from gdnbench.bisect.trial import Trial
from gdnbench.bisect.verdict import Verdict
from gdnbench.bisect.workers import TIMEOUT
from gdnbench.printable import printable
from gdnbench.replay.kernels import is_user_kernel
from gdnbench.report.outcome import Outcome
from gdnbench.workers.restarting import PROCESS_ENDED
from gdnbench_kernels.contract import Call, Operation
from gdnbench_kernels.validate import dtype_name

HEAD = '''"""{title}

    python {name} [KERNEL]

Needs torch, numpy, zarr 3{needs}. Loads {store} beside this file, calls the kernel,
{kernel}
or another that is named as module:function or file.py:function, and compares it with the fp64 reference
below.
Exit status: 1 where it fails, 0 where it does not, 2 for what is not there or does not fit, 3 where it cannot
run here: no GPU, or an import that fails.

Seen: {seen}
"""

from __future__ import annotations

{imports}
'''
TAIL = '''
STORE = Path(__file__).parent / {store!r}
KERNEL = {kernel!r}
DEVICE = {device!r}
OUTPUTS: dict[str, tuple[tuple[int, ...], str]] = {outputs!r}
LIMITS: dict[str, dict[str, float]] = {limits!r}
"""{rule}"""
TAKES: dict[str, tuple[str, ...]] = {takes!r}
SECONDS: float | None = {seconds!r}
"""Of a kernel that ends its process or hangs, which then has one of its own for so long."""

if __name__ == "__main__":
    named = sys.argv[1] if len(sys.argv) > 1 else KERNEL
    if SECONDS is not None and HERE not in sys.argv:
        sys.exit(apart(__file__, named, SECONDS))
    status = exit_status(lambda: reproduce(STORE, named, reference, unowed, OUTPUTS, LIMITS, TAKES, DEVICE))
    sys.exit(status + OWN if HERE in sys.argv else status)
'''
RULES = {
    "bound": "RMS and largest error that pass: a multiple of torch's on the same record, and rounding.",
    "tolerance": "Differences that pass.",
    "bits": "Every bit must be that of the reference, rounded.",
}


_FOLDERS = re.compile(r"(?<![\w.])/(?:[^\s/:()'\"]+/)+")


def without_folders(text: str) -> str:
    """`text` with names of files instead of paths: what is sent to others says nothing of a machine."""
    return _FOLDERS.sub("", text)


def in_docstring(text: str) -> str:
    """`text` as one line of a docstring, which reads the same. A reason may quote the store of a stranger; a
    quote in it would end the docstring, and the rest would be code that runs with the script."""
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')


def why_not(operation: Operation, call: Call, verdict: Verdict) -> str | None:
    """Why there is no file for that failure; None if there is."""
    for name, (shape, _) in operation.outputs(call).items():
        if name in operation.selections:
            return f"{name} is a set of indices, whose order a stand-alone file would compare"
        if operation.stale(call, name, shape) is not None:
            return f"{name} has elements that may hold anything, which a stand-alone file would compare"
    failing = verdict.facts.get("failing", [])
    if verdict.kind == Outcome.MISMATCH and failing and all(entry["stage"] for entry in failing):
        return "only stages fail, which the reference of a stand-alone file does not have"
    if verdict.kind not in (Outcome.MISMATCH, Outcome.CRASH, Outcome.HANG):
        return f"a stand-alone file does not show: {verdict.kind}"
    return None


def text_of(
    operation: Operation, call: Call, trial: Trial, verdict: Verdict, store: str, name: str, title: str
) -> str:
    """The file's text. `store` is the name of the store that lies beside it, `name` its own."""
    target, needs = trial.kernel, ""
    declared: Mapping[str, tuple[str, ...]] = {}
    if not is_user_kernel(trial.kernel):
        entry = operation.kernels[trial.kernel]
        target, declared = entry.target, entry.conventions
        needs = ", ".join(["", "gdnbench, for the kernel itself", *entry.needs])
        needs += "" if "cpu" in entry.devices else "; a GPU that it is compiled for"
    takes = {
        convention.name: tuple(map(str, declared.get(convention.name, convention.values[:1])))
        for convention in operation.conventions
    }
    parts = [
        importlib.import_module(f"gdnbench_kernels.{operation.name}.standalone"),
        reproduction,
    ]
    limits, rule = _limits(operation, trial, verdict, call)
    imports = sorted(
        {line for part in parts for line in _imports(part)},
        key=lambda line: (not line.startswith("import"), line),
    )
    outputs = {
        output: (tuple(shape), dtype_name(dtype))
        for output, (shape, dtype) in operation.outputs(call).items()
    }
    head = HEAD.format(
        title=in_docstring(title),
        name=in_docstring(name),
        needs=needs,
        store=in_docstring(store),
        kernel=in_docstring(target),
        seen=in_docstring(without_folders(f"{verdict.kind}: {verdict.reason}")),
        imports="\n".join(imports),
    )
    tail = TAIL.format(
        store=store,
        kernel=target,
        device="cpu" if trial.on == "cpu" else "cuda",
        outputs=outputs,
        limits=limits,
        rule=RULES[rule],
        takes=takes,
        seconds=_seconds(verdict),
    )
    return "\n".join([head, *(_body(part) for part in parts), tail])


def _seconds(verdict: Verdict) -> float | None:
    """How long a kernel that ends its process, or hangs in it, may take; None of any other."""
    if verdict.kind == Outcome.HANG:
        return verdict.seconds
    ended = verdict.kind == Outcome.CRASH and verdict.reason.startswith((PROCESS_ENDED, "SystemExit"))
    return TIMEOUT if ended else None


def _limits(
    operation: Operation, trial: Trial, verdict: Verdict, call: Call
) -> tuple[dict[str, dict[str, float]], str]:
    """What the file holds tensors to, and by which rule: those that failed, and nothing else."""
    failing = {entry["tensor"]: entry for entry in verdict.facts.get("failing", []) if not entry["stage"]}
    names = [name for name, entry in failing.items() if name and entry["ways"] != [FORM]]
    if trial.bitwise:
        return {name: {"bitwise": 1.0} for name in names}, "bits"
    if trial.tol is not None:
        return {
            name: dict(zip(("absolute", "relative"), trial.tol, strict=True)) for name in names
        }, "tolerance"
    found: dict[str, dict[str, float]] = {}
    for name in names:
        tolerance = operation.tolerances.get(name)
        if tolerance is not None:
            found[name] = {"absolute": tolerance.absolute, "relative": tolerance.relative}
        else:
            found[name] = _bound(failing[name])
    return found, "bound"


def _bound(entry: Mapping[str, Any]) -> dict[str, float]:
    """The limits of RMS and largest error as they were. Where the whole tensor keeps to them, and a part of
    it or a gain alone does not, the limit of the RMS is below the RMS by the root of that one's excess."""
    held = {one["what"]: one for one in entry.get("held", [])}
    found = {}
    for what, key in (("RMS", "rms"), ("largest", "largest")):
        if what in held and math.isfinite(held[what]["limit"]):
            found[key] = held[what]["limit"]
    over = [one for one in held.values() if one["error"] > one["limit"]]
    if over and not any(one["what"] in ("RMS", "largest") for one in over) and "RMS" in held:
        share = min(one["limit"] / one["error"] for one in over)
        found["rms"] = held["RMS"]["error"] * math.sqrt(share)
    return found


def _tree(module: ModuleType) -> tuple[str, list[ast.stmt]]:
    assert module.__file__ is not None
    source = Path(module.__file__).read_text(encoding="utf-8")
    return source, ast.parse(source).body


def _imports(module: ModuleType) -> list[str]:
    _, body = _tree(module)
    lines = [ast.unparse(node) for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    return [line for line in lines if "__future__" not in line]


def _body(module: ModuleType) -> str:
    """A module's text but for its docstring and imports."""
    source, body = _tree(module)
    kept = [node for node in body[1:] if not isinstance(node, ast.Import | ast.ImportFrom)]
    first = kept[0].lineno
    return "\n" + "\n".join(source.splitlines()[first - 1 :]) + "\n"
