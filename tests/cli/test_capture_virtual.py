# SPDX-License-Identifier: Apache-2.0
"""`gdnbench capture --virtual`: calls of programs that need a GPU, on a machine without one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gdnbench.store.reader import Store
from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent
from tests.messages import wording
from tests.sim.third_party.apart import TRITON_REQUIREMENTS, WITH_TRITON, need, triton_folder

pytest.importorskip("cuda.bindings.driver", reason="cuda-python has wheels for Linux only")

Invoke = Callable[..., Any]  # the fixture `gdnbench`

# A decode step whose output a kernel of PTX writes: one thread for each number.
PROGRAM = """
import ctypes
import torch
from cuda.bindings import driver
from gdnbench.capture import record
from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent

PTX = b'''
.version 8.8
.target sm_90a
.address_size 64
.visible .entry copy(.param .u64 from, .param .u64 to)
{
  .reg .b32 %r<3>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [from];
  ld.param.u64 %rd2, [to];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd3, %r1, 4;
  add.s64 %rd1, %rd1, %rd3;
  add.s64 %rd2, %rd2, %rd3;
  ld.global.u32 %r2, [%rd1];
  st.global.u32 [%rd2], %r2;
  ret;
}
'''
assert torch.cuda.get_device_properties(0).multi_processor_count == 5
driver.cuInit(0)
_, module = driver.cuModuleLoadData(PTX)
_, kernel = driver.cuModuleGetFunction(module, b"copy")

@record("gdn_decode")
def step(q, k, v, g, beta, state, state_indices, o):
    found = torch_recurrent(q=q, k=k, v=v, g=g, beta=beta, state=state, state_indices=state_indices)["o"]
    pointers = (found.data_ptr(), o.data_ptr()), (ctypes.c_void_p, ctypes.c_void_p)
    driver.cuLaunchKernel(kernel, 1, 1, 1, o.numel(), 1, 1, 0, 0, pointers, 0)

torch.manual_seed(0)
q, k = (torch.nn.functional.normalize(torch.randn(1, 1, 1, 8, device="cuda"), dim=-1) for _ in range(2))
v, g, beta = torch.randn(1, 1, 1, 8), -torch.rand(1, 1, 1), torch.rand(1, 1, 1)
step(q=q, k=k, v=v.cuda(), g=g.cuda(), beta=beta.cuda(), state=torch.zeros(2, 1, 8, 8, device="cuda"),
     state_indices=torch.tensor([[1]], dtype=torch.int32, device="cuda"),
     o=torch.full((1, 1, 1, 8), torch.nan, device="cuda"))
"""


def capture(store: Path, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gdnbench", "capture", store, *words]
    return subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        check=False,
    )


def test_a_call_on_the_virtual_gpu_is_recorded_and_replayed(gdnbench: Invoke, tmp_path: Path) -> None:
    program, path = tmp_path / "program.py", tmp_path / "run.zarr"
    program.write_text(PROGRAM, encoding="utf-8")
    ran = capture(path, "--virtual", "sm_90a", "--sms", 5, "--", sys.executable, program)
    assert ran.returncode == 0, ran.stderr
    assert re.search(wording("capture.simulated", launches=1, plural="", kernels=1), ran.stderr)
    with Store.open(path) as store:
        (record,) = store.records
        assert record.segment.provenance["simulator"] == {
            "machine": "h200",
            "arch": "sm_90a",
            "multiprocessors": 5,
            "engine": "compiled",
            "schedule": "late",
            "mma": "hardware",
        }
        assert not {"gpus", "cuda", "driver"} & record.segment.provenance.keys()
        given = {name: handle.read() for name, handle in record.before.items()}
        assert record.before["q"].meta.device == "cuda:0"
        o = record.after["o"].read()
    given["state"] = torch.zeros(2, 1, 8, 8)
    assert torch.equal(o, torch_recurrent(**given)["o"])
    replayed = gdnbench("replay", path, "--kernel", "torch", "--json")
    assert replayed.code == 0
    (one,) = json.loads(replayed.out)["records"]
    assert one["outcome"] == "pass"


def test_a_number_of_sms_needs_a_virtual_gpu(gdnbench: Invoke, tmp_path: Path) -> None:
    refused = gdnbench("capture", tmp_path / "run.zarr", "--sms", 4, "--", "true")
    assert refused.code == 2
    assert re.search(wording("capture.sms-alone"), refused.err)


@pytest.mark.slow  # a program that imports nothing, and one machine that there is not
def test_what_went_wrong_on_the_virtual_gpu_is_told(tmp_path: Path) -> None:
    ran = capture(tmp_path / "run.zarr", "--virtual", "b200", "--", sys.executable, "-c", "pass")
    assert ran.returncode == 1  # nothing was captured
    assert re.search(wording("sim.virtual.no-process"), ran.stderr)
    ran = capture(tmp_path / "run.zarr", "--virtual", "a100", "--", sys.executable, "-c", "pass")
    assert ran.returncode == 2
    assert re.search(wording("sim.virtual.machine-unknown", name="a100"), ran.stderr)


# A decode step of tensor operations, called once and then captured into a graph, which is replayed twice.
GRAPH = """
import torch
from gdnbench.capture import record

@record("gdn_decode")
def step(q, k, v, g, beta, state, state_indices, o):
    rows = state_indices.flatten().long()
    s = state[rows] * g[:, 0].exp()[..., None, None]
    u = beta[:, 0, :, None] * (v[:, 0] - (s * k[:, 0][:, :, None, :]).sum(-1))
    s = s + u[..., None] * k[:, 0][:, :, None, :]
    state[rows] = s
    o.copy_((8 ** -0.5 * (s * q[:, 0][:, :, None, :]).sum(-1))[:, None])

torch.manual_seed(0)
q, k = (torch.nn.functional.normalize(torch.randn(1, 1, 1, 8), dim=-1).cuda() for _ in range(2))
v, g, beta = torch.randn(1, 1, 1, 8).cuda(), -torch.rand(1, 1, 1).cuda(), torch.rand(1, 1, 1).cuda()
state, o = torch.zeros(2, 1, 8, 8, device="cuda"), torch.full((1, 1, 1, 8), torch.nan, device="cuda")
given = dict(q=q, k=k, v=v, g=g, beta=beta, state=state, o=o)
given["state_indices"] = torch.tensor([[1]], dtype=torch.int32, device="cuda")
step(**given)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step(**given)
for _ in range(2):
    v.copy_(torch.randn(1, 1, 1, 8))
    graph.replay()
"""


@pytest.mark.slow  # a program
def test_replays_of_graphs_are_recorded(gdnbench: Invoke, tmp_path: Path) -> None:
    program, path = tmp_path / "program.py", tmp_path / "run.zarr"
    program.write_text(GRAPH, encoding="utf-8")
    ran = capture(path, "--virtual", "b200", "--", sys.executable, program)
    assert ran.returncode == 0, ran.stderr
    replayed = gdnbench("replay", path, "--kernel", "torch", "--json")
    assert replayed.code == 0, replayed.out
    assert [one["outcome"] for one in json.loads(replayed.out)["records"]] == ["pass"] * 3


FLA = """
import torch
from fla.ops.gated_delta_rule import chunk_gated_delta_rule

torch.manual_seed(0)
q, k = (torch.randn(1, 70, 1, 64, device="cuda") for _ in range(2))
v = torch.randn(1, 70, 1, 64, device="cuda")
g, beta = -torch.rand(1, 70, 1, device="cuda"), torch.rand(1, 70, 1, device="cuda")
q, k, v, beta = (one.bfloat16() for one in (q, k, v, beta))
chunk_gated_delta_rule(q, k, v, g, beta, output_final_state=True, use_qk_l2norm_in_kernel=True)
"""


@pytest.mark.slow  # Triton compiles
def test_flas_kernels_are_recorded_and_replayed(gdnbench: Invoke, tmp_path: Path) -> None:
    need("fla", WITH_TRITON, TRITON_REQUIREMENTS)
    program, path = tmp_path / "program.py", tmp_path / "run.zarr"
    program.write_text(FLA, encoding="utf-8")
    paths = os.pathsep.join(filter(None, (str(triton_folder()), os.environ.get("PYTHONPATH"))))
    ran = capture(path, "--virtual", "sm_100a", "--", sys.executable, program, PYTHONPATH=paths)
    assert ran.returncode == 0, ran.stderr
    recorded = gdnbench("replay", path, "--kernel", "torch", "--against", "recorded", "--json")
    for found in (gdnbench("replay", path, "--kernel", "torch", "--json"), recorded):
        assert found.code == 0, found.out
        (one,) = json.loads(found.out)["records"]
        assert one["outcome"] == "pass"
