# SPDX-License-Identifier: Apache-2.0
"""Names, paths and versions of the store's layout, and its JSON helpers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gdnbench.errors import StoreError

FORMAT_VERSION: Final = 1
KEY: Final = "gdnbench"  # the attribute that holds all of gdnbench's metadata
KINDS: Final = ("capture", "run", "synth")
TRACE: Final = "trace"  # a store with another layout, see `gdnbench.trace`

SEGMENTS: Final = "segments"
ROWS: Final = "rows"
BLOBS: Final = "blobs"
RECORDS: Final = "records"
OF: Final = "of"  # attribute of a batch: the pruned batch whose records it holds
KEPT_IN: Final = "kept_in"  # attribute of a pruned batch: the batches that hold its kept records
JOURNAL: Final = ".journal"
INCOMING: Final = ".incoming"
OUTGOING: Final = "prune-"  # prefix, in INCOMING, of a folder that is being removed
METADATA: Final = "zarr.json"

# Large enough for any metadata or batch of records we write; small enough to parse untrusted text.
METADATA_LIMIT: Final = 64 << 20
MOST_RECORDS: Final = METADATA_LIMIT // 128  # in a batch: the shortest record has more than 128 bytes of text

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_LOCATION = re.compile(
    rf"({_NAME.pattern})/({_NAME.pattern})/(?:{ROWS}/({_NAME.pattern})#([0-9]{{1,12}})|{BLOBS}/({_NAME.pattern}))"
)


def is_name(name: str) -> bool:
    """Whether `name` may be a folder of a store: without separators or a leading dot it cannot lead
    elsewhere."""
    return _NAME.fullmatch(name) is not None


def checked_name(name: str, what: str) -> str:
    """`name` if it may be a folder of a store; otherwise StoreError."""
    if not is_name(name):
        raise StoreError(
            f"{what} {name!r} is refused: letters, digits, '_', '-' and inner '.' only, up to 200"
        )
    return name


def class_name(dtype: str, shape: tuple[int, ...]) -> str:
    """The name of a (dtype, shape) class: "bfloat16.1x16x128", "float32.scalar"."""
    return f"{dtype}.{'x'.join(map(str, shape)) or 'scalar'}"


@dataclass(frozen=True, slots=True)
class Location:
    """Where a tensor's elements are stored: a whole array, or one row of it."""

    segment: str
    batch: str
    folder: str  # ROWS or BLOBS
    name: str
    row: int | None  # None exactly for BLOBS

    @property
    def array(self) -> str:
        """The array's path from the root of the store."""
        return f"{SEGMENTS}/{self.segment}/{self.batch}/{self.folder}/{self.name}"

    def __str__(self) -> str:
        row = "" if self.row is None else f"#{self.row}"
        return f"{self.segment}/{self.batch}/{self.folder}/{self.name}{row}"

    @classmethod
    def parse(cls, text: str) -> Location:
        """The location written as `text`; ValueError names what is wrong with it."""
        match = _LOCATION.fullmatch(text)
        if match is None:
            raise ValueError(
                f"location {text[:300]!r} is neither <segment>/<batch>/rows/<name>#<row> "
                "nor <segment>/<batch>/blobs/<name>"
            )
        segment, batch, rows, row, blob = match.groups()
        if rows is not None:
            return cls(segment, batch, ROWS, rows, int(row))
        return cls(segment, batch, BLOBS, blob, None)


def group_json(attributes: Mapping[str, Any], indent: int | None = 2) -> bytes:
    """The zarr.json of a Zarr v3 group that has `attributes` under our key."""
    node = {"zarr_format": 3, "node_type": "group", "attributes": {KEY: attributes} if attributes else {}}
    return json.dumps(node, indent=indent).encode()


def parse_node(text: bytes, node_type: str, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A Zarr v3 node's metadata, and its attributes under our key. StoreError if `text` is no such node."""
    try:
        node = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{where}/{METADATA} is not JSON: {error}") from error
    if not isinstance(node, dict) or node.get("zarr_format") != 3 or node.get("node_type") != node_type:
        raise StoreError(f"{where}/{METADATA} is not a Zarr v3 {node_type}")
    attributes = node.get("attributes", {})
    ours = attributes.get(KEY, {}) if isinstance(attributes, dict) else None
    if not isinstance(ours, dict):
        raise StoreError(f"{where}/{METADATA}: attributes.{KEY} is not an object")
    return node, ours


def refuse_links(*folders: Path) -> None:
    """StoreError if one of `folders` of a store is a symbolic link: to write there, or to clear it, would
    change files that are not the store's."""
    for folder in folders:
        if folder.is_symlink():
            raise StoreError(f"{folder} is a symbolic link; a store holds only its own files")


def check_root(attributes: Mapping[str, Any], path: object) -> str:
    """The kind of the store whose root has these attributes; StoreError if this version cannot read it."""
    version = attributes.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise StoreError(
            f"{path} is a Zarr group but not a gdnbench store: attributes.{KEY}.format_version is missing"
        )
    if version > FORMAT_VERSION:
        writer = attributes.get("created_by", "a newer gdnbench")
        raise StoreError(
            f"{path} has store format {version}, written by {writer}; this gdnbench reads up to format "
            f"{FORMAT_VERSION}: install one that reads format {version}"
        )
    kind = attributes.get("kind")
    if kind == TRACE:
        raise StoreError(f"{path} is a value trace, it has no records; `gdnbench diff` compares two of them")
    if kind not in KINDS:
        raise StoreError(f"{path}: kind {kind!r} is not one of {', '.join(KINDS)}")
    return str(kind)
