# SPDX-License-Identifier: Apache-2.0
"""`python -m gdnbench`: the same as the console script."""

import os
import sys

if __name__ == "__main__":
    # `python -m` puts the current folder first on the import path. It may be a store with a `torch.py` in it.
    if not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]

    from gdnbench.cli.main import console_main

    console_main()
