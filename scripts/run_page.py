#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Runs a page of docs/: writes its files, runs its commands, holds what they print to what the page says.

    python scripts/run_page.py docs/tutorial.md                 everything, in a folder that is removed
    python scripts/run_page.py docs/tutorial.md --quick         without the blocks under <!-- slow -->
    python scripts/run_page.py docs/tutorial.md --folder F      F is new or empty, and kept
    python scripts/run_page.py README.md --here                 in this checkout; the page writes nothing

A block under <!-- slow, NAME from VARIABLE/BELOW --> needs packages that readers install to the folder NAME:
here that is a link to the folder BELOW the one that VARIABLE names. Without it the block is left out.

A block whose fence says `file=NAME` is written to NAME. A block `console` has commands behind `$ ` (a line
that ends in a backslash goes on), each with all that it prints, stdout and stderr together, below it. There
`...` stands for anything, line breaks count as spaces, and what no two runs or machines have alike may
differ: seconds, commit hashes, keys of records, and figures with a decimal point or an exponent, for how a
CPU rounds is its own. GDNBENCH names this checkout. Blocks `pycon` are one Python session, which runs in
the same folder when all else is done.

Exit status: 0 all is as printed, 1 something is not, 2 bad arguments.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.docs.python_session import run_python
from tests.docs.session import ROOT, blocks, run


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path)
    parser.add_argument("--quick", action="store_true", help="leave out what takes long")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--folder", type=Path, help="new or empty; kept")
    where.add_argument("--here", action="store_true", help="in this checkout")
    arguments = parser.parse_args()
    try:
        page = arguments.page.read_text(encoding="utf-8")
    except OSError as error:
        parser.error(f"{arguments.page}: {error.strerror}")
    if arguments.folder is not None and arguments.folder.exists() and any(arguments.folder.iterdir()):
        parser.error(f"{arguments.folder} is not empty")
    with tempfile.TemporaryDirectory(prefix="gdnbench-page-") as scratch:
        folder = ROOT if arguments.here else (arguments.folder or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        chosen = [one for one in blocks(page) if not (arguments.quick and one.slow)]
        for block in chosen:
            if block.lacks:
                print(f"line {block.line}: left out: there is no folder of packages for {block.lacks}")
        chosen = [one for one in chosen if not one.lacks]
        failed = 0
        sessions = {"$": run(chosen, folder, Path(scratch) / "cache"), ">>>": run_python(page, folder)}
        for prompt, done in ((prompt, done) for prompt, session in sessions.items() for done in session):
            print(f"line {done.line}: {prompt} {done.command}  [{done.seconds:.1f} s]", flush=True)
            if done.wrong:
                failed += 1
                print(f"{arguments.page}:{done.line}: {done.wrong}\nit printed:\n{done.printed}", flush=True)
    print(f"{failed} of the commands printed something else" if failed else "all as printed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
