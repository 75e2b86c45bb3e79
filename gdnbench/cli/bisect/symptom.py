"""The options of an axis that say which kind of failure is looked for, and under which schedules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gdnbench.errors import BadInputError

if TYPE_CHECKING:
    from gdnbench.store.reader import Store

SymptomOption = Annotated[
    str | None,
    typer.Option(
        metavar="numbers|race|crash",
        help="Which kind of failure counts as bad: wrong numbers, findings of the race checker that the good"
        " end does not have, or a crash or hang. Default: any.",
    ),
]
TensorOption = Annotated[
    str | None,
    typer.Option(help="With --symptom numbers: only this output or stage counts, e.g. final_state."),
]
ScheduleOption = Annotated[
    list[str] | None,
    typer.Option(
        help="With --on sim: simulate under this schedule alone: late, early or random:SEED. Repeatable."
    ),
]
BaselineOption = Annotated[
    Path | None,
    typer.Option(help="With --symptom race: known findings, a file of replay --check --write-baseline."),
]
FailureOption = Annotated[
    str | None,
    typer.Option(
        metavar="numbers|race|crash",
        help="Which kind of failure counts as bad: wrong numbers, findings of the race checker that are not"
        " in --baseline, or a crash or hang. Default: any but findings.",
    ),
]
"""`--symptom` of an axis without a good end."""
NUMBERS, RACE, CRASH = "numbers", "race", "crash"


def symptom_arguments(
    store: Store,
    records: Sequence[int] | None,
    on: str,
    *,
    check: bool,
    symptom: str | None,
    tensor: str | None,
    schedule: Sequence[str] | None,
    baseline: str | Path | None,
) -> dict[str, Any]:
    """The arguments of a `Trial` for these options; a path may be text, as a session keeps it. BadInputError
    or InputError for options that contradict each other or the records."""
    from gdnbench.bisect.symptom import Symptom
    from gdnbench.replay.simulated import SIM
    from gdnbench.sim import Schedule

    if symptom not in (None, NUMBERS, RACE, CRASH):
        raise BadInputError(f"--symptom {symptom!r} is none of {NUMBERS}, {RACE}, {CRASH}")
    if tensor is not None and symptom != NUMBERS:
        raise BadInputError(f"--tensor is about wrong numbers: give --symptom {NUMBERS} too")
    if baseline is not None and symptom != RACE:
        raise BadInputError(f"--baseline is about findings of the checker: give --symptom {RACE} too")
    if check and symptom in (NUMBERS, CRASH):
        raise BadInputError(f"--check does not count with --symptom {symptom}: leave one of them out")
    if on != SIM and (schedule or symptom == RACE):
        option = "--schedule" if schedule else f"--symptom {RACE}"
        raise BadInputError(f"{option} is for the simulator: --on {SIM}, not {on}")
    schedules = tuple(dict.fromkeys(schedule or ()))
    for one in schedules:
        Schedule.parse(one)
    found: dict[str, Any] = {
        "check": check or symptom == RACE,
        "symptom": None if symptom is None else Symptom(symptom),
        "tensor": tensor,
        "stages": tensor is not None and _is_stage(store, records, tensor),
    }
    if baseline is not None:
        found["known"] = _text(Path(baseline))
    return found | ({"schedules": schedules, "only_schedules": True} if schedules else {})


def _is_stage(store: Store, records: Sequence[int] | None, tensor: str) -> bool:
    """Whether `tensor` is a stage of the records' operations, and no output. BadInputError if neither."""
    from gdnbench.ops import operation
    from gdnbench_kernels.contract import Role

    chosen = store.records if records is None else [store.records[number] for number in records]
    found = [operation(name) for name in dict.fromkeys(record.info.op for record in chosen)]
    outputs = [spec.name for one in found for spec in one.tensors if spec.role is not Role.INPUT]
    stages = [stage.tensor.name for one in found for stage in one.stages]
    if tensor not in (*outputs, *stages):
        names = ", ".join(dict.fromkeys((*outputs, *stages)))
        raise BadInputError(f"--tensor {tensor} is no output or stage of these records; there are {names}")
    return tensor not in outputs


def _text(baseline: Path) -> str:
    """The text of an accept file. InputError if it is none."""
    from gdnbench.sim import Accepted

    Accepted.read(baseline, "--baseline")
    return baseline.read_text(encoding="utf-8")
