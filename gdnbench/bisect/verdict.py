# SPDX-License-Identifier: Apache-2.0
"""The verdict of a probe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gdnbench.errors import StoreError

CONTENT = "content"
"""In a question and in a verdict's facts: the digest of the records that are meant, and that were read."""

PREDICTED = "predicted"
"""The kind of a verdict that is a predicted time, which its reason names; an axis decides what it means."""


class State(StrEnum):
    GOOD = "good"
    BAD = "bad"
    SKIP = "skip"  # it says nothing: no build, no import, no device


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a probe.

    `kind` distinguishes failures: an outcome of a replay, such as "numeric mismatch" or "crash", or a kind
    that an axis adds. `reason` is one line for people. `digest` is over all bits that the kernel left, empty
    if nothing ran; runs with equal digests are equal. `facts` is plain JSON for the axis.
    """

    state: State
    kind: str
    reason: str = ""
    digest: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "state": str(self.state),
            "kind": self.kind,
            "reason": self.reason,
            "digest": self.digest,
            "facts": dict(self.facts),
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, data: Any, where: str) -> Verdict:
        """StoreError names `where` if `data` is no verdict."""
        try:
            return cls(
                State(data["state"]),
                _text(data["kind"]),
                _text(data["reason"]),
                _text(data["digest"]),
                dict(data["facts"]),
                float(data["seconds"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{where} holds no verdict ({error!r}); remove it to probe again") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
