#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Compares bits that the prefill kernels for Hopper leave on a GPU with those that the simulator leaves.

    python scripts/prefill_bits.py --record FILE         on an SM90: digests of every output of every call
    python scripts/prefill_bits.py --compare FILE        anywhere: the same calls on the simulator
    python scripts/prefill_bits.py --compare FILE --quick 'NaN*'
    python scripts/prefill_bits.py --list

The calls are those of `scripts/kernel_grid.py gdn_prefill` that the kernels take, and a few whose segments
have several chunks; each with 64 and 128 rows of a state in a CTA, whole and cut into segments, with and
without a launch for the squares. A digest is SHA-256 of a tensor's bytes, in which every NaN has the same
bits. Exit status: 0 all equal, 1 some not, 2 bad arguments, 3 there is no SM90 (to record).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from gdnbench.bits import as_integers
from gdnbench.errors import Exit
from gdnbench.ops import operation
from gdnbench.replay.call import conversion
from gdnbench.replay.kernels import load
from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import Settings, active
from gdnbench.synth import synthesise
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_prefill.cases import cases
from gdnbench_kernels.gdn_prefill.sm90_cp import sm90_fused_cp, sm90_prepared
from gdnbench_kernels.gdn_prefill.sm90_fused import sm90_fused
from gdnbench_kernels.gdn_prefill.sm90_sources import TUNINGS
from tests.kernels.proving import chosen

OP = "gdn_prefill"
SEGMENTS = (64, 192)
LONGER: Mapping[str, Mapping[str, Any]] = {
    "1000 tokens": {"seqlens": (1000,), "heads": (2, 4), "initial_state": True},
    "700 and 300 tokens": {"seqlens": (700, 0, 300), "heads": (1, 2), "beta": (0.0, 2.0)},
}
Outputs = dict[str, Tensor]
Launched = Mapping[str, Callable[..., Outputs]]


@dataclass(frozen=True, slots=True)
class Made:
    """A call and its name."""

    name: str
    quick: bool
    options: Mapping[str, Any]

    def call(self) -> Call:
        """In the conventions that the kernels take."""
        op = operation(OP)
        call = synthesise(OP, **self.options)
        call = replace(call, conventions={**op.default_conventions, **call.conventions})
        return op.convert(call, conversion(call, op, load("sm90_fused", op)).target)


def calls() -> Iterator[Made]:
    for case in cases():
        if not case.refused:
            yield Made(case.name, case.quick, case.options)
    for name, options in LONGER.items():
        yield Made(name, False, options)


def kernels() -> dict[str, Callable[..., Outputs]]:
    """Each way to launch, by name."""
    found: dict[str, Callable[..., Outputs]] = {}
    for slices in TUNINGS:
        found[f"slices {slices}"] = partial(sm90_fused, slices=slices)
        for segment in SEGMENTS:
            found[f"slices {slices}, segments of {segment}"] = partial(
                sm90_fused_cp, slices=slices, segment=segment
            )
        for segment in (None, *SEGMENTS):
            cut = "" if segment is None else f", segments of {segment}"
            found[f"squares apart, slices {slices}{cut}"] = partial(
                sm90_prepared, slices=slices, segment=segment
            )
    return found


def digest(tensor: Tensor) -> str:
    """Of the bits, NaN being one."""
    whole = tensor.detach().cpu().contiguous()
    bits = as_integers(whole).clone()
    bits[whole.isnan()] = -1
    return hashlib.sha256(bits.numpy().tobytes()).hexdigest()


def left_by(made: Made, kernel: Callable[..., Outputs], device: torch.device) -> dict[str, str]:
    call = made.call()
    tensors = {name: tensor.to(device) for name, tensor in call.tensors.items() if name not in TABLES}
    outputs = {
        name: torch.full(shape, torch.nan, dtype=dtype, device=device)
        for name, (shape, dtype) in operation(OP).outputs(call).items()
    }
    found = kernel(**tensors, **call.scalars, **outputs)
    return {name: digest(tensor) for name, tensor in found.items()}


TABLES = ("chunk_indices", "chunk_offsets")


def record(path: Path, wanted: Callable[[Made], bool], launched: Launched) -> Exit:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("error: no SM90 GPU to record on; --compare needs none", file=sys.stderr)
        return Exit.CANNOT_RUN
    rows: dict[str, dict[str, dict[str, str]]] = {}
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
    for made in filter(wanted, calls()):
        rows[made.name] = {
            name: left_by(made, kernel, torch.device("cuda")) for name, kernel in launched.items()
        }
        path.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")  # what is done stays
        print(made.name, file=sys.stderr, flush=True)
    print(f"{len(rows)} calls recorded on {about['device']}")
    return Exit.PASS


def compare(path: Path, wanted: Callable[[Made], bool], launched: Launched) -> Exit:
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        rows: Mapping[str, Mapping[str, Mapping[str, str]]] = about["rows"]
    except (OSError, ValueError, KeyError) as error:
        print(f"error: {path} has no digests: {error}; make it with --record", file=sys.stderr)
        return Exit.BAD_INPUT
    outputs = wrong = 0
    for made in filter(wanted, calls()):
        if made.name not in rows:
            print(f"{made.name}: not recorded")
            wrong += 1
            continue
        for name, kernel in launched.items():
            if name not in rows[made.name]:
                print(f"{made.name}, {name}: not recorded")
                wrong += 1
                continue
            with active(Settings()), programs_simulated():
                found = left_by(made, kernel, torch.device("cpu"))
            different = [
                output for output, bits in found.items() if rows[made.name][name].get(output) != bits
            ]
            outputs += len(found)
            wrong += len(different)
            if different:
                print(f"{made.name}, {name}: other bits of {', '.join(different)}", flush=True)
        print(f"{made.name}: compared", file=sys.stderr, flush=True)
    print(f"{outputs} outputs compared with those of {about['device']}, {wrong} differences")
    return Exit.MISMATCH if wrong or not outputs else Exit.PASS


def main() -> Exit:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help="patterns of calls' names; all if left out")
    parser.add_argument("--record", type=Path, metavar="FILE")
    parser.add_argument("--compare", type=Path, metavar="FILE")
    parser.add_argument(
        "--launches", nargs="+", metavar="PATTERN", help="ways to launch, such as 'slices 1*' (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="the few small calls that meet every branch")
    parser.add_argument("--list", action="store_true", help="print the names")
    options = parser.parse_intermixed_args()

    def wanted(made: Made) -> bool:
        return chosen(made.name, options.names) and (made.quick or not options.quick)

    if options.list:
        print("\n".join(made.name for made in calls()))
        return Exit.PASS
    if (options.record is None) == (options.compare is None):
        parser.error("give --record FILE or --compare FILE")
    launched = {name: one for name, one in kernels().items() if chosen(name, options.launches or ())}
    if options.record:
        return record(options.record, wanted, launched)
    return compare(options.compare, wanted, launched)


if __name__ == "__main__":
    sys.exit(main())
