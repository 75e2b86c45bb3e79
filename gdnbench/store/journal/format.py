# SPDX-License-Identifier: Apache-2.0
"""Bytes of a journal: the append-only log between a captured call and the store.

A segment's journal is the folder `<store>/.journal/<segment>/` with files `<8 digits>.log`, each a row of
entries. All integers are little-endian; every entry, payload and trailer starts at a multiple of 8 bytes.

    entry    | prefix, 56 bytes           | magic "GDNJ", version, then as `Prefix`; its own CRC-32 last
             | payload lengths, uint64[n] | bytes of each payload, padding not counted
             | header                     | UTF-8 JSON, padded with spaces to 8 bytes
             | payloads                   | elements of the tensors, contiguous, each zero-padded to 8 bytes
             | trailer, 24 bytes          | magic "JEND", header CRC, entry number, payload checksum

| kind   | header                                                            | payloads           |
|--------|-------------------------------------------------------------------|--------------------|
| OPEN   | `Opening`: kind, segment, compression, process, provenance; first in every file | none |
| RECORD | info, before, after                                               | before, then after |
| BEGIN  | info, before; on disk (fdatasync) before the call starts          | before             |
| END    | begin (number of the BEGIN entry), info, after                    | after              |
| CLOSE  | summary, error, blocked_seconds; the writer ended in order        | none               |

`before` and `after` map a tensor's name to its `TensorMeta`. A description with `at` and `sum` has no
payload: its bytes are those at that offset of the same file (the state that left the layer's previous step).

How a reader validates an entry: the prefix's own CRC makes its lengths safe to follow, the header CRC covers
lengths and JSON, the trailer shows that the last byte was written, and its checksum covers the payloads. A
writer killed inside `writev` leaves a file that may end at any byte: the torn tail is skipped. Any other
mismatch is reported as damage.

The payload checksum is the wrapping sum of 64-bit words: 6 us for a 256 KiB state, where CRC-32 takes 60. It
detects every single flipped bit and every block that reads back as zeros.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from gdnbench.errors import StoreError

JOURNAL_VERSION = 1
MAGIC = b"GDNJ"
END_MAGIC = b"JEND"
ALIGNMENT = 8

_PREFIX = struct.Struct("<4sHHQQQIIQII")
_PREFIX_CHECKED = _PREFIX.size - 4  # the prefix's own CRC is its last field
_TRAILER = struct.Struct("<4sIQQ")
PREFIX_BYTES = _PREFIX.size
TRAILER_BYTES = _TRAILER.size
_WORD_MASK = (1 << 64) - 1


class JournalRefusedError(StoreError):
    """A journal that this gdnbench cannot read at all; the message says why, and what can read it."""


class JournalDamage(StoreError):
    """Bytes that the journal's writer did not write; the message names file, byte and fault."""


class Kind(IntEnum):
    OPEN = 1
    RECORD = 2
    BEGIN = 3
    END = 4
    CLOSE = 5


@dataclass(frozen=True, slots=True)
class Prefix:
    """The start of an entry. `records` and `dropped` count what came before this entry."""

    kind: Kind
    number: int  # of the entry in its segment, from 0
    records: (
        int  # records finished before this entry: the number of the record that this entry finishes, if any
    )
    dropped: int  # records dropped before this entry
    header_bytes: int
    payload_count: int
    payload_bytes: int  # with padding
    header_crc: int

    @property
    def head_bytes(self) -> int:
        """Bytes from the entry's start to its first payload."""
        return PREFIX_BYTES + 8 * self.payload_count + self.header_bytes

    @property
    def entry_bytes(self) -> int:
        return self.head_bytes + self.payload_bytes + TRAILER_BYTES


def padding(nbytes: int) -> int:
    """Bytes from `nbytes` up to the next aligned offset."""
    return -nbytes % ALIGNMENT


def pack_head(
    kind: Kind, number: int, records: int, dropped: int, header: bytes, payloads: list[int]
) -> tuple[bytes, int]:
    """Prefix, payload lengths and padded header as one piece, and the header's CRC for the trailer."""
    header += b" " * padding(len(header))
    lengths = struct.pack(f"<{len(payloads)}Q", *payloads)
    crc = zlib.crc32(header, zlib.crc32(lengths))
    prefix = _PREFIX.pack(
        MAGIC,
        JOURNAL_VERSION,
        kind,
        number,
        records,
        dropped,
        len(header),
        len(payloads),
        sum(nbytes + padding(nbytes) for nbytes in payloads),
        crc,
        0,
    )[:_PREFIX_CHECKED]
    return b"".join((prefix, struct.pack("<I", zlib.crc32(prefix)), lengths, header)), crc


def pack_trailer(header_crc: int, number: int, checksum: int) -> bytes:
    return _TRAILER.pack(END_MAGIC, header_crc, number, checksum & _WORD_MASK)


def unpack_prefix(data: bytes, where: str) -> Prefix:
    """The prefix in `data`, PREFIX_BYTES long; JournalRefusedError for a newer version."""
    magic, version, kind, number, records, dropped, header, count, payload, header_crc, own = _PREFIX.unpack(
        data
    )
    if magic != MAGIC:
        raise JournalDamage(f"{where}: no journal entry starts here")
    if zlib.crc32(data[:_PREFIX_CHECKED]) != own:
        raise JournalDamage(f"{where}: the entry's prefix does not match its checksum")
    if version > JOURNAL_VERSION:
        raise JournalRefusedError(
            f"{where}: journal version {version}, this gdnbench reads up to {JOURNAL_VERSION};"
            " seal it with the gdnbench that wrote it"
        )
    try:
        return Prefix(Kind(kind), number, records, dropped, header, count, payload, header_crc)
    except ValueError:
        raise JournalDamage(f"{where}: entry kind {kind} is not known") from None


def unpack_head(prefix: Prefix, data: bytes, where: str) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Payload lengths and header from the bytes after the prefix; JournalDamage if they do not match it."""
    if zlib.crc32(data) != prefix.header_crc:
        raise JournalDamage(f"{where}: the entry's header does not match its checksum")
    lengths = struct.unpack_from(f"<{prefix.payload_count}Q", data)
    if sum(nbytes + padding(nbytes) for nbytes in lengths) != prefix.payload_bytes:
        raise JournalDamage(f"{where}: the payload lengths do not add up")
    header: dict[str, Any] = json.loads(data[8 * prefix.payload_count :])
    return lengths, header


def check_trailer(prefix: Prefix, data: bytes, where: str) -> int:
    """The payload checksum in the trailer `data`; JournalDamage if the trailer is not this entry's."""
    magic, crc, number, checksum = _TRAILER.unpack(data)
    if magic != END_MAGIC or crc != prefix.header_crc or number != prefix.number:
        raise JournalDamage(f"{where}: the entry's trailer does not match its prefix")
    return int(checksum)


def checksum(buffer: Any) -> int:
    """Sum of the 64-bit words of a buffer, its tail padded with zeros, modulo 2**64."""
    view = memoryview(buffer)
    whole = view.nbytes & ~7
    total = int(np.add.reduce(np.frombuffer(view, np.uint64, whole // 8), dtype=np.uint64)) if whole else 0
    if whole != view.nbytes:
        total += int.from_bytes(bytes(view[whole:]), "little")
    return total & _WORD_MASK
