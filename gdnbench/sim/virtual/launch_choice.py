# SPDX-License-Identifier: Apache-2.0
"""Which launches of a program are looked at: by their numbers in their process, or by kernels' names."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass

from gdnbench.sim.errors import InputError

_NUMBERS = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class LaunchChoice:
    """Launches with a number in `spans`, first and last each, or with a name that matches one of `names`."""

    spans: tuple[tuple[int, int], ...]
    names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> LaunchChoice:
        """Parse "3", "0-5,9" or "chunk_fwd,*bwd*": numbers from 0 on, and parts of kernels' names, which may
        have wildcards. Raises InputError for anything else."""
        spans: list[tuple[int, int]] = []
        names: list[str] = []
        for part in text.split(","):
            name = part.strip()
            match = _NUMBERS.fullmatch(name)
            if match is None:
                names.append(name)
            else:
                spans.append((int(match[1]), int(match[2] or match[1])))
        if not all(names) or any(last < first for first, last in spans):
            raise InputError(
                f"launches {text!r}: write numbers, ranges or parts of kernel names, such as 3,5-9,chunk_fwd"
            )
        return cls(tuple(spans), tuple(names))

    def includes(self, number: int, kernel: str) -> bool:
        """Whether the launch `number` of a process, counted from 0, of `kernel` is chosen."""
        return any(first <= number <= last for first, last in self.spans) or any(
            fnmatch.fnmatchcase(kernel, f"*{name}*") for name in self.names
        )
