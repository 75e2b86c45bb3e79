"""What came of a captured command: its exit status and the summary on stderr."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdnbench.capture.progress import human_bytes
from gdnbench.errors import Exit
from gdnbench.store.sealer import Progress


def _module(target: str) -> str:
    return target.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Outcome:
    child_status: int  # as a shell gives it
    records: int
    bytes: int
    dropped: int
    unsealed: tuple[str, ...]  # segments of processes that live on
    never_imported: tuple[str, ...]  # modules of selected targets
    never_called: tuple[str, ...]  # selected targets that were wrapped
    called: tuple[str, ...]
    processes: int  # Python processes in which capture started
    failures: int
    skipped_compiling: int
    reached_max_bytes: bool
    problems: tuple[str, ...]

    @classmethod
    def of(
        cls,
        returncode: int,
        progress: Progress,
        targets: Sequence[str],
        notes: Sequence[Mapping[str, Any]],
        sealer_error: str | None,
    ) -> Outcome:
        """From the child's return code, the sealer's last figures and the processes' notes."""

        def noted(event: str) -> list[Mapping[str, Any]]:
            return [note for note in notes if note["event"] == event]

        called = {note["target"] for note in noted("called")}
        wrapped = {note["target"] for note in noted("wrapped")}
        imported = {note["module"] for note in noted("imported")} | {_module(name) for name in called}
        closed = noted("closed")
        failures = [note["first_failure"] for note in closed if note["first_failure"]]
        problems = [note["text"] for note in noted("problem")]
        if sealer_error is not None:
            problems.append(f"the journal could not be sealed, and is kept: {sealer_error}")
        return cls(
            child_status=128 - returncode if returncode < 0 else returncode,
            records=progress.records,
            bytes=progress.bytes,
            dropped=max(progress.dropped, sum(note["dropped"] for note in closed)),
            unsealed=progress.live,
            never_imported=tuple(
                dict.fromkeys(_module(name) for name in targets if _module(name) not in imported)
            ),
            never_called=tuple(name for name in targets if name in wrapped and name not in called),
            called=tuple(name for name in targets if name in called),
            processes=len(noted("started")),
            failures=sum(note["failures"] for note in closed),
            skipped_compiling=sum(note["skipped_compiling"] for note in closed),
            reached_max_bytes=any(note["reached_max_bytes"] for note in closed),
            problems=(*progress.refused, *problems, *dict.fromkeys(failures)),
        )

    @property
    def exit_status(self) -> int:
        if self.child_status:
            return self.child_status
        return Exit.PASS if self.records else Exit.MISMATCH

    def summary(self, store: Path) -> list[str]:
        """Lines for stderr; the first says what was captured."""
        lines = [self._captured(store)]
        if not self.records:
            lines += self._why_nothing()
        if self.failures:
            lines.append(f"{self.failures} calls could not be recorded (the program was not disturbed)")
        if self.skipped_compiling:
            lines.append(
                f"{self.skipped_compiling} calls were compiled into a graph and not recorded; run without "
                "torch.compile or CUDA graphs to capture them"
            )
        if self.reached_max_bytes:
            lines.append("--max-bytes was reached; later calls were not recorded")
        if self.unsealed:
            lines.append(
                f"{len(self.unsealed)} processes of the command live on and are still being recorded"
            )
        return lines + [f"problem: {text}" for text in self.problems]

    def _captured(self, store: Path) -> str:
        dropped = f", {self.dropped} dropped" if self.dropped else ""
        status = f"; the command ended with status {self.child_status}" if self.child_status else ""
        return f"{self.records} records, {human_bytes(self.bytes)} in {store}{dropped}{status}"

    def _why_nothing(self) -> list[str]:
        if not self.processes:
            return [
                "nothing was captured: the command started no Python in which gdnbench is installed and that "
                "imported anything; install gdnbench into the environment that the command uses"
            ]
        lines = ["nothing was captured:"]
        for what, names in (
            ("called but not selected or not recorded", self.called),
            ("imported but never called", self.never_called),
            ("never imported", self.never_imported),
        ):
            lines += [f"  {what}: {name}" for name in names]
        return lines
