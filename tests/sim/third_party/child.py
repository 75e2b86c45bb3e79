# SPDX-License-Identifier: Apache-2.0
"""The process in which cases run: `python -m tests.sim.third_party.child MODULE`, started in the checkout.
Each line of standard input is JSON: `[case, given, left]`."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback

import torch


def main(module: str) -> None:
    # The answers have the pipe to themselves; what the packages print goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    cases = importlib.import_module(f"tests.sim.third_party.{module}")
    for line in sys.stdin:
        case, given, left = json.loads(line)
        tensors = torch.load(given)
        try:
            answer = {"report": str(getattr(cases, case)(**tensors))}
            torch.save(tensors, left)
        except Exception:  # the next case may do better
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
