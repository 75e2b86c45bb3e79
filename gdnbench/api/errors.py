# SPDX-License-Identifier: Apache-2.0
"""Errors at the border of the Python interface: each is an `Error` with the line that the command prints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.missing import how_to_install, missing_package
from gdnbench.sim.errors import Error


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Inside this block a missing package is a CannotRunError, and an error of the system a BadInputError."""
    try:
        yield
    except Error:
        raise
    except ModuleNotFoundError as error:
        package = missing_package(error)
        if package is None:
            raise
        raise CannotRunError(how_to_install(package)) from error
    except OSError as error:
        place = f"{error.filename}: " if error.filename is not None else ""
        raise BadInputError(f"{place}{error.strerror or error}") from error
