# SPDX-License-Identifier: Apache-2.0
"""Errors a user can meet, each with the exit code of the command. In one line: what, where, what to do."""

from __future__ import annotations

from enum import IntEnum

from gdnbench.sim.errors import (
    CannotSimulateError,
    CompileRefusedError,
    Error,
    InputError,
    KernelFault,
    SimError,
)


class Exit(IntEnum):
    PASS = 0
    MISMATCH = 1  # numeric mismatch, regression, nothing captured; a kernel crashes, hangs, does not compile
    BAD_INPUT = 2  # usage or bad input
    CANNOT_RUN = 3  # missing hardware, package or compiler, unsupported


class GdnbenchError(Error):
    """Base of every error this package raises on purpose; `exit_code` ends the command."""

    exit_code: Exit = Exit.BAD_INPUT


class BadInputError(GdnbenchError, ValueError):
    """An argument, file or tensor that cannot be used as given."""


class StoreError(GdnbenchError, OSError):
    """A store that is missing, damaged, of a newer format, or not a store."""


class NoRecordError(BadInputError, IndexError):
    """A number of a record that a store does not have."""


class NoTensorError(BadInputError, KeyError):
    """A name of a tensor that a record does not have."""

    __str__ = Exception.__str__  # KeyError prints its argument in quotes


class CannotRunError(GdnbenchError, RuntimeError):
    """Something this machine lacks; the message says what it needs."""

    exit_code = Exit.CANNOT_RUN


# Errors of the workbench together with those of the simulator, which knows nothing of it.
EXPECTED_ERRORS = (GdnbenchError, SimError)
BAD_INPUT_ERRORS = (BadInputError, InputError)
CANNOT_RUN_ERRORS = (CannotRunError, CannotSimulateError)


def exit_code_of(error: GdnbenchError | SimError) -> Exit:
    """The exit code of a command that ends with `error`."""
    if isinstance(error, GdnbenchError):
        return error.exit_code
    if isinstance(error, KernelFault | CompileRefusedError):
        return Exit.MISMATCH
    return Exit.CANNOT_RUN if isinstance(error, CannotSimulateError) else Exit.BAD_INPUT
