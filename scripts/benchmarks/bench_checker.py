# SPDX-License-Identifier: Apache-2.0
"""What the simulator's checker costs on this machine.

    python scripts/benchmarks/bench_checker.py [--repeats 3] [--limit 10] [--memory] [KERNEL ...]

Runs each kernel on a record with and without the checker, in turns, and prints the medians and their ratio;
then how many bytes the checker keeps for each byte of global memory that a launch touches, by what the
process grows by. `--memory` prints that alone. KERNEL chooses rows by a part of their names.

Exit status: 0 all within the limits, 1 one is not, 3 a kernel cannot run here: FlashInfer's needs
`pip install --no-deps flashinfer-python==0.7.2.post1`.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from gdnbench.errors import Exit
from gdnbench.ops import operation
from gdnbench.replay.execute import Execution
from gdnbench.replay.run import InProcess
from gdnbench.replay.simulated import SIM
from gdnbench.sim import run_ptx
from gdnbench.store.reader import Store, StoredRecord
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise

ROOT = Path(__file__).parents[2]
CAPTURES = ROOT / "captures"
SERVED = f"{ROOT / 'scripts' / 'demo_flashinfer.py'}:gdn_prefill"
TOKENS, HEADS = 2048, (16, 32)

BYTES_LIMIT = 8  # kept for a byte that is touched
TOUCHED = 64 << 20
PER_CTA = 64 << 10

# Each CTA writes 64 KiB, 16 bytes a thread, and reads them again; `one byte` is a store that makes the bytes
# the cells, of which there are four times as many.
TOUCH = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 data)
{
.reg .pred %more, %never;
.reg .b32 %t, %c, %i, %r<4>;
.reg .b64 %a;
ld.param.u64 %a, [data];
mov.u32 %t, %tid.x;
mov.u32 %c, %ctaid.x;
mad.wide.u32 %a, %c, 65536, %a;
mad.wide.u32 %a, %t, 16, %a;
mov.u32 %i, 32;
setp.eq.u32 %never, %t, 128;
LOOP:
st.global.v4.b32 [%a], {%t, %t, %t, %t};
ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%a];
add.s64 %a, %a, 2048;
add.s32 %i, %i, -1;
setp.ne.s32 %more, %i, 0;
@%more bra LOOP;
ONE
ret;
}
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A kernel on the first record of a store; the one that is made here if that is None."""

    name: str
    kernel: str
    store: Path | None = None
    op: str = "gdn_prefill"


ROWS = (
    Row("served prefill, FlashInfer", SERVED),
    Row("gdn_prefill sm100", "sm100", CAPTURES / "prefill.zarr.zip"),
    Row("swa_decode sm100", "sm100", CAPTURES / "swa_fp8_ds_mla.zarr.zip", "swa_decode"),
    Row("gdn_decode cute", "cute", CAPTURES / "decode.zarr.zip", "gdn_decode"),
)


@contextmanager
def _record(row: Row) -> Iterator[StoredRecord]:
    with tempfile.TemporaryDirectory() as folder:
        path = row.store
        if path is None:
            path = Path(folder) / "served.zarr"
            call = synthesise(row.op, seqlens=(TOKENS,), heads=HEADS, initial_state=True)
            with StoreWriter(path, kind="synth", durable=False) as writer:
                writer.write("0", [draft(row.op, call, index=0)])
        with Store.open(path) as store:
            yield store.records[0]


def times(row: Row, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of `repeats` calls, plain and checked; the first of each is not among them: it compiles."""
    taken: tuple[list[float], list[float]] = [], []
    with _record(row) as record:
        runners = [InProcess(row.kernel, SIM, check=check) for check in (False, True)]
        for turn in range(repeats + 1):
            for runner, seconds in zip(runners, taken, strict=True):
                done = runner.run_record(record, operation(row.op))
                if not isinstance(done, Execution):
                    sys.exit(f"{row.name}: {done.reason}")
                if turn:
                    seconds.append(done.seconds)
    return taken


def kept_bytes(one: str) -> float:
    """Bytes that the process grows by, at its most, for each byte that a checked launch touches."""
    text = TOUCH.replace("ONE", one)
    data = np.ones(TOUCHED, np.uint8)

    def run(ctas: int) -> None:
        run_ptx(text, "k", (ctas, 1, 1), (128, 1, 1), [data], threads=1, check=True)

    run(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(TOUCHED // PER_CTA)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / TOUCHED


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="KERNEL")
    parser.add_argument("--repeats", type=int, default=3, help="of each, with and without the checker")
    parser.add_argument("--limit", type=float, default=10.0, help="times the plain run")
    parser.add_argument("--memory", action="store_true", help="measure memory alone")
    options = parser.parse_args()
    status = Exit.PASS
    for what, one in (("words", ""), ("bytes", "@%never st.global.b8 [%a], %t;")):
        # The most that a process ever had is known, so that each has one of its own.
        with get_context("spawn").Pool(1) as pool:
            kept = pool.apply(kept_bytes, (one,))
        over = kept > BYTES_LIMIT
        status = Exit.MISMATCH if over else status
        print(f"memory of {what}  {kept:.2f} bytes a byte touched{', over the limit' if over else ''}")
    for row in () if options.memory else ROWS:
        if options.names and not any(name in row.name for name in options.names):
            continue
        if row.kernel == SERVED and find_spec("flashinfer") is None:
            print(f"{row.name}: needs pip install --no-deps flashinfer-python==0.7.2.post1", file=sys.stderr)
            status = max(status, Exit.CANNOT_RUN)
            continue
        plain, checked = (statistics.median(seconds) for seconds in times(row, options.repeats))
        over = checked > options.limit * plain
        status = Exit.MISMATCH if over else status
        print(
            f"{row.name:28} {plain:7.2f} s, checked {checked:7.2f} s, {checked / plain:5.1f} x"
            f"{', over the limit' if over else ''}",
            flush=True,
        )
    return status


if __name__ == "__main__":
    sys.exit(main())
