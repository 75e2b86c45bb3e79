# SPDX-License-Identifier: Apache-2.0
"""`gdnbench upload`: bring a store of this machine into an object store."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdnbench.cli.console import print_line, print_note, progress
from gdnbench.errors import BadInputError, Exit
from gdnbench.store.address import checked_url, is_url, local_path

if TYPE_CHECKING:
    from gdnbench.store.spool import Spool
    from gdnbench.store.upload import Uploader


def upload(
    store: Annotated[
        str,
        typer.Argument(
            help="Folder of the store; without URL: a capture's spool folder, or the URL it recorded into."
        ),
    ],
    url: Annotated[
        str | None, typer.Argument(help="URL to copy the store to, e.g. s3://bucket/run.zarr.")
    ] = None,
) -> None:
    """Copy a store to a URL, batch by batch; batches that are already there are not sent again.

    Without a second argument, upload what captures could not upload. They left it in a spool folder on this
    machine, which is deleted once everything has arrived.

    Exit status: 0 all is there; 1 damaged batches were left out.
    """
    from gdnbench.store.spool import Spool

    if url is not None:
        _copy(store, url)
        return
    if is_url(store):
        spools = Spool.waiting(checked_url(store))
        if not spools:
            print_line(f"nothing on this machine waits for {store}")
    else:
        spool = Spool.in_folder(local_path(store))
        if spool is None:
            raise BadInputError(f"{store} is not what a capture left; give the URL that it is to go to")
        spools = [spool]
    for spool in spools:
        _empty(spool)


def _copy(store: str, url: str) -> None:
    from gdnbench.store.objects import Objects
    from gdnbench.store.reader import Store
    from gdnbench.store.spool import Spool
    from gdnbench.store.upload import Uploader

    if not is_url(url):
        raise BadInputError(f"{url!r} is no URL; write it like s3://bucket/run.zarr")
    place = local_path(store)
    spool = Spool.in_folder(place)
    if spool is not None:
        raise BadInputError(f"{store} goes to {spool.url}; leave the URL out")
    if not place.is_dir():
        raise BadInputError(f"{store} is not a folder that is there; unpack an archive first")
    with Store.open(place) as opened:
        damaged = opened.damaged
    _run(Uploader(place, Objects(checked_url(url))), place, url)
    for what in damaged:
        print_note(f"gdnbench: not uploaded: {what}")
    raise typer.Exit(Exit.MISMATCH if damaged else Exit.PASS)


def _empty(spool: Spool) -> None:
    from gdnbench.store.upload import Uploader

    _run(Uploader.of_spool(spool), spool.store, spool.url)
    if spool.clear():
        spool.remove()
    else:
        print_note(f"gdnbench: {spool.folder} is kept: processes are still writing to it")


def _run(uploader: Uploader, place: Path, url: str) -> None:
    from gdnbench.store.recover import seal_dead

    seal_dead(place, sys.stderr)
    with progress("upload") as advance:
        left, done = len(uploader.missing_batches()), itertools.count(1)
        uploader.step(lambda: advance(next(done), left))
    print_line(f"{uploader.batches} batch{'' if uploader.batches == 1 else 'es'} uploaded to {url}")
