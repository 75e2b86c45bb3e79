"""The process that judges: until its standard input closes, and then what is left.

    python -m gdnbench.mismatch CANDIDATES STORE K

prints on stdout what came of the calls, as JSON.
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


def main(arguments: list[str]) -> int:
    candidates, store, k = arguments
    # An interrupt from the terminal is for the program being captured.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(19)
    import torch

    from gdnbench.errors import Exit, GdnbenchError
    from gdnbench.mismatch.candidates import Candidates

    torch.set_num_threads(1)
    waiting = Candidates(Path(candidates), Path(store), float(k))
    try:
        try:
            while True:
                last = _stdin_closed()
                if not waiting.poll():
                    if last:
                        break
                    time.sleep(IDLE_SECONDS)
        finally:
            tally = waiting.close()
    except GdnbenchError as error:
        print(f"gdnbench: {error}", file=sys.stderr)
        return int(error.exit_code)
    except OSError as error:
        print(f"gdnbench: {store} cannot be written: {error.strerror or error}", file=sys.stderr)
        return int(Exit.CANNOT_RUN)
    print(json.dumps(asdict(tally)))
    return 0


def _stdin_closed() -> bool:
    readable, _, _ = select.select([0], [], [], 0)
    return bool(readable) and os.read(0, 4096) == b""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
