# SPDX-License-Identifier: Apache-2.0
"""A package of kernels of its own: sm100 with an inverse that stops too early."""

from __future__ import annotations

from pathlib import Path

import gdnbench_kernels.gdn_prefill as prefill

FILES = ("inverse", "chunk_uw", "sources", "launch_args", "sm100", "sm100_steps")
RIGHT, WRONG = (
    "range_constexpr(BLOCK - 1):\n        for quad",
    "range_constexpr(BLOCK - 5):\n        for quad",
)
"""Of the substitution of a 16 x 16 block: all of its columns, and all but the last four."""


def plant(folder: Path, package: str = "planted") -> str:
    """Writes the package below `folder` and returns the name of its kernel."""
    there = folder / package
    there.mkdir()
    (there / "__init__.py").write_text('"""sm100 with a fault."""\n')
    for name in FILES:
        text = (Path(prefill.__file__).parent / f"{name}.py").read_text()
        for other in FILES:
            text = text.replace(f"gdnbench_kernels.gdn_prefill.{other} ", f"{package}.{other} ")
        text = text.replace(
            "from gdnbench_kernels.gdn_prefill import inverse, triangle",
            f"from {package} import inverse\nfrom gdnbench_kernels.gdn_prefill import triangle",
        )
        if name == "inverse":
            assert text.count(RIGHT) == 1
            text = text.replace(RIGHT, WRONG)
        if name == "sources":  # the others are those that are compiled already
            names = "metadata_source, output_source, state_source"
            text += f"\n\nfrom gdnbench_kernels.gdn_prefill.sources import {names}\n"
        (there / f"{name}.py").write_text(text)
    (there / "kernel.py").write_text(
        f"""from dataclasses import replace

from gdnbench_kernels.gdn_prefill.steps import SM100_STEPS
from {package}.sm100 import sm100

sm100.conventions = {{"offsets": "int32"}}
sm100.steps = tuple(
    replace(step, target=step.target.replace("gdnbench_kernels.gdn_prefill", "{package}"))
    for step in SM100_STEPS
)
"""
    )
    return f"{package}.kernel:sm100"
