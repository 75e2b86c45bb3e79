"""What a mark, or the command line, asks of the records it names; all that can be told without a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest

from gdnbench.errors import BadInputError

_TEXTS = ("kernel", "on", "against")
_SWITCHES = ("bitwise", "stages", "check")


@dataclass(frozen=True, slots=True)
class Asked:
    """Options of `gdnbench.replay.replay.replay`, and which records; `None`: as there.

    `records` is a text such as "0,3-5".
    """

    kernel: str = "torch"
    on: str = "cpu"
    against: str = "reference"
    op: str | None = None
    records: str | None = None
    k: float | None = None
    k_by_tensor: Mapping[str, float] = field(default_factory=dict)
    tol: tuple[float, float] | None = None
    bitwise: bool = False
    stages: bool = False
    check: bool = False
    isolate: bool | None = None
    timeout: float | None = None


def asked_of(options: Mapping[str, Any], config: pytest.Config, *folders: Path) -> Asked:
    """What `options` of a mark ask for, the command line's where they say nothing. A kernel's file is looked
    for in `folders`. BadInputError for an option that there is not, or of a wrong type."""
    known = [one.name for one in fields(Asked)]
    for name in options:
        if name not in known:
            raise BadInputError(f"mark gdnbench has no option {name!r}; it has {', '.join(known)}")
    given = {name: value for name, value in options.items() if value is not None}
    for name in _TEXTS:
        value = given.setdefault(name, config.getoption(f"gdnbench_{name}") or getattr(Asked(), name))
        if not isinstance(value, str):
            raise BadInputError(
                f"{name}={value!r} is not a text; a function of the test is called by case.check(function)"
            )
        if name in options:
            given[name] = _in_folder(value, folders)
    for name in _SWITCHES:
        if not isinstance(given.get(name, False), bool):
            raise BadInputError(f"{name}={given[name]!r} is not True or False")
    if "records" in given:
        given["records"] = _records(given["records"])
    if "tol" in given and not isinstance(given["tol"], tuple):
        given["tol"] = (given["tol"], 0.0)
    _check_numbers(given)
    return _agreeing(Asked(**given))


def _records(value: Any) -> str:
    values = [value] if isinstance(value, str | int) else value
    try:
        return ",".join(str(one) for one in values)
    except TypeError:
        raise BadInputError(
            f"records={value!r}: write a number, a list of them, or a text like '0,3-5'"
        ) from None


def _check_numbers(given: Mapping[str, Any]) -> None:
    by_tensor = given.get("k_by_tensor", {})
    if not isinstance(by_tensor, Mapping):
        raise BadInputError(f"k_by_tensor={by_tensor!r} is not a dict of numbers by tensor")
    numbers = [(name, given[name]) for name in ("k", "timeout") if name in given]
    numbers += [(f"k_by_tensor {name}", value) for name, value in by_tensor.items()]
    numbers += [("tol", value) for value in given.get("tol", ())]
    for name, value in numbers:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise BadInputError(f"{name}={value!r} is not a number")
    if len(given.get("tol", (0, 0))) != 2:
        raise BadInputError(f"tol={given['tol']!r} is not a number or (absolute, relative)")


def _agreeing(asked: Asked) -> Asked:
    if asked.check and asked.on != "sim":
        raise BadInputError(f"check=True is done by the simulator: on='sim', not {asked.on!r}")
    if asked.stages and asked.against == "recorded":
        raise BadInputError("no call records its stages: compare them with reference or another kernel")
    if asked.timeout is not None and not asked.timeout > 0:
        raise BadInputError(f"timeout={asked.timeout:g} must be a number of seconds above 0")
    return asked


def _in_folder(kernel: str, folders: tuple[Path, ...]) -> str:
    """`path/file.py:function` with the path made absolute, if the file is in one of `folders`."""
    place, _, function = kernel.rpartition(":")
    if not place.endswith(".py"):
        return kernel
    found = next((folder / place for folder in folders if (folder / place).is_file()), None)
    return kernel if found is None else f"{found}:{function}"
