# SPDX-License-Identifier: Apache-2.0
"""A process that forks writers and sealers and kills them, as a test asks on standard input.

It has everything imported and no threads, so that a fork is safe and takes milliseconds where a fresh
interpreter takes seconds. One JSON line per trial. In: `store`, `seed`, `kills` (who -> seconds) and `after`,
the number of acknowledgements from which on the seconds count. Out: `acknowledged`, the calls whose append
had returned before the writer died, and the exit `statuses`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from gdnbench.record import Status
from gdnbench.store import segment_sealer
from gdnbench.store.journal import JournalWriter
from gdnbench.store.sealer import Sealer
from tests.store import journal_calls as calls

MOST_RECORDS = 40


def write(store: Path, seed: int, acknowledge: int) -> None:
    """Append call after call; after each one that is safe, its number goes to the pipe `acknowledge`."""
    chooser = random.Random(seed)
    writer = JournalWriter(store, process={"seed": seed}, provenance={}, file_bytes=200_000)
    # Made beforehand, so that most of the time from here on is spent where a kill hurts.
    drafts = [calls.draft(n) for n in range(chooser.randrange(MOST_RECORDS // 2, MOST_RECORDS))]
    for n, draft in enumerate(drafts):
        if chooser.random() < 0.2:
            token = writer.begin(calls.info(n, Status.UNFINISHED), draft.before)
            written = writer.end(token, draft.info, draft.after)
        else:
            written = writer.append(draft)
        if not written:
            raise SystemExit("a record was dropped")
        os.write(acknowledge, struct.pack("<Q", n))
        time.sleep(chooser.choice((0, 0, 0, 0.01)))
    writer.close({})


def seal(store: Path, until_gone: int) -> None:
    """Seal until the pipe `until_gone` closes: its other end is the writer's."""
    segment_sealer.BATCH_RECORDS = 5
    segment_sealer.BATCH_SECONDS = 0.01
    os.set_blocking(until_gone, False)

    def writer_is_gone() -> bool:
        try:
            return os.read(until_gone, 1) == b""
        except BlockingIOError:
            return False

    Sealer(store).run_until(writer_is_gone, lambda _: None)


def forked(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)


def trial(store: Path, seed: int, kills: dict[str, float], after: int) -> dict[str, object]:
    """Run a writer beside a sealer; SIGKILL those in `kills`, and let the others end by themselves."""
    acknowledged, acknowledge = os.pipe()
    gone, alive = os.pipe()

    def writer() -> None:
        os.close(gone)
        write(store, seed, acknowledge)

    def sealer() -> None:
        os.close(alive)
        seal(store, gone)

    pids = {"writer": forked(writer), "sealer": forked(sealer)}
    for fd in (acknowledge, gone, alive):
        os.close(fd)
    data = b""
    while len(data) < 8 * after and (chunk := os.read(acknowledged, 8)):
        data += chunk
    started = time.monotonic()
    for name, delay in sorted(kills.items(), key=lambda item: item[1]):
        time.sleep(max(started + delay - time.monotonic(), 0))
        os.kill(pids[name], signal.SIGKILL)
    statuses = {name: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for name, pid in pids.items()}
    while chunk := os.read(acknowledged, 1 << 16):
        data += chunk
    os.close(acknowledged)
    return {"acknowledged": [n for (n,) in struct.iter_unpack("<Q", data)], "statuses": statuses}


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        asked = json.loads(line)
        result = trial(Path(asked["store"]), asked["seed"], asked["kills"], asked["after"])
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
