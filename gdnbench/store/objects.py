# SPDX-License-Identifier: Apache-2.0
"""Objects below a URL: s3://, gs://, az:// and whatever else obstore supports.

Requests that the network or the server fails are repeated: by obstore where that is safe, and here if an
answer breaks off. obstore reads credentials, endpoint and region from the environment (AWS_ACCESS_KEY_ID,
AWS_ENDPOINT_URL, AWS_ALLOW_HTTP, ...); gdnbench neither stores nor prints them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from gdnbench.errors import CannotRunError, StoreError
from gdnbench.store.address import checked_url

_TRIES: Final = 4  # attempts of a request whose answer broke off; obstore retries the others
_FIRST_WAIT: Final = 0.2  # seconds, doubled each time
_RETRIES: Final[dict[str, Any]] = {
    "max_retries": 5,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    },
}

_MACHINE_ROLE: Final = "//169.254.169.254/"  # the metadata service that gives cloud machines their role

_CODE: Final = re.compile(r"<Code>([A-Za-z0-9.]{1,60})</Code>")  # in an S3 error answer
_NO_BUCKET: Final = "NoSuchBucket"
_BAD_CREDENTIALS: Final = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId"}
    | {"SignatureDoesNotMatch", "AuthFailure", "RequestExpired"}
)  # some servers answer these with 400
_OTHER_REGION: Final = frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect"})

_INVALID_PATH: Final = "object with invalid path"  # obstore's message for a listed key such as a//b or ../a

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A listed object: its size in bytes, and a tag that changes with its content, if the server gives
    one."""

    size: int
    tag: str | None


class ObjectsUnreachableError(CannotRunError):
    """The network, the server or its permissions fail; the content of the store is unknown."""


class Objects:
    """The objects below `url`, by keys relative to it with "/" between names.

    BadInputError for an invalid URL, CannotRunError without obstore. Every method raises
    ObjectsUnreachableError, one line, if the network or the server refuses.
    """

    def __init__(self, url: str) -> None:
        self.url = checked_url(url)
        try:
            import obstore
            import obstore.exceptions
            import obstore.store
        except ImportError:
            raise CannotRunError(
                f"{self.url} is in an object store, which needs obstore: pip install 'gdnbench[objects]'"
            ) from None
        self._obstore = obstore
        self._errors = obstore.exceptions
        try:
            self._store = obstore.store.from_url(self.url, retry_config=_RETRIES)  # type: ignore[call-overload]
        except (ValueError, self._errors.BaseError) as error:
            raise StoreError(f"{self.url} cannot be opened: {_reason(error)}") from None

    def get(self, key: str, limit: int) -> bytes | None:
        """The content of an object; None if there is none. StoreError if it has more than `limit` bytes."""

        def request() -> bytes | None:
            try:
                answer = self._obstore.get(self._store, self._checked(key))
            except FileNotFoundError as error:
                self._check_bucket(error)
                return None
            if answer.meta["size"] > limit:
                raise StoreError(
                    f"{self.url}: {key} has {answer.meta['size']} bytes, more than the {limit} it may have"
                )
            return bytes(answer.bytes())

        return self._persist(request)

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of an object; StoreError if it no longer exists."""

        def request() -> bytes:
            try:
                found = self._obstore.get_range(self._store, self._checked(key), start=start, end=stop)
            except FileNotFoundError:
                raise StoreError(f"{self.url}: {key} was listed and is gone") from None
            return bytes(found)

        return self._persist(request)

    def put_object(self, key: str, content: bytes | Path) -> None:
        """Write `content`, or the content of a file, to the object `key`, atomically."""

        def request() -> None:
            try:
                self._obstore.put(self._store, self._checked(key), content)
            except FileNotFoundError as error:
                if isinstance(content, Path) and not content.exists():
                    raise StoreError(f"{content} went while it was being uploaded; start again") from None
                raise self._no_bucket(error) from None

        self._persist(request)

    def folders(self, key: str) -> list[str]:
        """Names below `key` that are followed by "/", sorted."""
        prefix = self._checked(key) if key else None
        found = self._persist(lambda: self._obstore.list_with_delimiter(self._store, prefix))
        return sorted({str(name).rstrip("/").rpartition("/")[2] for name in found["common_prefixes"]})

    def list(self, key: str, most: int) -> Iterator[tuple[str, ObjectInfo]]:
        """Every object below `key`, at any depth, by its relative key, without folder markers.

        StoreError if there are more than `most`, because the listing is held in memory.
        """
        prefix = f"{self._checked(key)}/"

        def request() -> list[tuple[str, ObjectInfo]]:
            found = []
            for page in self._obstore.list(self._store, prefix):
                found += [(str(one["path"]), _info(one)) for one in page]
                if len(found) > most:
                    raise StoreError(f"{self.url}: {key} has more than {most} objects, no store has so many")
            return found

        yield from _without_marks(prefix, self._persist(request))

    def _checked(self, key: str) -> str:
        if any(name in ("", ".", "..") for name in key.split("/")) or "\\" in key or "\0" in key:
            raise StoreError(f"{self.url}: {key!r} would lead out of the store")
        return key

    def _check_bucket(self, error: Exception) -> None:
        """StoreError if `error` says that the bucket does not exist."""
        if _code(error) == _NO_BUCKET:
            raise self._no_bucket(error) from None

    def _no_bucket(self, error: Exception) -> StoreError:
        return StoreError(f"{self.url} is in no bucket that there is: {_reason(error)}")

    def _persist(self, request: Callable[[], T]) -> T:
        """Call `request`, again if the network failed it; returns its result."""
        errors = self._errors
        wait = _FIRST_WAIT
        for left in reversed(range(_TRIES)):
            try:
                return request()
            except errors.BaseError as error:
                if isinstance(error, errors.PermissionDeniedError | errors.UnauthenticatedError) or _refused(
                    error
                ):
                    raise ObjectsUnreachableError(
                        f"{self.url} is refused to the credentials of this environment: {_reason(error)}"
                    ) from None
                self._check_bucket(error)
                if _INVALID_PATH in str(error):
                    raise StoreError(
                        f"{self.url} holds an object that belongs to no store: {_reason(error)}"
                    ) from None
                if not left or not isinstance(error, errors.GenericError) or not _broke_off(error):
                    raise ObjectsUnreachableError(f"{self.url} cannot be reached: {_reason(error)}") from None
            time.sleep(wait)
            wait *= 2
        raise AssertionError("the last try returns or raises")


def _without_marks(prefix: str, found: Sequence[tuple[str, ObjectInfo]]) -> Iterator[tuple[str, ObjectInfo]]:
    """The objects below `prefix`, without folder markers.

    Consoles and mounted buckets keep an empty object `folder/` for each folder; obstore lists it without the
    slash.
    """
    folders = {
        "/".join(names[:depth])
        for names in {tuple(path.split("/")[:-1]) for path, _ in found}
        for depth in range(1, len(names) + 1)
    } | {prefix.rstrip("/")}
    for path, info in found:
        if info.size or path not in folders:
            yield path.removeprefix(prefix), info


def _info(found: Any) -> ObjectInfo:
    return ObjectInfo(found["size"], found["e_tag"])


def _broke_off(error: Exception) -> bool:
    """Whether the connection was lost in the middle of an answer.

    obstore's message names the retries for requests that it repeated, and the status for those that the
    server refused.
    """
    text = str(error)
    return "retries" not in text and "status code" not in text


def _refused(error: Exception) -> bool:
    """Whether the server denies access; for a listing, obstore has no error class of its own for that."""
    return re.search(r"status code: 40[13]", str(error)) is not None or _code(error) in _BAD_CREDENTIALS


def _code(error: Exception) -> str | None:
    """The error code in S3's answer."""
    found = _CODE.search(str(error))
    return found and found[1]


def _reason(error: Exception) -> str:
    """obstore's message in one line, without the server's documents and without queries, which may be
    signed."""
    if _MACHINE_ROLE in str(error):
        return (
            "no credentials are set (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), and this machine has no role"
        )
    document = re.compile(r"[:\s]*<(\?xml|!doctype|html).*", re.DOTALL | re.IGNORECASE)
    text = document.sub("", str(error).split("\n\n")[0])
    said = re.sub(r"(https?://[^\s?]*)\?\S*", r"\1", " ".join(text.split()))[:300]
    code = _code(error)
    if code is not None:
        said += f" ({code})"
    if code in _OTHER_REGION or "configured region" in said:
        said += "; set AWS_REGION to the bucket's"
    if "S3" in said and said.endswith("builder error"):  # obstore's message for a scheme that is not allowed
        said += "; if the endpoint is to be plain HTTP, set AWS_ALLOW_HTTP=true"
    return said
