# SPDX-License-Identifier: Apache-2.0
"""The options of an axis that say which kind of failure is looked for, and under which schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gdnbench.errors import BadInputError
from gdnbench.record_numbers import record_numbers
from gdnbench.store.address import absolute_address

if TYPE_CHECKING:
    from gdnbench.bisect.trial import Trial
    from gdnbench.store.reader import Store

_KINDS = "Look for one kind of failure only. numbers: an output is wrong; race: the simulator's race checker"
SymptomOption = Annotated[
    str | None,
    typer.Option(
        metavar="numbers|race|crash",
        help=f"{_KINDS} finds an error that the good endpoint does not have; crash: a crash or a hang."
        " Default: any failure, without findings of the checker.",
    ),
]
TensorOption = Annotated[
    str | None,
    typer.Option(help="With --symptom numbers: only this output or stage counts, e.g. final_state."),
]
ScheduleOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="late|early|random:SEED",
        help="With --on sim: simulate under this schedule only: late or early, which say when asynchronous"
        " operations complete, or random:SEED, e.g. random:3. Repeatable. Default: late; also early and"
        " random:0 where the result may depend on the schedule.",
    ),
]
BaselineOption = Annotated[
    Path | None,
    typer.Option(
        help="With --symptom race: known findings, a file of replay --check --write-baseline, which has those"
        " of one schedule: give its --schedule here too. Default: none."
    ),
]
FailureOption = Annotated[
    str | None,
    typer.Option(
        metavar="numbers|race|crash",
        help=f"{_KINDS} finds an error that is not in --baseline; crash: a crash or a hang. Default: any"
        " failure, without findings of the checker.",
    ),
]
"""`--symptom` of an axis without a good endpoint."""
NUMBERS, RACE, CRASH = "numbers", "race", "crash"


@dataclass(frozen=True, slots=True)
class SymptomOptions:
    """`--symptom` and the options that go with it, as typed. `check` is `--check`, which `commit` has."""

    symptom: str | None = None
    tensor: str | None = None
    schedule: Sequence[str] | None = None
    baseline: str | Path | None = None
    check: bool = False

    def trial_arguments(self, store: Store, records: Sequence[int] | None, on: str) -> dict[str, Any]:
        """The arguments of a `Trial` for these options. BadInputError or InputError for options that
        contradict each other or the records."""
        from gdnbench.bisect.symptom import Symptom
        from gdnbench.replay.simulated import SIM
        from gdnbench.sim import Schedule

        symptom, tensor = self.symptom, self.tensor
        if symptom not in (None, NUMBERS, RACE, CRASH):
            raise BadInputError(f"--symptom {symptom!r} is none of {NUMBERS}, {RACE}, {CRASH}")
        if tensor is not None and symptom != NUMBERS:
            raise BadInputError(f"--tensor is about wrong numbers: give --symptom {NUMBERS} too")
        if self.baseline is not None and symptom != RACE:
            raise BadInputError(f"--baseline is about findings of the checker: give --symptom {RACE} too")
        if self.check and symptom in (NUMBERS, CRASH):
            raise BadInputError(f"--check does not count with --symptom {symptom}: give only one of them")
        if on != SIM and (self.schedule or symptom == RACE):
            option = "--schedule" if self.schedule else f"--symptom {RACE}"
            raise BadInputError(f"{option} is for the simulator: --on {SIM}, not {on}")
        schedules = tuple(dict.fromkeys(self.schedule or ()))
        for one in schedules:
            Schedule.parse(one)
        found: dict[str, Any] = {
            "check": self.check or symptom == RACE,
            "symptom": None if symptom is None else Symptom(symptom),
            "tensor": tensor,
            "stages": tensor is not None and _is_stage(store, records, tensor),
        }
        if self.baseline is not None:
            found["known"] = _text(Path(self.baseline))
        return found | ({"schedules": schedules, "only_schedules": True} if schedules else {})


def make_trial(
    store: str,
    kernel: str,
    on: str,
    records: str | None,
    symptom: SymptomOptions,
    *,
    k: float | None,
    tol: tuple[float, float] | None,
    bitwise: bool = False,
) -> Trial:
    """The trial of an axis that replays the chosen records of a store, all of them for None. Raises what
    `SymptomOptions.trial_arguments` raises, and BadInputError for records that are not there."""
    from gdnbench.bisect.trial import Trial
    from gdnbench.store.recover import open_store

    with open_store(store) as opened:
        numbers = None if records is None else tuple(record_numbers(records, len(opened.records)))
        more = symptom.trial_arguments(opened, numbers, on)
    address = absolute_address(store)
    return Trial(address, kernel, on, numbers, k=k, tol=tol, bitwise=bitwise, **more)


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
    """The text of an accept file, which is read once: it may be a pipe. InputError if it is none."""
    from gdnbench.sim import Accepted

    return Accepted.read(baseline, "--baseline").as_toml()
