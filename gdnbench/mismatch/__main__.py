"""The judging process: runs until its standard input closes, then judges what is left.

    python -m gdnbench.mismatch CANDIDATES STORE K

prints its counts on stdout as JSON.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

IDLE_SECONDS = 0.2
IDLE_SHARE = 9
"""After a poll without new calls, wait this many times the poll's duration: listing thousands of calls takes
a while."""


def main(arguments: list[str]) -> int:
    candidates, store, k = arguments
    # An interrupt from the terminal is for the program being captured.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(19)
    import torch

    from gdnbench.errors import EXPECTED_ERRORS, Exit, exit_code_of
    from gdnbench.mismatch.candidates import Candidates
    from gdnbench.printable import printable

    torch.set_num_threads(1)
    waiting = Candidates(Path(candidates), Path(store), float(k))
    try:
        try:
            pause = 0.0
            while True:
                last = _stdin_closed(pause)
                began = time.monotonic()
                judged = waiting.poll()
                if last and not judged:
                    break
                pause = 0.0 if judged else max(IDLE_SECONDS, IDLE_SHARE * (time.monotonic() - began))
        finally:
            tally = waiting.close()
    except EXPECTED_ERRORS as error:
        print(f"gdnbench: {printable(error)}", file=sys.stderr)
        return int(exit_code_of(error))
    except OSError as error:
        reason = printable(error.strerror or error)
        print(f"gdnbench: {printable(store)} cannot be written: {reason}", file=sys.stderr)
        return int(Exit.CANNOT_RUN)
    print(json.dumps(asdict(tally)))
    return 0


def _stdin_closed(seconds: float) -> bool:
    """Whether standard input is closed, or closes within `seconds`."""
    readable, _, _ = select.select([0], [], [], seconds)
    return bool(readable) and os.read(0, 4096) == b""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
