"""Where this machine writes a capture to: the store itself, or the spool of one in an object store."""

from __future__ import annotations

from pathlib import Path

from gdnbench.capture.options import CaptureOptions
from gdnbench.errors import BadInputError
from gdnbench.store.address import Address, checked_url, folder_to_write, is_url


def local_store(address: Address) -> Path:
    """The folder to write to; for a URL that of a new spool. Errors as of `checked_url` and `Spool.make`."""
    if not is_url(address):
        return folder_to_write(address).absolute()
    from gdnbench.store.spool import Spool

    spool = Spool.planned(checked_url(str(address)))
    spool.make()
    return spool.store


def check_objects(url: str, options: CaptureOptions) -> None:
    """Begin a capture at `url`, so that nothing that is wrong with it comes out when the command has run for
    an hour. BadInputError for options that do not go with one, errors as of `begin`.
    """
    if options.when_over == "drop-oldest":
        raise BadInputError(
            f"--when-over drop-oldest deletes batches of the store, and {url} is only added to: leave it out"
        )
    from gdnbench.store.objects import Objects
    from gdnbench.store.upload import begin

    begin(Objects(url), "capture")
