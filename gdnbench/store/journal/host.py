# SPDX-License-Identifier: Apache-2.0
"""Which host writes a journal. Locks tell live writers from dead ones only on the writer's own host.

File systems mounted by many hosts may keep `flock` local to each (Lustre with `localflock`, NFS with
`local_lock`, many FUSE ones): another host's live writer then looks dead. So the writer's lock file names its
host, and a journal is left to that host.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import stat
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MAX_BYTES = 4096
_SHARED_NAMES = ("localhost", "")  # names that many hosts have


class Host(NamedTuple):
    """A running kernel: processes of one `boot` share their locks."""

    boot: str  # Linux's random id of this boot; "" if unavailable
    name: str

    def to_bytes(self) -> bytes:
        return json.dumps(self._asdict()).encode()


@functools.cache
def this_host() -> Host:
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    return Host(boot, socket.gethostname())


def host_mark() -> str:
    """The host's part in the name of a journal in the making."""
    host = this_host()
    return (host.boot or host.name).replace("/", "")[:12]


def other_host(lock: Path, names: Collection[str] = ()) -> str | None:
    """The name of another host whose process made the lock file `lock`; None if `flock` is reliable here.

    It is reliable on the same boot, and after a reboot of the same host, where earlier writers are dead.
    Hosts in `names` count as this one; so does a lock file of an earlier version, which names no host.
    """
    writer, here = _writer(lock), this_host()
    if writer is None or (writer.boot and writer.boot == here.boot) or writer.name in names:
        return None
    if writer.name == here.name and writer.name.partition(".")[0] not in _SHARED_NAMES:
        return None
    return writer.name


def _writer(lock: Path) -> Host | None:
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        text = os.read(fd, _MAX_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        found = json.loads(text)
        return Host(str(found["boot"]), str(found["name"]))
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return None
    finally:
        os.close(fd)
