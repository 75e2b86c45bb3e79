# SPDX-License-Identifier: Apache-2.0
"""A call of FlashInfer's `checkpointing_ssu` that writes a checkpoint: 4 tokens behind 14 in a window of 16.

NVRTC has no headers of a host's standard library; those of libcu++ stand for them.
"""

import sys
import tempfile
from pathlib import Path

import torch

from gdnbench import sim
from gdnbench.sim.cuda_source import compile_cuda
from gdnbench.sim.host import PtxKernel
from gdnbench.sim.ptx import parse

KNOWN = ("array", "atomic", "cassert", "climits", "cmath", "cstddef", "cstdint", "cstdlib", "limits", "tuple")
KNOWN += ("algorithm", "type_traits", "utility")
EMPTY = ("exception", "iostream", "sstream", "stdlib.h", "stdint.h", "string.h")
source, packages = map(Path, sys.argv[1:])

with tempfile.TemporaryDirectory() as made:
    for name in (*KNOWN, *EMPTY):
        of_cuda = f"#include <cuda/std/{name}>\nnamespace std {{ using namespace cuda::std; }}\n"
        Path(made, name).write_text(of_cuda if name in KNOWN else "")
    data = packages / "flashinfer/data"
    folders = [made, *(data / one for one in ("include", "cutlass/include", "cccl/libcudacxx/include"))]
    program = compile_cuda(source.read_text(), include=folders, std="c++20", default_device=True)

torch.manual_seed(0)
state = torch.randn(2, 64, 128).half()
x, old_x, B, old_B, C = (
    torch.randn(shape).bfloat16() for shape in ((4, 2, 64), (16, 2, 64), (4, 128), (2, 16, 128), (4, 128))
)
dt, old_dt, A = torch.rand(4, 2), torch.rand(2, 2, 16), -torch.rand(2)
decay = (A[None, :, None] * old_dt).cumsum(-1)
out = torch.full((4, 2, 64), torch.nan).bfloat16()
buffer, accepted = torch.tensor([0], dtype=torch.int32), torch.tensor([14], dtype=torch.int32)
kernel = PtxKernel(parse(program.ptx), "step", (1, 1, 2), (32, 4, 1), shared_bytes=100_000)
report = sim.launch(
    kernel,
    state,
    x,
    dt,
    A,
    B,
    C,
    out,
    old_x,
    old_B,
    old_dt,
    decay,
    buffer,
    accepted,
    check=True,
    raises=False,
)
print(report)
sys.exit(any(finding.fails for finding in report.findings))
