# SPDX-License-Identifier: Apache-2.0
"""How fast the page of `gdnbench report` opens: headless Chromium, a file of synthetic records.

    python scripts/benchmarks/bench_report.py [--records 10000] [--failures 500] [--repeats 5]
        [--keep report.html]

For each repeat, in a browser of its own: milliseconds from the start of the navigation until the list of
records can be used (the page's own mark `interactive`), until the first record is shown, and until what is
printed is ready. The medians are printed, with the size of the file and the seconds it took to write.
GDNBENCH_CHROMIUM names another Chromium. Exit status: 0 measured; 3 there is no Chromium.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from gdnbench.page.build import write_page

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.page.chromium import Chromium, find
from tests.page.synthetic import large

MARKS = {
    "interactive": "performance.getEntriesByName('interactive')[0]?.startTime",
    "first record": "document.querySelector('.detail .record') && performance.now()",
    "ready to print": "document.documentElement.dataset.ready && performance.now()",
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--failures", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="write the page here, and leave it there")
    options = parser.parse_args()
    executable = find()
    if executable is None:
        print("no Chromium on the path: install it, or name it with GDNBENCH_CHROMIUM", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder) / "report.html"
        run = large(options.records, options.failures)
        start = time.perf_counter()
        write_page([run], path)
        written = time.perf_counter() - start
        print(f"{options.records} records, {path.stat().st_size / 2**20:.1f} MiB, written in {written:.1f} s")
        found: dict[str, list[float]] = {name: [] for name in MARKS}
        for _ in range(options.repeats):
            with Chromium.start(executable) as browser:
                browser.open(path)
                for name, mark in MARKS.items():
                    found[name].append(browser.until(mark))
    for name, times in found.items():
        print(f"{name}: {median(times):.0f} ms, {min(times):.0f} to {max(times):.0f} of {len(times)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
