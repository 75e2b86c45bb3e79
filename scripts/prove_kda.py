#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Replays every made and shipped record of kda_prefill and kda_decode through every kernel of theirs.

    python scripts/prove_kda.py                       in the simulator, or on the CPU what runs only there
    python scripts/prove_kda.py --on cuda             kernels for CUDA on the GPU here
    python scripts/prove_kda.py 'kda_prefill fla*'    kernels by operation and name; --list prints them
    python scripts/prove_kda.py --records 'capture*'  records by name
    python scripts/prove_kda.py --quick               the few small made records, and the captures
    python scripts/prove_kda.py --results FILE        kept; what is there is not replayed again
    python scripts/prove_kda.py --markdown            the table in markdown

Kernels of other packages need the variable GDNBENCH_THIRD_PARTY for flash-linear-attention and FlashInfer,
GDNBENCH_SGLANG and GDNBENCH_VLLM for the engines; each names a folder of packages. A record passes when its
outputs are within the limits of docs/judging.md; a call that a kernel does not take is unsupported. Exit
status: 0 none failed, 1 a record is a mismatch or crashes, 2 bad arguments, 3 nothing ran.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gdnbench.cli.console import table
from gdnbench.errors import BAD_INPUT_ERRORS, Exit
from tests.kernels import prove_all
from tests.kernels.proving import chosen

OPS = ("kda_prefill", "kda_decode")


def main() -> Exit:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="patterns of kernels; all if left out")
    parser.add_argument("--list", action="store_true", help="print the kernels")
    parser.add_argument("--on", choices=("sim", "cuda"), default="sim")
    parser.add_argument("--records", action="append", default=[], help="patterns of records; all if left out")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one record")
    parser.add_argument("--results", type=Path, help="a file to keep verdicts in, and to go on from")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    known_kernels = list(prove_all.subjects(OPS, options.on == "cuda"))
    if options.list:
        print("\n".join(map(str, known_kernels)))
        return Exit.PASS
    subjects = [one for one in known_kernels if chosen(str(one), options.names)]
    if not subjects:
        print(f"error: no kernel is called {' or '.join(options.names)}; --list prints them", file=sys.stderr)
        return Exit.BAD_INPUT
    with tempfile.TemporaryDirectory(prefix="gdnbench-prove-") as folder:
        path = options.results or Path(folder) / "results.jsonl"
        verdicts = prove_all.read(path)

        def told(verdict: prove_all.Verdict) -> None:
            prove_all.write(path, verdict)
            verdicts[verdict.subject, verdict.record] = verdict
            line = f"{verdict.seconds:6.1f} s {verdict.outcome:18} {verdict.subject}: {verdict.record}"
            print(f"{line} {verdict.reason}".rstrip(), file=sys.stderr, flush=True)

        try:
            with prove_all.Records(Path(folder), OPS, tuple(options.records), options.quick) as records:
                asked = {(str(one), name) for one in subjects for _, _, name in records.of(one.op)}
                for subject in subjects:
                    prove_all.prove(subject, records, verdicts, options.timeout, told)
        except BAD_INPUT_ERRORS as error:
            print(f"error: {error}", file=sys.stderr)
            return Exit.BAD_INPUT
    return report([one for key, one in verdicts.items() if key in asked], options.markdown)


def report(verdicts: list[prove_all.Verdict], markdown: bool) -> Exit:
    """Prints the table."""
    by_subject: dict[str, list[prove_all.Verdict]] = {}
    for one in verdicts:
        by_subject.setdefault(one.subject, []).append(one)
    rows = [prove_all.row(subject, few) for subject, few in by_subject.items()]
    if markdown:
        print("| " + " | ".join(prove_all.HEADS) + " |")
        print("|---" * len(prove_all.HEADS) + "|")
        for row in rows:
            print("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |")
    else:
        print(table(prove_all.HEADS, rows, right=prove_all.HEADS[1:8]))
    failed = prove_all.failures(verdicts)
    ran = [one for one in verdicts if one.outcome not in prove_all.NOT_RUN]
    print(f"{len(verdicts)} verdicts, {len(failed)} failed")
    if failed:
        return Exit.MISMATCH
    return Exit.PASS if ran else Exit.CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main())
