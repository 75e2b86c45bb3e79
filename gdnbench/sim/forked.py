# SPDX-License-Identifier: Apache-2.0
"""Runs a function in a forked process: what it does to memory is done to a copy."""

from __future__ import annotations

import gc
import os
import pickle
import signal
from collections.abc import Callable
from typing import NoReturn, TypeVar, cast

from gdnbench.sim.errors import UnsupportedError

T = TypeVar("T")


def in_a_copy(act: Callable[[], T], killed: str) -> T:
    """The result of `act`, which must be picklable. Raises what `act` raises, and UnsupportedError with the
    text `killed` if the process ends without an answer. The caller sees to it that there is os.fork."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        _answer(reader, writer, act)
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as pipe:
            answer = pipe.read()
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.waitpid(child, 0)
    if not answer:
        raise UnsupportedError(killed)
    raised, found = pickle.loads(answer)
    if raised:
        raise found
    return cast(T, found)


def _answer(reader: int, writer: int, act: Callable[[], T]) -> NoReturn:
    """In the child: send the result, or what was raised, and end. Nothing may leave this function, or the
    caller's program would go on twice."""
    try:
        os.close(reader)
        gc.disable()  # a collection would visit, and so copy, all objects of the caller's program
        try:
            sent = pickle.dumps((False, act()))
        except BaseException as error:
            sent = _pickled(error)
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(sent)
    finally:
        os._exit(0)


def _pickled(error: BaseException) -> bytes:
    """An error that does not come back from its bytes is sent as a RuntimeError with its text."""
    try:
        sent = pickle.dumps((True, error))
        pickle.loads(sent)
    except Exception:
        return pickle.dumps((True, RuntimeError(f"{type(error).__name__}: {error}")))
    return sent
