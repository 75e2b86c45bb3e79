#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Times the decode kernels of Kimi Delta Attention beside one another and makes a folder of results.

    python scripts/benchmarks/bench_kda_decode.py                       everything
    python scripts/benchmarks/bench_kda_decode.py --kernels cute,fla --groups fp32,bf16 --seconds 5
    python scripts/benchmarks/bench_kda_decode.py --sweep --groups fp32    every plan of the compiled kernel
    python scripts/benchmarks/bench_kda_decode.py --tiny --on cpu --kernels torch,hf

It is bench_gdn_decode.py, which describes options, results and exit status, on calls of kda_decode with Kimi
Linear's 32 heads: raw gates and beta before its sigmoid in bf16, raw q and k. No time is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).parents[2]))

from scripts.benchmarks import bench_gdn_decode


@dataclass(frozen=True, slots=True)
class Shape(bench_gdn_decode.Shape):
    op: ClassVar[str] = "kda_decode"
    forms: ClassVar[Mapping[str, Any]] = {"gate": "raw", "beta_form": "logit", "qk": "raw"}
    most_heads: ClassVar[tuple[int, int]] = (32, 32)
    other_heads: ClassVar[Sequence[tuple[int, int]]] = ((16, 16), (8, 8), (4, 4), (16, 32))
    targets: ClassVar[Mapping[str, Mapping[int, float]]] = {}


if __name__ == "__main__":
    sys.exit(bench_gdn_decode.main(Shape))
