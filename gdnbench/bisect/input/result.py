# SPDX-License-Identifier: Apache-2.0
"""Writes the shrunk record: as a store, as a Python file, and as lines for people."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdnbench.bisect.input.probing import KIND, CandidateProber, write_record
from gdnbench.bisect.input.script import text_of, why_not, without_folders
from gdnbench.bisect.input.shrink import Shrunk
from gdnbench.bisect.input.shrinker import Shrinker
from gdnbench.errors import BadInputError, StoreError
from gdnbench.provenance import provenance
from gdnbench.replay.simulated import SIM
from gdnbench.store.reader import Store
from gdnbench.synth import RECORDED_KERNEL
from gdnbench.units import human_bytes
from gdnbench_kernels.contract import Call
from gdnbench_kernels.run import run_kernel

MADE = "shrunk"
"""Under which key a store's provenance says what it was made of."""


def check_place(path: Path, option: str) -> None:
    """BadInputError if nothing can be written there, which is better known before than after the search."""
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        why = "may not be written to" if above.is_dir() else "is no folder"
        raise BadInputError(f"{option} {path} cannot be written: {above} {why}; choose another path")


def check_script(script: Path) -> None:
    check_place(script, "--script")
    if script.is_dir():
        raise BadInputError(f"--script {script} is a folder; name a file")


def check_out(out: Path) -> None:
    """BadInputError for a place that something else has than an earlier result, which is replaced."""
    check_place(out, "--out")
    if not out.exists():
        return
    try:
        with Store.open(out) as store:
            ours = store.kind == KIND and store.segments and MADE in store.segments[0].provenance
    except StoreError:
        ours = False
    if not ours:
        raise BadInputError(f"--out {out} is there and is no shrunk record; choose another path")


def write_store(found: Shrunk, out: Path) -> None:
    """The smallest record so far, with the outputs that torch's kernel has for it."""
    shrinker, prober = _there(found)
    call = shrinker.best.call
    outputs = run_kernel(found.operation, RECORDED_KERNEL, call)
    check_out(out)
    unfinished = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        draft = prober.draft(shrinker.best, outputs)
        write_record(unfinished, draft, provenance=_provenance(found), durable=True)
        shutil.rmtree(out, ignore_errors=True)
        os.rename(unfinished, out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_script(found: Shrunk, out: Path, script: Path) -> str | None:
    """None, or why there is none."""
    shrinker, _ = _there(found)
    assert shrinker.verdict is not None
    reason = why_not(found.operation, shrinker.best.call, shrinker.verdict)
    if reason is not None:
        return reason
    title = f"Reproduces a failure of {found.operation.name}: record {found.key}, shrunk."
    text = text_of(
        found.operation,
        shrinker.best.call,
        found.trial,
        shrinker.verdict,
        os.path.relpath(out, script.parent),
        script.name,
        title,
    )
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(text, encoding="utf-8")
    return None


def _provenance(found: Shrunk) -> dict[str, Any]:
    shrinker, _ = _there(found)
    assert shrinker.verdict is not None
    made = {
        "record": found.key,
        "content": found.content,
        "steps": shrinker.steps,
        "values": shrinker.simplified,
        "failure": {"kind": shrinker.verdict.kind, "reason": without_folders(shrinker.verdict.reason)},
        "complete": found.complete,
        "schedules": list(found.trial.schedules) if found.trial.on == SIM else [],
    }
    return {**provenance(), MADE: made}


def to_json(found: Shrunk) -> dict[str, Any]:
    """What the session keeps, and `--json` prints."""
    base = {"record": found.number, "key": found.key, "kind": found.first.kind, "reason": found.reason}
    base |= {"notes": list(found.notes), "schedules": list(found.trial.schedules)}
    if found.shrinker is None or found.begun is None or found.shrinker.verdict is None:
        return {**base, "shrunk": False}
    return {
        **base,
        "shrunk": True,
        "complete": found.complete,
        "before": _extent(found, found.begun),
        "after": _extent(found, found.shrinker.best.call),
        "steps": found.shrinker.steps,
        "values": found.shrinker.simplified,
        "failure": found.shrinker.verdict.reason or found.shrinker.verdict.kind,
        "asked": 0 if found.prober is None else found.prober.candidates_probed,
    }


def rows(found: Shrunk) -> list[tuple[str, str, str]]:
    """(axis, before, after) of everything that is counted, and of what happened to values."""
    shrinker, _ = _there(found)
    assert found.begun is not None
    before, after = _extent(found, found.begun), _extent(found, shrinker.best.call)
    table = [(_plural(name), f"{before[name]:,}", f"{after[name]:,}") for name in before]
    table.append(("bytes", human_bytes(_bytes(found.begun)), human_bytes(_bytes(shrinker.best.call))))
    gone = [name for name in found.begun.tensors if name not in shrinker.best.call.tensors]
    table += [(name, "there", "left out") for name in gone]
    values = {name: how for name, how in shrinker.simplified.items() if name in shrinker.best.call.tensors}
    table += [(name, "as recorded", how) for name, how in values.items()]
    return table


def answer(found: Shrunk) -> str:
    """The last line."""
    if found.shrinker is None or found.begun is None or found.shrinker.verdict is None:
        return f"record {found.number} is not shrunk: {found.reason}"
    before, after = _extent(found, found.begun), _extent(found, found.shrinker.best.call)
    changed = [name for name in before if before[name] != after[name]] or list(before)[:1]
    was, now = (", ".join(_counted(sizes[name], name) for name in changed) for sizes in (before, after))
    verdict = found.shrinker.verdict
    so_far = "" if found.complete else " so far"
    return f"record {found.number} shrunk{so_far} from {was} to {now}; {verdict.reason or verdict.kind}"


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name if count == 1 else _plural(name)}"


def _plural(name: str) -> str:
    """entry -> entries, token a sequence -> tokens a sequence."""
    noun, *rest = name.split(" a ")
    return " a ".join([f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s", *rest])


def _extent(found: Shrunk, call: Call) -> Mapping[str, int]:
    assert found.operation.shrinking is not None
    return found.operation.shrinking.extent(call)


def _bytes(call: Call) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in call.tensors.values())


def _there(found: Shrunk) -> tuple[Shrinker, CandidateProber]:
    assert found.shrinker is not None
    assert found.prober is not None
    return found.shrinker, found.prober
