# SPDX-License-Identifier: Apache-2.0
"""A recorded call as a test sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest
from torch import Tensor

from gdnbench.errors import CANNOT_RUN_ERRORS, EXPECTED_ERRORS, Exit
from gdnbench.judge import calls
from gdnbench.judge.result import Side, TensorResult
from gdnbench.ops import operation
from gdnbench.printable import printable
from gdnbench.pytest_plugin.replays import Replaying, Replays
from gdnbench.pytest_plugin.selection import Chosen
from gdnbench.replay import side_effects
from gdnbench.replay.call import by_name
from gdnbench.replay.execute import Execution, device_of
from gdnbench.replay.kernels import of_function
from gdnbench.report.outcome import Outcome
from gdnbench.report.render import render_text
from gdnbench.report.report import RecordResult
from gdnbench.store.reader import StoredRecord
from gdnbench_kernels.contract import Call, ContractError, Kernel, Operation, Role
from gdnbench_kernels.run import mutated_names

if TYPE_CHECKING:
    from gdnbench.sim import Accepted


class Mismatch(AssertionError):
    """A record does not pass. The text has the reason, then what `gdnbench replay` prints."""


@dataclass(repr=False)
class Case:
    """Record `record` of `operation`, and the replay that its test requests."""

    record: StoredRecord
    operation: Operation
    _node: pytest.Item
    _replaying: Replaying
    _before: dict[str, Tensor] = field(default_factory=dict)

    def __repr__(self) -> str:
        info = self.record.info
        said = f"record {self.record.number} {info.op} {info.layer} step {info.step}"
        return printable(f"<{said} of {self._replaying.store.path}>")

    @cached_property
    def call(self) -> Call:
        """The call on the requested device, in the record's conventions: contiguous tensors; pools reduced to
        the stored slots, with indices renumbered."""
        found = calls.compact_call(self.record, self.operation, device_of(self._replaying.options.on))
        inputs = {spec.name for spec in self.operation.tensors if spec.role is Role.INPUT}
        self._before = {name: tensor.clone() for name, tensor in found.tensors.items() if name in inputs}
        return found

    @property
    def arguments(self) -> dict[str, Any]:
        """Tensors and scalars of `call` by contract name, for the test's own function."""
        scalars = {
            spec.name: self.call.scalars.get(spec.name, spec.default) for spec in self.operation.scalars
        }
        return {**scalars, **self.call.tensors}

    def check(self, kernel: Kernel | None = None) -> RecordResult:
        """Replay the record with the requested kernel, or with a function of the test, and judge its outputs.

        The function is called as any user's kernel, see docs/replay.md: parameters by name, the caller's
        strides and slots, poisoned outputs. Raises Mismatch unless the record passes; skips the test if the
        kernel cannot run.
        """
        __tracebackhide__ = True
        return self._conclude(kernel)

    def judge(self, outputs: Any) -> RecordResult:
        """Judge outputs that the test computed from `arguments`: a tensor, a tuple in contract order, or a
        dict by name.

        Mutated tensors that are not among them are taken from `arguments`. Raises as `check`, and WrongReturn
        for outputs that the operation does not have.
        """
        __tracebackhide__ = True
        call, op = self.call, self.operation
        mutated = {name: call.tensors[name] for name in mutated_names(op, call)}
        returned = by_name(outputs, list(op.outputs(call)), of_function(self.judge, "the test"), op)
        left = {name: tensor.detach().cpu().contiguous() for name, tensor in {**mutated, **returned}.items()}
        faults = side_effects.written_inputs(call, self._before)
        return self._conclude(Execution(left, tuple(faults), (), 0.0, conventions=dict(call.conventions)))

    def result(
        self, kernel: Kernel | Execution | None = None, accepted: Accepted | None = None
    ) -> RecordResult:
        """The record's result, whatever it is; its errors become properties of the test."""
        __tracebackhide__ = True
        try:
            result = self._replaying.replay(self.record, kernel, accepted)
        except CANNOT_RUN_ERRORS as error:
            pytest.skip(printable(error))
        except EXPECTED_ERRORS as error:
            pytest.fail(printable(error), pytrace=False)
        self._node.user_properties += [("outcome", str(result.outcome)), *_figures(result.tensors)]
        return result

    def text(self, result: RecordResult, kernel: Kernel | Execution | None = None) -> str:
        """The text that `gdnbench replay` prints for a result of this record."""
        lines = render_text(self._replaying.report(result, kernel)).strip("\n").split("\n")
        return "\n".join(map(printable, lines))

    def _conclude(self, kernel: Kernel | Execution | None) -> RecordResult:
        __tracebackhide__ = True
        result = self.result(kernel)
        if result.outcome is Outcome.PASS:
            return result
        reason = printable(f"{result.outcome}: {result.reason}")
        if result.outcome.exit_code is Exit.CANNOT_RUN:
            pytest.skip(reason)
        raise Mismatch(f"{reason}\n\n{self.text(result, kernel)}")


def open_case(chosen: Chosen, node: pytest.Item, replays: Replays) -> Case:
    """The case chosen for test `node`.

    Fails the test's setup, in one line, if the store, the record or the options cannot be used; skips it if a
    device is missing.
    """
    if chosen.problem is not None:
        pytest.fail(chosen.problem, pytrace=False)
    try:
        replaying = replays.replaying(chosen.path, chosen.asked.options())
        record = replaying.store.records[chosen.number]
        op = operation(record.info.op)
        calls.check_record(record, op)
    except CANNOT_RUN_ERRORS as error:
        pytest.skip(printable(error))
    except (*EXPECTED_ERRORS, ContractError) as error:
        pytest.fail(printable(f"{Outcome.REFUSED}: {error}"), pytrace=False)
    return Case(record, op, node, replaying)


def _figures(tensors: tuple[TensorResult, ...]) -> list[tuple[str, str]]:
    """Errors of each tensor as test properties, for reports such as JUnit's."""
    found = []
    for tensor in tensors:
        side = f"{tensor.side} " if tensor.side is not Side.KERNEL else ""
        for whose, errors in (("", tensor.errors), ("torch's ", tensor.yardstick)):
            if errors is not None:
                name = f"{side}{tensor.tensor}: {whose}"
                found.append((f"{name}max abs", f"{errors.max_abs:.3g}"))
                found.append((f"{name}RMS ratio", f"{errors.rms_ratio:.3g}"))
    return found
