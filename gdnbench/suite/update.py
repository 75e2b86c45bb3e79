# SPDX-License-Identifier: Apache-2.0
"""Accepts the errors that a suite measured into its baseline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdnbench.errors import BadInputError
from gdnbench.suite.baseline import NAMES, Key, check_errors, locked_baseline
from gdnbench.suite.export import SCHEMA
from gdnbench.suite.plan import Suite
from gdnbench.suite.ratchet import METRICS
from gdnbench.suite.results import SUMMARY, read_json_object


def update_baseline(suite: Suite, results: Path, reason: str) -> list[dict[str, Any]]:
    """Accept the errors in the folder `results` that are new, or worse or better by the factor; returns the
    changes.

    The others stay, because accepting small changes again and again would let an error creep up.
    BadInputError for a blank reason, a suite without baselines, or results of another suite.
    """
    if not reason.strip():
        raise BadInputError("--reason is blank: say why these errors are right, for those who come after")
    if suite.baselines is None:
        raise BadInputError(f"{suite.path} has no baselines: give it a key, baselines = 'FILE.json'")
    place = results / SUMMARY
    summary = read_json_object(place)
    entries = summary.get("entries")
    if summary.get("schema") != SCHEMA or not isinstance(entries, list):
        raise BadInputError(f"{place} is no summary of schema {SCHEMA}, as `gdnbench suite` writes it")
    factors = {entry.key: entry.options.factor for entry in suite.entries}
    found: dict[Key, dict[str, float]] = {}
    for number, entry in enumerate(entries):
        found |= _errors(entry, f"{place}: entries[{number}]")
    strange = next((key for key in found if key[:3] not in factors), None)
    if strange is not None:
        raise BadInputError(f"{place} has {' '.join(strange[:3])}, which {suite.path} does not ask for")
    provenance = _object(summary.get("provenance"), f"{place}: provenance")
    with locked_baseline(suite.baselines) as baseline:
        chosen = {
            key: errors
            for key, errors in found.items()
            if _differs(errors, baseline.accepted.get(key), factors[key[0], key[1], key[2]])
        }
        packages = {name: value for name, value in provenance.items() if name != "git"}
        return baseline.accept(chosen, reason=reason.strip(), git=provenance.get("git"), provenance=packages)


def _differs(errors: Mapping[str, float], accepted: Mapping[str, Any] | None, factor: float) -> bool:
    """Whether any error differs from the accepted one by `factor` in either direction, without a floor."""
    if accepted is None:
        return True
    pairs = [(errors[metric], accepted[metric]) for metric in METRICS]
    return any(max(pair) > factor * min(pair) for pair in pairs)


def _errors(entry: Any, where: str) -> dict[Key, dict[str, float]]:
    """The errors in an entry of a summary; BadInputError if one is no finite number."""
    found = {}
    capture, kernel, on = (_text(_object(entry, where).get(name), f"{where}.{name}") for name in NAMES[:3])
    for record, tensors in _object(entry.get("errors"), f"{where}.errors").items():
        for tensor, errors in _object(tensors, f"{where}.errors").items():
            key = (capture, kernel, on, record, tensor)
            values = _object(errors, f"{where}.errors {record} {tensor}")
            check_errors(values, f"{where}.errors {record} {tensor}")
            found[key] = {name: float(values[name]) for name in METRICS}
    return found


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadInputError(f"{where} is no object")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise BadInputError(f"{where} is no text")
    return value
