"""What processes that probe answer where there is no verdict: errors go through the pipe by kind.

A kernel's exceptions are verdicts, which probes make of them. One that leaves a probe is this project's
own or the machine's, such as a disk that is full: it says nothing of the kernel.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

from gdnbench.errors import BadInputError, CannotRunError, GdnbenchError, StoreError
from gdnbench.replay.failure import describe
from gdnbench.replay.process import Message

_KINDS: dict[str, type[GdnbenchError]] = {
    "cannot_run": CannotRunError,
    "store": StoreError,
    "bad_input": BadInputError,
    "internal": CannotRunError,
}


def answered(work: Callable[[], Message]) -> Message:
    """In the process: what `work` returns, or its error as an answer."""
    try:
        return work()
    except GdnbenchError as error:
        kind = next((name for name, kind in _KINDS.items() if isinstance(error, kind)), "bad_input")
        return {kind: str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"internal": f"gdnbench itself failed, not the kernel: {describe(error)}; see stderr"}


def checked(reply: Message) -> Message:
    """The answer, if it is none of an error. CannotRunError, StoreError or BadInputError otherwise; also
    CannotRunError where the probe failed by itself."""
    for name, kind in _KINDS.items():
        if reply.get(name) is not None:
            raise kind(reply[name])
    return reply
