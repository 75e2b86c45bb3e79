# SPDX-License-Identifier: Apache-2.0
"""What the checker found in each case, a line of JSON each, and the table of it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gdnbench.sim import Finding, Severity

ROOT = Path(__file__).parents[3]
TOLD = (
    "kernel",
    "cases",
    "failed",
    "refused",
    "runs",
    "errors",
    "to review",
    "incomplete",
    "accepted",
    "time",
)
GPUS = ("kernel", "SMs", "pass", "failed", "refused", "errors", "no second tile")
CONTENT = (
    "gdnbench/**/*.py",
    "kernels/**/*.py",
    "tests/sim/kernel_checks/*.py",
    "tests/kernels/proving.py",
)
TIMED = 0.3
"""Seconds without the checker from which on a case says what it costs: less is the start of a launch."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case of one kernel. `content` is a digest of all that the result depends on. `plain` and `checked`
    are seconds without and with the checker, of the quickest run under it. `sms` are the SMs of the GPU, None
    for a GPU's own number, `bits` a digest of the outputs, and `one_tile` whether no CTA of a persistent
    launch took a second tile."""

    kernel: str
    case: str
    content: str
    verdict: str
    reason: str = ""
    schedules: tuple[str, ...] = ()
    findings: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    plain: float = 0.0
    checked: float = 0.0
    sms: int | None = None
    bits: str = ""
    one_tile: bool = False

    @property
    def failed(self) -> bool:
        return self.verdict == "FAIL"

    def found(self) -> Iterator[Finding]:
        return map(Finding.from_json, self.findings)


def content(*options: object) -> str:
    """A digest of the kernels, the simulator and the cases as they are in this checkout, and of `options`."""
    digest = hashlib.blake2b(repr(options).encode(), digest_size=8)
    for pattern in CONTENT:
        for file in sorted(ROOT.glob(pattern)):
            digest.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def read(path: Path, content: str) -> list[Case]:
    """The results in a file that are of this `content`. It may end in the middle of a line: a run that was
    stopped."""
    if not path.exists():
        return []
    whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    found = [json.loads(line) for line in whole]
    return [_case(data) for data in found if data["content"] == content]


def _case(data: dict[str, Any]) -> Case:
    return Case(**{**data, "schedules": tuple(data["schedules"]), "findings": tuple(data["findings"])})


def write(path: Path, case: Case) -> None:
    """Append one, in the place of a line that was not finished."""
    with path.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(json.dumps(asdict(case)).encode() + b"\n")


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """A digest of names, types, shapes and bits."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def differences(cases: Iterable[Case]) -> list[str]:
    """The cases that left other bits on a GPU of one number of SMs than on the first."""
    first: dict[tuple[str, str], Case] = {}
    found = []
    for case in cases:
        if case.bits and case.verdict == "pass":
            against = first.setdefault((case.kernel, case.case), case)
            if case.bits != against.bits:
                numbers = f"{case.sms} SMs has other bits than on {against.sms}"
                found.append(f"{case.kernel}: {case.case}: on {numbers}")
    return found


def gpu_rows(cases: Sequence[Case]) -> list[tuple[object, ...]]:
    """Of the table `GPUS`: a row for each kernel and number of SMs."""
    keys = dict.fromkeys((case.kernel, case.sms) for case in cases)
    rows: list[tuple[object, ...]] = []
    for kernel, sms in keys:
        some = [case for case in cases if (case.kernel, case.sms) == (kernel, sms)]
        count = Counter(case.verdict for case in some)
        errors = sum(one.fails for case in some for one in case.found())
        rows.append(
            (
                kernel,
                "" if sms is None else sms,
                count["pass"],
                count["FAIL"],
                len(some) - count["pass"] - count["FAIL"],
                errors,
                sum(case.one_tile for case in some),
            )
        )
    return rows


def merged(cases: Iterable[Case]) -> dict[tuple[Severity, bool, str], list[Case]]:
    """What was found, and the cases in which it was."""
    found: dict[tuple[Severity, bool, str], list[Case]] = {}
    for case in cases:
        for key in dict.fromkeys(
            (one.severity, one.accepted is not None, one.summary) for one in case.found()
        ):
            found.setdefault(key, []).append(case)
    return found


def row(kernel: str, cases: list[Case]) -> tuple[object, ...]:
    """Of the table `TOLD`: different findings, and in `time` the worst multiple that the checker takes."""
    standing = [severity for severity, accepted, _ in merged(cases) if not accepted]
    ratios = [case.checked / case.plain for case in cases if case.plain >= TIMED and case.checked]
    return (
        kernel,
        len(cases),
        sum(case.failed for case in cases),
        sum(case.verdict in ("refused", "unsupported") for case in cases),
        sum(len(case.schedules) for case in cases),
        *(standing.count(one) for one in (Severity.ERROR, Severity.REVIEW, Severity.INCOMPLETE)),
        sum(accepted for _, accepted, _ in merged(cases)),
        f"{max(ratios):.1f} x" if ratios else "",
    )
