# SPDX-License-Identifier: Apache-2.0
"""The console script, and `python -m gdnbench`, which is the same."""

import os
import sys


def console_main() -> None:
    """`gdnbench`. An interrupt ends it with one line and exit status 130 while it is still importing, too."""
    try:
        from gdnbench.cli.main import console_main as run

        run()
    except KeyboardInterrupt:
        # As gdnbench.cli.main ends it; that module may not be there yet.
        print("gdnbench: interrupted; what was finished is kept", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    # `python -m` puts the current folder first on the import path. It may be a store with a `torch.py` in it.
    if not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]
    console_main()
