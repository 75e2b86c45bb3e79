"""`gdnbench upload`: bring a store of this machine into an object store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gdnbench.cli.console import progress
from gdnbench.errors import BadInputError
from gdnbench.store.address import checked_url, is_url


def upload(
    store: Annotated[
        Path, typer.Argument(help="A store, a folder; or what a capture into a URL has left on this machine.")
    ],
    url: Annotated[
        str | None, typer.Argument(help="Where to, such as s3://bucket/run.zarr. A capture's is known.")
    ] = None,
) -> None:
    """Copy a store to a URL, whole batches at a time; what is there already is not sent again.

    Without a URL: what a capture could not bring there, which is deleted here once it has arrived.
    """
    from gdnbench.store.objects import Objects
    from gdnbench.store.recover import seal_dead
    from gdnbench.store.spool import Spool
    from gdnbench.store.upload import Uploader

    spool = Spool.at(store)
    if spool is None and url is None:
        raise BadInputError(f"{store} is not what a capture left; give the URL that it is to go to")
    if spool is not None and url is not None:
        raise BadInputError(f"{store} goes to {spool.url}; leave the URL out")
    if url is not None and not is_url(url):
        raise BadInputError(f"{url!r} is no URL; write it like s3://bucket/run.zarr")
    place = store if spool is None else spool.store
    if not place.is_dir() and spool is None:
        raise BadInputError(f"{store} is not a folder; unpack an archive first")
    if url is not None:
        uploader = Uploader(place, Objects(checked_url(url)))
    else:
        assert spool is not None
        uploader = Uploader.of_spool(spool)
    seal_dead(place, sys.stderr)
    with progress("upload") as advance:
        left = len(uploader.left())
        uploader.step(lambda: advance(left - len(uploader.left()), left))
    if spool is not None:
        if spool.clear():
            spool.remove()
        else:
            print(f"gdnbench: {store} is kept: processes are still writing to it", file=sys.stderr)
    count = uploader.batches
    print(f"{count} batch{'' if count == 1 else 'es'} uploaded to {url or (spool and spool.url)}")
