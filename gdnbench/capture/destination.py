# SPDX-License-Identifier: Apache-2.0
"""Where capture writes on this machine: the store itself, or a local spool of a store in an object store."""

from __future__ import annotations

from pathlib import Path

from gdnbench.capture.options import CaptureOptions
from gdnbench.errors import BadInputError
from gdnbench.store.address import Address, checked_url, folder_to_write, is_url, redacted_url


def local_store(address: Address) -> Path:
    """The folder to write to; for a URL, the folder of a new spool. Raises what `checked_url` and
    `Spool.make` raise."""
    if not is_url(address):
        return folder_to_write(address).absolute()
    from gdnbench.store.spool import Spool

    spool = Spool.planned(checked_url(str(address)))
    spool.make()
    return spool.store


def check_url_options(url: str, options: CaptureOptions) -> None:
    """BadInputError for options that an object store does not support."""
    if options.when_over == "drop-oldest":
        raise BadInputError(
            f"--when-over drop-oldest deletes batches of the store, and {redacted_url(url)} is only added to:"
            " leave it out"
        )


def check_objects(url: str, options: CaptureOptions) -> None:
    """Check, before the command runs, that a capture can be written to `url`, and begin it there.

    Raises what `check_url_options` and `begin_store` raise.
    """
    check_url_options(url, options)
    from gdnbench.store.objects import Objects
    from gdnbench.store.upload import begin_store

    begin_store(Objects(url), "capture")
