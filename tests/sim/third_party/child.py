"""The process in which one case runs: `child.py MODULE CASE GIVEN LEFT`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import torch


def main(module: str, case: str, given: str, left: str) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    tensors = torch.load(given)
    report = getattr(importlib.import_module(module), case)(**tensors)
    torch.save(tensors, left)
    print(report)


if __name__ == "__main__":
    main(*sys.argv[1:])
