# SPDX-License-Identifier: Apache-2.0
"""The judged result of one record: findings and times are added, and the result is saved in a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gdnbench import phases
from gdnbench.errors import Exit
from gdnbench.ops import operation
from gdnbench.replay.execute import Execution
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult
from gdnbench.sim import group_findings
from gdnbench.store.reader import StoredRecord

if TYPE_CHECKING:
    from gdnbench.replay.save import RunWriter
    from gdnbench.sim import Accepted, Finding
    from gdnbench.timing.result import RecordTiming

Times = Callable[[StoredRecord], "RecordTiming"]
"""Times kernels on a record. A kernel that fails meanwhile has its own outcome in the RecordTiming."""


@dataclass(frozen=True, slots=True)
class JudgedRecord:
    """A record's `result` by its tensors alone. `execution` has the outputs, None if there are none to
    compare. `checked` has the findings of the simulator's checker, None if it did not run. `called`: the
    kernel was called; a record whose kernel was not called is in no run store."""

    result: RecordResult
    execution: Execution | None = None
    checked: tuple[Finding, ...] | None = None
    called: bool = True

    def result_with_findings(self, accepted: Accepted | None = None) -> RecordResult:
        """The result with the checker's findings, without the `accepted` ones. It fails if a finding does."""
        if self.checked is None:
            return self.result
        return _with_findings(self.result, self.checked if accepted is None else accepted.apply(self.checked))


def finish_record(
    record: StoredRecord,
    judged: JudgedRecord,
    *,
    saved: RunWriter | None = None,
    time: Times | None = None,
    accepted: Accepted | None = None,
) -> RecordResult:
    """The result of `record`: with findings, timed if it passes, and added to the run `saved`. A kernel
    that is wrong has no predicted time."""
    result = judged.result_with_findings(accepted)
    if result.outcome is not Outcome.PASS:
        result = replace(result, predicted=())
    if time is not None and result.outcome is Outcome.PASS:
        phases.enter("time")
        result = _with_times(result, time(record))
    if saved is not None and judged.called:
        saved.add(record, operation(record.info.op), result, judged.execution, result.timing)
    return result


def _with_findings(result: RecordResult, found: tuple[Finding, ...]) -> RecordResult:
    """`result` with the checker's findings, and with a failing outcome if one of them fails."""
    result = replace(result, findings=found)
    errors = group_findings(finding for finding in found if finding.fails)
    if not errors or result.outcome.exit_code is Exit.MISMATCH:
        return result
    more = f" and {len(errors) - 1} more" if len(errors) > 1 else ""
    earlier = () if result.outcome is Outcome.PASS else (f"{result.outcome}: {result.reason}",)
    notes = (*result.notes, *earlier)
    return replace(result, outcome=Outcome.CHECK, reason=f"{errors[0].summary}{more}", notes=notes)


def _with_times(result: RecordResult, timing: RecordTiming) -> RecordResult:
    """`result` with its times, or with the outcome of a kernel that failed while it was timed."""
    failed = next((kernel for kernel in timing.kernels if kernel.outcome is not Outcome.PASS), None)
    if failed is None:
        return replace(result, timing=timing)
    return replace(result, timing=timing, outcome=failed.outcome, reason=f"{failed.name}: {failed.reason}")
