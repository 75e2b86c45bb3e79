# SPDX-License-Identifier: Apache-2.0
"""Addresses of stores: a path on this machine, or the URL of an object store."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from gdnbench.errors import BadInputError

Address = str | os.PathLike[str]
"""A path, or a URL: a text that contains `://`."""


def is_url(address: Address) -> bool:
    """Whether `address` is a URL of something other than a folder of this machine."""
    return isinstance(address, str) and "://" in address and not address.startswith("file://")


def local_path(address: Address) -> Path:
    """The path of `address`, which may be a file:// URL. BadInputError for any other URL."""
    text = os.fspath(address)
    if not text.startswith("file://"):
        if is_url(text):
            raise BadInputError(f"{redacted_url(text)} is a URL; give a path on this machine")
        return Path(text)
    parts = _split(text)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise BadInputError(f"{text} names no folder of this machine; write file:///folder")
    return Path(unquote(parts.path))


def folder_to_write(address: Address) -> Path:
    """The folder of `address`. BadInputError for a URL, to which only capture and upload write.

    BadInputError also for s3:/bucket, which is a typing error or a URL that went through `Path`.
    """
    text = os.fspath(address)
    if is_url(text):
        raise BadInputError(f"{text} is a URL: write to a folder, and then `gdnbench upload FOLDER URL`")
    if is_half_url(text):
        scheme, _, rest = text.partition(":/")
        slashes = "///" if scheme == "file" else "//"
        raise BadInputError(f"{text} is no URL: write {scheme}:{slashes}{rest}, or ./{text} for a folder")
    return local_path(address)


def is_half_url(text: str) -> bool:
    """Whether `text` looks like a URL that has lost a slash."""
    return re.match(r"[a-z][a-z0-9+.-]+:/(?!/)", text) is not None


def checked_url(url: str) -> str:
    """`url` without a trailing slash.

    BadInputError if it holds a password, a query or a fragment; the message does not repeat them.
    """
    parts = _split(url)
    if parts.username is not None or parts.password is not None:
        raise BadInputError(
            f"{redacted_url(url)} was given with a user or password: put credentials into the environment"
        )
    if parts.query or parts.fragment:
        raise BadInputError(
            f"{redacted_url(url)} was given with a query or fragment, which a store's URL has not"
        )
    if not parts.netloc:
        raise BadInputError(f"{redacted_url(url)} names no bucket; write s3://bucket/run.zarr")
    return url.rstrip("/")


def redacted_url(url: str) -> str:
    """`url` without the parts that may be secret: user, password, query and fragment."""
    parts = _split(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _split(url: str) -> SplitResult:
    """Split `url`. BadInputError, which does not repeat secrets, if it is invalid."""
    try:
        return urlsplit(url)
    except ValueError as error:
        scheme = url.partition("://")[0]
        raise BadInputError(f"{scheme}://... is no URL: {error}; write s3://bucket/run.zarr") from None


def store_name(address: Address) -> str:
    """The name of the store at `address`, up to its first dot."""
    return os.fspath(address).rstrip("/").rpartition("/")[2].partition(".")[0]


def absolute_address(address: Address) -> str:
    """`address` in a form that is valid from every folder: a path without links, or the URL itself."""
    return os.fspath(address) if is_url(address) else str(local_path(address).resolve())


def is_absolute(address: Address) -> bool:
    """Whether `address` means the same from every folder."""
    return is_url(address) or local_path(address).is_absolute()
