"""Capture without a change to the program: imported at interpreter start when `GDNBENCH_CAPTURE` is set.

The start-up line is `gdnbench_capture.pth`. Importing this module installs the import hook and nothing else:
no torch, no numpy, no zarr. It never raises, and prints at most one line on stderr, when an option is broken
and the capture therefore off.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping

from gdnbench.capture.hook import AfterImport, CaptureFinder, install


def _load() -> Mapping[str, AfterImport]:
    """The hooks of this process, made at its first import from outside the standard library."""
    try:
        from gdnbench.capture.runtime import start_from_environment

        return start_from_environment(os.environ)
    except Exception as error:
        message = " ".join(str(error).split()) or type(error).__name__
        with contextlib.suppress(Exception):  # stderr may be closed, full or None
            sys.stderr.write(f"gdnbench: capture is off: {message}\n")
        return {}


def _fix_store() -> None:
    """A relative path means the folder that the program starts in, for it and for all that it starts."""
    address = os.environ["GDNBENCH_CAPTURE"]
    scheme, colon, _ = address.partition(":/")
    if colon and "/" not in scheme:  # a URL, or what will be refused as half of one
        return
    with contextlib.suppress(OSError):
        os.environ["GDNBENCH_CAPTURE"] = os.path.abspath(address)


_fix_store()
install(CaptureFinder(_load))
