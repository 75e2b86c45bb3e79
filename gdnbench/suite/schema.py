# SPDX-License-Identifier: Apache-2.0
"""The keys of a suite's tables and their allowed values; an invalid value gives a one-line error that says
what is allowed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import date, datetime
from typing import Any

from gdnbench.errors import BadInputError
from gdnbench.replay.execute import DEVICES
from gdnbench.report.outcome import Outcome
from gdnbench.sim.virtual import MACHINES
from gdnbench.suite.plan import TensorRule
from gdnbench.toml_tables import FLAG, TEXT, Key, parse_subtable, parse_subtables, parse_text, refuse_unless

WORSE = "worse than accepted"
"""The outcome of a tensor that passes its rule but not its baseline."""

LARGEST = sys.float_info.max
"""Limit for integers, which may exceed the range of a float."""

FAILURES = (*(str(outcome) for outcome in Outcome if outcome is not Outcome.PASS), WORSE)


def _texts(value: Any) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    refuse_unless(bool(values) and len({repr(one) for one in values}) == len(values))
    return tuple(map(parse_text, values))


def _number(value: Any) -> float:
    refuse_unless(isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST)
    return float(value)


def _at_least(least: float, strictly: bool = False) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        number = _number(value)
        refuse_unless(number > least if strictly else number >= least)
        return number

    return parse


def _tolerance(value: Any) -> tuple[float, float]:
    values = value if isinstance(value, list) else [value, 0.0]
    refuse_unless(len(values) == 2)
    absolute, relative = map(_at_least(0.0), values)
    return absolute, relative


def _count(value: Any) -> int:
    refuse_unless(isinstance(value, int) and not isinstance(value, bool) and value >= 1)
    return int(value)


def _records(value: Any) -> tuple[int, ...]:
    refuse_unless(isinstance(value, list) and bool(value))
    refuse_unless(all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in value))
    refuse_unless(len(set(value)) == len(value))
    return tuple(value)


def _one_of(names: tuple[str, ...]) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        refuse_unless(isinstance(value, str) and value in names)
        return str(value)

    return parse


def _places(value: Any) -> tuple[str, ...]:
    return tuple(map(_one_of(DEVICES), _texts(value)))


def _day(value: Any) -> date:
    refuse_unless(isinstance(value, date) and not isinstance(value, datetime))
    found: date = value
    return found


FACTOR = Key("a number of at least 1", _at_least(1.0))
RULE = {
    "k": Key("a number of 0 or more", _at_least(0.0)),
    "tol": Key("ABS or [ABS, REL], numbers of 0 or more", _tolerance),
    "bitwise": FLAG,
}
REPLAY = {
    "name": TEXT,
    "captures": Key("a path or pattern, or a list of different ones", _texts),
    "made": Key("the path of a TOML file of made records, or a list of different ones", _texts),
    "kernels": Key("the name of a kernel, or a list of different ones", _texts),
    "on": Key(f"one of {', '.join(DEVICES)}, or a list of them", _places),
    "op": TEXT,
    "records": Key("a list of different record numbers, such as [0, 3]", _records),
    "against": TEXT,
    **RULE,
    "tensors": Key("a table of rules, such as { o = { k = 3 } }", parse_subtable),
    "stages": FLAG,
    "check": FLAG,
    "accept": TEXT,
    "timeout": Key("a number of seconds above 0", _at_least(0.0, strictly=True)),
    "isolate": FLAG,
    "machine": Key(f"one of {', '.join(MACHINES)}", _one_of(tuple(MACHINES))),
    "sms": Key("a whole number of 1 or more", _count),
    "optional": FLAG,
    "factor": FACTOR,
}
LINEAGE = {name: REPLAY[name] for name in ("name", "captures")}
DEFAULTS = {name: key for name, key in REPLAY.items() if name != "name"}
KNOWN = {
    "entry": Key("the name of an entry, or a pattern with *", parse_text),
    "record": Key("the number, key or label of a record as text, or a pattern with *", parse_text),
    "tensor": Key("the name of a tensor, or a pattern with *", parse_text),
    "outcome": Key(f"one of {', '.join(FAILURES)}", _one_of(FAILURES)),
    "reason": Key("a text of one line that says why", parse_text),
    "link": TEXT,
    "until": Key("the last day that it counts, a date such as 2027-01-31 without quotes", _day),
}
SUITE = {
    "baselines": Key("the path of a JSON file", parse_text),
    "factor": FACTOR,
    "defaults": Key("a table, [defaults]", parse_subtable),
    "replay": Key("tables, [[replay]]", parse_subtables),
    "lineage": Key("tables, [[lineage]]", parse_subtables),
    "known": Key("tables, [[known]]", parse_subtables),
}


def take_rule(values: dict[str, Any], where: str) -> TensorRule:
    """Remove k, tol and bitwise from `values` and return them as a rule; BadInputError if several are
    given."""
    given = [name for name in RULE if values.get(name) not in (None, False)]
    if len(given) > 1:
        raise BadInputError(f"{where}: {' and '.join(given)} are rules of which a tensor has one; choose")
    taken = {name: values.pop(name) for name in RULE if name in values}
    return TensorRule(**taken)
