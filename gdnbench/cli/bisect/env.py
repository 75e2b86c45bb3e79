# SPDX-License-Identifier: Apache-2.0
"""`gdnbench bisect env`: which package, and which of its versions, made a kernel wrong?"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gdnbench.cli.bisect.common import (
    BitwiseOption,
    FactorOption,
    FreshOption,
    JsonOption,
    KernelOption,
    OnOption,
    StateOption,
    TolOption,
    begun,
    finish,
)
from gdnbench.cli.bisect.symptom import (
    BaselineOption,
    ScheduleOption,
    SymptomOption,
    SymptomOptions,
    TensorOption,
    make_trial,
)
from gdnbench.cli.judging import tolerance
from gdnbench.cli.record_options import RecordsArgument, StoreArgument
from gdnbench.errors import BadInputError


def env(
    store: StoreArgument,
    kernel: KernelOption,
    good: Annotated[
        str, typer.Option(help="Package versions with which the kernel is right, e.g. 'a==1.0 b==2.1'.")
    ],
    bad: Annotated[
        str, typer.Option(help="Package versions with which the kernel is wrong, e.g. 'a==1.1 b==2.1'.")
    ],
    records: RecordsArgument = None,
    on: OnOption = "cpu",
    k: FactorOption = None,
    tol: TolOption = None,
    bitwise: BitwiseOption = False,
    python: Annotated[
        str | None,
        typer.Option(
            help="Python interpreter that the environments extend; gdnbench must be installed there."
        ),
    ] = None,
    beside: Annotated[
        str, typer.Option("--with", help="Install these in every environment, e.g. 'c==3 d'.")
    ] = "",
    index_url: Annotated[str | None, typer.Option(help="Passed to pip.")] = None,
    find_links: Annotated[list[str] | None, typer.Option(help="Passed to pip. Repeatable.")] = None,
    no_index: Annotated[bool, typer.Option("--no-index", help="Passed to pip.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds after which a replay counts as hung.")] = 600.0,
    symptom: SymptomOption = None,
    tensor: TensorOption = None,
    schedule: ScheduleOption = None,
    baseline: BaselineOption = None,
    state: StateOption = None,
    fresh: FreshOption = False,
    json: JsonOption = False,
) -> None:
    """Find the package, and its version, that made a kernel wrong."""
    arguments = {name: value for name, value in locals().items() if name not in ("state", "fresh")}
    from gdnbench.bisect.env.axis import EnvBisection, bisect_packages
    from gdnbench.bisect.env.requirements import pins
    from gdnbench.judge.rule import make_rule

    limits = tolerance(tol)
    make_rule(k, None, limits, bitwise)  # refuses what contradicts itself before anything runs
    failure = SymptomOptions(symptom, tensor, schedule, baseline)
    trial = make_trial(store, kernel, on, records, failure, k=k, tol=limits, bitwise=bitwise)
    options = [] if index_url is None else ["--index-url", index_url]
    options += [word for place in find_links or () for word in ("--find-links", place)]
    options += ["--no-index"] * no_index
    for word in beside.split():
        if word.startswith("-"):
            raise BadInputError(f"--with {word!r} is an option of pip; give requirements like 'c==3 d'")
    bisection = EnvBisection(
        trial,
        pins(good, "--good"),
        pins(bad, "--bad"),
        sys.executable if python is None else python,
        timeout,
        tuple(beside.split()),
        tuple(options),
    )
    with begun("env", arguments, state, fresh) as session:
        answer = bisect_packages(bisection, session)
        finish(session, answer.found, answer.lines, answer.exit_code, json)
