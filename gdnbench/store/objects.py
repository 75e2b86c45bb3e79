"""Objects below a URL: s3://, gs://, az:// and what else obstore reaches.

Requests that a server or the network fails are made again, by obstore for what it can tell is safe and here
for an answer that breaks off in its middle. Credentials, endpoint and region are obstore's to read from the
environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, AWS_ALLOW_HTTP, ...); they are neither kept nor printed.
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

_TRIES: Final = 4  # of a request whose answer broke off; obstore has retried the rest
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

_MACHINE_ROLE: Final = "//169.254.169.254/"  # whom machines of a cloud ask for what they may

_CODE: Final = re.compile(r"<Code>([A-Za-z0-9.]{1,60})</Code>")  # in what an S3 answers when it refuses
_NO_BUCKET: Final = "NoSuchBucket"
_BAD_CREDENTIALS: Final = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId"}
    | {"SignatureDoesNotMatch", "AuthFailure", "RequestExpired"}
)  # which some servers answer with 400
_OTHER_REGION: Final = frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect"})

_INVALID_PATH: Final = "object with invalid path"  # obstore's words for a listed key such as a//b and ../a

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object in a listing: bytes, and what changes when its content does, where the server says it."""

    size: int
    tag: str | None


class ObjectsUnreachableError(CannotRunError):
    """The network, the server or its permissions are in the way; what is in the store is not known."""


class Objects:
    """The objects below `url`, by keys relative to it with "/" between names.

    BadInputError for a URL that is none of an object store, CannotRunError without obstore. Every method
    raises ObjectsUnreachableError, in one line, for what the network or the server refuses.
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
        """All of an object, or None if there is none; StoreError if it has more than `limit` bytes."""

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
        """Bytes [start, stop) of an object; StoreError if it is gone."""

        def request() -> bytes:
            try:
                found = self._obstore.get_range(self._store, self._checked(key), start=start, end=stop)
            except FileNotFoundError:
                raise StoreError(f"{self.url}: {key} was listed and is gone") from None
            return bytes(found)

        return self._persist(request)

    def put(self, key: str, content: bytes | Path) -> None:
        """Make the object `key` hold `content`, or that of a file: all of it at once, or not at all."""

        def request() -> None:
            try:
                self._obstore.put(self._store, self._checked(key), content)
            except FileNotFoundError as error:
                if isinstance(content, Path) and not content.exists():
                    raise StoreError(f"{content} went while it was being uploaded; start again") from None
                raise self._no_bucket(error) from None

        self._persist(request)

    def folders(self, key: str) -> list[str]:
        """Names that are followed by "/" below `key`, sorted."""
        prefix = self._checked(key) if key else None
        found = self._persist(lambda: self._obstore.list_with_delimiter(self._store, prefix))
        return sorted({str(name).rstrip("/").rpartition("/")[2] for name in found["common_prefixes"]})

    def list(self, key: str, most: int) -> Iterator[tuple[str, ObjectInfo]]:
        """Every object below `key`, at any depth, by its key from there, but those that only mark folders.
        StoreError for more than `most`, of which no more are asked for: they are held in memory.
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
        """StoreError if it is the bucket that is not there, of which most answers say it."""
        if _code(error) == _NO_BUCKET:
            raise self._no_bucket(error) from None

    def _no_bucket(self, error: Exception) -> StoreError:
        return StoreError(f"{self.url} is in no bucket that there is: {_reason(error)}")

    def _persist(self, request: Callable[[], T]) -> T:
        """What `request` returns, made again where the network failed it."""
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
                        f"{self.url} holds what is none of a store's: {_reason(error)}"
                    ) from None
                if not left or not isinstance(error, errors.GenericError) or not _broke_off(error):
                    raise ObjectsUnreachableError(f"{self.url} cannot be reached: {_reason(error)}") from None
            time.sleep(wait)
            wait *= 2
        raise AssertionError("the last try returns or raises")


def _without_marks(prefix: str, found: Sequence[tuple[str, ObjectInfo]]) -> Iterator[tuple[str, ObjectInfo]]:
    """The objects below `prefix` without it. Consoles and mounted buckets keep an empty object `folder/` for
    each folder, of which obstore says the name without the slash.
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
    """Whether the connection was lost in the middle of an answer: of what obstore tried again by itself it
    says how often, and of what the server refused the status.
    """
    text = str(error)
    return "retries" not in text and "status code" not in text


def _refused(error: Exception) -> bool:
    """Whether the server knows and does not let us: of a listing, obstore has no error of its own for it."""
    return re.search(r"status code: 40[13]", str(error)) is not None or _code(error) in _BAD_CREDENTIALS


def _code(error: Exception) -> str | None:
    """The name that S3 gives to what is wrong."""
    found = _CODE.search(str(error))
    return found and found[1]


def _reason(error: Exception) -> str:
    """What obstore says, in one line, without documents of the server and queries, which may be signed."""
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
    if "S3" in said and said.endswith(
        "builder error"
    ):  # obstore's words for a scheme that it was not allowed
        said += "; if the endpoint is to be plain HTTP, set AWS_ALLOW_HTTP=true"
    return said
