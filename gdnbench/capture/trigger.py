# SPDX-License-Identifier: Apache-2.0
"""Triggers decide which of the selected calls are kept, and record why.

A call is kept if any trigger holds for it: `--when`, evaluated before the call, `--on-nonfinite`, evaluated
on the copies, or `--on-lineage`, evaluated on digests of the copies. A call that raised is kept too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gdnbench.capture.adapter import Observation
from gdnbench.capture.filter_expr import TensorForm, When
from gdnbench.capture.inflight import CallName, PendingRecord, axes_of
from gdnbench.capture.lineage_trigger import LineageTrigger, SmallParts, small_parts
from gdnbench.capture.nonfinite import Flags, flags_on_device, nonfinite
from gdnbench.capture.options import CaptureOptions
from gdnbench.capture.streams import Streams
from gdnbench.ops import operation, operations
from gdnbench.provenance import process_info
from gdnbench.record import Status

WHEN = "when"


class Triggers:
    """The triggers that the options name. BadInputError for an expression that uses an unknown name."""

    def __init__(self, options: CaptureOptions) -> None:
        self.any = options.triggered
        self._on_nonfinite = options.on_nonfinite
        self._lineage = LineageTrigger() if options.on_lineage else None
        self._when = None if options.when is None else When(options.when)
        if self._when is not None:
            self._when.check_names(known_names(), tensor_names())
        # Whether to copy calls for which no trigger held before they ran.
        self.copies = options.on_nonfinite or options.on_lineage or options.around > 0
        self._rank: tuple[int | None] | None = None

    def before(self, forms: Mapping[str, TensorForm], observation: Observation, name: CallName) -> str | None:
        """Why a call that is about to run is kept; None if no trigger decides that before the call."""
        if self._when is None:
            return None
        return WHEN if self._when.holds(self._names(forms, observation, name)) else None

    def flags(self, record: PendingRecord, streams: Streams) -> list[Flags]:
        """Queue the non-finite checks of a record on the current stream, behind its copies; returns their
        results in flight."""
        if not self._on_nonfinite or record.reason is not None:
            return []
        return flags_on_device(record, streams)

    def small_parts(self, record: PendingRecord, streams: Streams) -> SmallParts | None:
        """Queue what the check of a record's lineage needs; None without `--on-lineage`."""
        return None if self._lineage is None else small_parts(record, streams)

    def after(self, record: PendingRecord) -> str | None:
        """Why the record is kept, or None. Waits for the flags of a record on a device."""
        broken = None
        if self._lineage is not None and record.info.status is Status.COMPLETE:
            broken = self._lineage.reason(record, record.small_parts)
        if record.reason is not None:
            return record.reason
        if record.info.status is Status.UNFINISHED:
            return "raised"
        if broken is not None:
            return broken
        names = nonfinite(record, record.flags) if self._on_nonfinite else ()
        return f"nonfinite:{','.join(names)}" if names else None

    def unfollowed(self) -> list[str]:
        """Names of layers that `--on-lineage` could not check to the end."""
        return [] if self._lineage is None else self._lineage.unfollowed()

    def after_fork(self) -> None:
        self._rank = None
        if self._lineage is not None:
            self._lineage = LineageTrigger()

    def forms(self, observation: Observation) -> dict[str, TensorForm]:
        """The shapes and dtypes that `--when` may use; {} without that option."""
        if self._when is None:
            return {}
        return {
            name: TensorForm(
                tuple(seen.tensor.shape) if seen.shape is None else seen.shape,
                str(seen.tensor.dtype).removeprefix("torch."),
            )
            for name, seen in observation.tensors.items()
        }

    def _names(
        self, forms: Mapping[str, TensorForm], observation: Observation, name: CallName
    ) -> dict[str, Any]:
        """The values of those names of the expression that the call has."""
        assert self._when is not None
        places = (forms, observation.scalars, observation.conventions)
        found: dict[str, Any] = {}
        for wanted in self._when.names:
            if wanted in _OF_CALL:
                found[wanted] = _OF_CALL[wanted](observation, name)
            elif wanted == "rank":
                found[wanted] = self._rank_here()
            elif (place := next((place for place in places if wanted in place), None)) is not None:
                found[wanted] = place[wanted]
            elif (size := _size(wanted, forms, observation)) is not None:
                found[wanted] = size
        return found

    def _rank_here(self) -> int | None:
        if self._rank is None:
            self._rank = (process_info().get("rank"),)
        return self._rank[0]


_OF_CALL: Mapping[str, Callable[[Observation, CallName], Any]] = {
    "op": lambda observation, name: observation.op,
    "layer": lambda observation, name: name.layer.name,
    "layer_index": lambda observation, name: name.layer.index,
    "step": lambda observation, name: name.step,
    "call": lambda observation, name: name.number,
}


def _size(axis: str, forms: Mapping[str, TensorForm], observation: Observation) -> int | None:
    """The size of an axis, from the first of the call's tensors that has it."""
    for tensor, axes in axes_of(operation(observation.op), observation.conventions).items():
        if axis in axes and tensor in forms:
            return forms[tensor].shape[axes.index(axis)]
    return None


def tensor_names() -> frozenset[str]:
    """Names of the tensors of all operations."""
    return frozenset(spec.name for contract in operations().values() for spec in contract.tensors)


def known_names() -> frozenset[str]:
    """Names of the scalars, conventions, tensors and axes of all operations."""
    found: set[str] = set()
    for contract in operations().values():
        for named in (contract.scalars, contract.conventions, contract.tensors):
            found |= {one.name for one in named}
        for spec in contract.tensors:
            for axes in (spec.axes, *spec.axes_by.values()):
                found |= {axis for axis in axes if axis.isidentifier()}
    return frozenset(found)
