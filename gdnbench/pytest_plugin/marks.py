# SPDX-License-Identifier: Apache-2.0
"""The records and options that a mark or the command line requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gdnbench.errors import BadInputError

if TYPE_CHECKING:
    from gdnbench.replay.replay import ReplayOptions

_DEFAULTS = {"kernel": "torch", "on": "cpu", "against": "reference"}
_RULES = ("k", "k_by_tensor", "tol", "bitwise")
_KNOWN = (*_DEFAULTS, "op", "records", *_RULES, "stages", "check", "isolate", "timeout", "machine", "sms")


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """The requested records, and options of `gdnbench.replay.replay.replay_options`.

    `records` is a text such as "0,3-5"; None: all.
    """

    op: str | None = None
    records: str | None = None
    given: Mapping[str, Any] = field(default_factory=dict)

    def options(self) -> ReplayOptions:
        """The replay options; raises what `replay_options` raises. Needs torch, which selecting records does
        not."""
        from gdnbench.replay.replay import replay_options

        return replay_options(**self.given)


def parse_request(options: Mapping[str, Any], config: pytest.Config, *folders: Path) -> RecordRequest:
    """The request of a mark's `options`, with the command line's values as defaults.

    A kernel's file is searched in `folders`. BadInputError for an unknown option or a wrong type.
    """
    for name in options:
        if name not in _KNOWN:
            raise BadInputError(f"mark gdnbench has no option {name!r}; it has {', '.join(_KNOWN)}")
    given = {name: value for name, value in options.items() if value is not None}
    for name, default in _DEFAULTS.items():
        value = given.setdefault(name, config.getoption(f"gdnbench_{name}") or default)
        if not isinstance(value, str):
            raise BadInputError(
                f"{name}={value!r} is not a text; a function of the test is called by case.check(function)"
            )
        if name in options:
            given[name] = in_folder(value, *folders)
    for name in ("bitwise", "stages", "check", "isolate"):
        if not isinstance(given.get(name, False), bool):
            raise BadInputError(f"{name}={given[name]!r} is not True or False")
    if "tol" in given and not isinstance(given["tol"], tuple):
        given["tol"] = (given["tol"], 0.0)
    _check_numbers(given)
    records = _records(given.pop("records")) if "records" in given else None
    return RecordRequest(given.pop("op", None), records, given)


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


def in_folder(kernel: str, *folders: Path) -> str:
    """`path/file.py:function` with an absolute path, if the file is in one of `folders`."""
    place, _, function = kernel.rpartition(":")
    if not place.endswith(".py"):
        return kernel
    found = next((folder / place for folder in folders if (folder / place).is_file()), None)
    return kernel if found is None else f"{found}:{function}"
