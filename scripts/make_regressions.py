#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Makes a git repository of a kernel package with regressions in its history, for `gdnbench bisect`.

    python scripts/make_regressions.py FOLDER

The package `served_kernels` has copies of this checkout's SM100 prefill kernels. Of its commits one lowers
the rounds of the inverse so that only keys that are alike show it, one rounds beta to bf16, one lets a tail
load bring the next sequence in, two leave a wait out, each seen under other schedules of the simulator, one
leaves a fence out that no number shows, one does not build, one changes rounding without harm. They are
tagged. The same checkout gives the same hashes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.bisect.regressions.repository import make


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="new or empty")
    arguments = parser.parse_args()
    try:
        tags = make(arguments.folder)
    except ValueError as error:
        parser.error(str(error))
    for tag, identity in tags.items():
        print(f"{identity[:10]} {tag}")


if __name__ == "__main__":
    main()
