# SPDX-License-Identifier: Apache-2.0
"""The kernel package whose history is made: this checkout's SM100 prefill kernels under another name.

Modules that other kernels share, `gdnbench_kernels.blackwell` among them, are imported and not copied. What
each kernel is compiled from has a module of its own, so that a commit has those kernels compiled anew that it
touches, and no others.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

PACKAGE = "served_kernels"
OPERATION = Path(__file__).parents[3] / "kernels" / "gdnbench_kernels" / "gdn_prefill"
MODULES = (
    "chunk_metadata",
    "chunk_output",
    "chunk_state",
    "chunk_table",
    "chunk_uw",
    "gate_scan",
    "inverse",
    "launch_args",
    "sizes",
    "sm100",
    "sm100_steps",
    "sources",
    "triangle",
)
KERNELS = ("metadata", "uw", "state", "output")
_COPIED = "|".join(MODULES)
_WHOLE = re.compile(
    rf"^( *from) gdnbench_kernels\.gdn_prefill import ((?:{_COPIED})(?:, (?:{_COPIED}))*)$", re.MULTILINE
)
_EXAMPLES = "Examples"

PREFILL = '''"""What the server calls for a prefill, and the steps that it is made of."""

from __future__ import annotations

from dataclasses import replace

from gdnbench_kernels.gdn_prefill.steps import SM100_STEPS
from served_kernels.sm100 import sm100 as prefill

prefill.steps = tuple(
    replace(step, target=f"served_kernels.sm100_steps:{str(step.target).partition(':')[2]}")
    for step in SM100_STEPS
)
'''

DECODE = '''"""What the server calls for a step of decode."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gdnbench_kernels.contract import Step
from gdnbench_kernels.gdn_decode.steps import torch_steps


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    state_indices: Tensor,
    stages: dict[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Updates `state` in place and returns o."""
    made = gates(v, g, beta)
    found = update(q, k, v, state, state_indices, made)
    made["delta_t"] = found.pop("delta_t")
    if stages is not None:
        stages.update(made)
    return found


def gates(v: Tensor, g: Tensor, beta: Tensor) -> dict[str, Tensor]:
    beta = beta.float()
    return {"alpha_t": g.float().exp(), "beta_t": beta}


def update(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, state_indices: Tensor, stages: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    operands = {"q_t": q.float(), "k_t": k.float()}
    return torch_steps.update(
        stages={**stages, **operands}, k=k, v=v, state=state, state_indices=state_indices
    )


decode.steps = (
    Step("gates", (), ("alpha_t", "beta_t"), gates),
    Step("update", ("alpha_t", "beta_t"), ("delta_t", "o", "state"), update),
)
'''


def first_files() -> dict[str, str]:
    """Path and text of every file that the repository begins with."""
    texts = {name: renamed((OPERATION / f"{name}.py").read_text(encoding="utf-8")) for name in MODULES}
    return {
        **{f"{PACKAGE}/{name}.py": text for name, text in {**texts, **_builds(texts["sources"])}.items()},
        f"{PACKAGE}/__init__.py": '"""Gated DeltaNet kernels of a server."""\n',
        f"{PACKAGE}/prefill.py": PREFILL,
        f"{PACKAGE}/decode.py": DECODE,
        "README.md": "# served_kernels\nGated DeltaNet kernels of a server.\n",
    }


def renamed(text: str) -> str:
    """A module's text, its imports of copied modules naming the copies."""
    text = re.sub(rf"\bgdnbench_kernels\.gdn_prefill\.({_COPIED})\b", rf"{PACKAGE}.\1", text)
    return _WHOLE.sub(rf"\1 {PACKAGE} import \2", text)


def _builds(sources: str) -> dict[str, str]:
    """Modules by name: `sources` without what only compiling needs, that, and each kernel's build."""
    lines = sources.splitlines(keepends=True)
    spans = {
        node.name: slice(node.lineno - 1, node.end_lineno)
        for node in ast.parse(sources).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    parts = {name: "".join(lines[span]).strip("\n") + "\n" for name, span in spans.items()}
    taken = [name for name in spans if name == _EXAMPLES or name.startswith("build_")]
    kept = "".join(
        line
        for number, line in enumerate(lines)
        if not any(spans[name].start <= number < spans[name].stop for name in taken)
    )
    for kernel in KERNELS:
        kept = kept.replace(f"{{__name__}}:build_{kernel}", f"{PACKAGE}.build_{kernel}:build_{kernel}")
    head = "from __future__ import annotations\n\nfrom typing import Any\n\n"
    sizes = f"from {PACKAGE}.sizes import CHUNK, HEAD_DIM\n"
    found = {"sources": kept.rstrip("\n") + "\n"}
    found["examples"] = (
        f'"""What kernels are compiled with in the place of tensors."""\n\n{head}{sizes}'
        f"from {PACKAGE}.sources import ALIGN, StateDtype\n\n\n{parts[_EXAMPLES]}"
    )
    for kernel in KERNELS:
        found[f"build_{kernel}"] = (
            f'"""What `chunk_{kernel}` is compiled from."""\n\n{head}{sizes}'
            f"from {PACKAGE}.examples import {_EXAMPLES}\n"
            f"from {PACKAGE}.sources import A_TAPS, AI_TAPS, Build, StateDtype, Tap\n\n\n"
            f"{parts[f'build_{kernel}']}"
        )
    return found
