# SPDX-License-Identifier: Apache-2.0
"""Starts capture at interpreter start when `GDNBENCH_CAPTURE` is set, without a change to the program.

`gdnbench_capture.pth` imports this module. The import installs the import hook and nothing else: no torch, no
numpy, no zarr. It never raises. If an option is invalid it prints one line on stderr and leaves capture off.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping

from gdnbench.capture.hook import AfterImport, CaptureFinder, install_finder


def _load() -> Mapping[str, AfterImport]:
    """Load the hooks of this process, at its first import from outside the standard library."""
    try:
        from gdnbench.capture.runtime import start_from_environment

        return start_from_environment(os.environ)
    except Exception as error:
        from gdnbench.printable import printable

        message = printable(" ".join(str(error).split()) or type(error).__name__)
        with contextlib.suppress(Exception):  # stderr may be closed, full or None
            sys.stderr.write(f"gdnbench: capture is off: {message}\n")
        return {}


def _fix_store() -> None:
    """Make a relative store path absolute, so that child processes in other folders use the same store."""
    address = os.environ["GDNBENCH_CAPTURE"]
    scheme, colon, _ = address.partition(":/")
    if colon and "/" not in scheme:  # a URL, or a malformed one that is refused later
        return
    with contextlib.suppress(OSError):
        os.environ["GDNBENCH_CAPTURE"] = os.path.abspath(address)


_fix_store()
install_finder(CaptureFinder(_load))
