# SPDX-License-Identifier: Apache-2.0
"""torch's tensors on the virtual GPU behave as those on CUDA; values are compared with torch's on the CPU."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.virtual import VirtualGpu
from tests.messages import wording

pytestmark = pytest.mark.usefixtures("gpu")

X = torch.arange(24.0).view(4, 6) - 7.5


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x + 1,
        lambda x: x @ x.t(),
        lambda x: x[x > 2],
        lambda x: x.view(2, 12)[:, 1:5].t().contiguous(),
        lambda x: torch.cat([x, x], 1).chunk(3, 1)[1],
        lambda x: x.sort(1, descending=True),
        lambda x: torch.topk(x, 2),
        lambda x: x.softmax(-1).to(torch.bfloat16),
        lambda x: torch.where(x > 0, x, 0.0).cumsum(0),
        lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: x.clone().index_put_((torch.tensor([0, 2], device=x.device),), x.new_zeros(6)),
        lambda x: x.unfold(1, 2, 2).sum(-1),
        lambda x: torch.view_as_real(torch.view_as_complex(x.view(4, 3, 2)) * 1j),
        lambda x: torch.fft.fft(x).conj().imag,
        lambda x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]),
        lambda x: torch.nn.functional.layer_norm(x, (6,)),
        lambda x: torch.linalg.svd(x)[1],
        lambda x: x.nonzero(),
        lambda x: x.unique(),
        lambda x: x.expand(3, 4, 6).sum((0, 1)),
        lambda x: x.to(torch.float8_e4m3fn).float(),
        lambda x: torch.vmap(lambda row: row * row.sum())(x),
        lambda x: torch.func.jacrev(lambda y: (y * y).sum())(x),
    ],
)
def test_operations_have_the_cpus_values(operation: Callable[[Tensor], Any]) -> None:
    found, expected = operation(X.cuda()), operation(X.clone())
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    for on_gpu, on_cpu in pairs:
        assert on_gpu.device == torch.device("cuda", 0)
        assert on_gpu.stride() == on_cpu.stride()
        assert torch.equal(on_gpu.cpu(), on_cpu)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(3, device="cuda"),
        lambda: torch.tensor([1, 2], device="cuda:0"),
        lambda: torch.zeros(3, device=torch.device("cuda")),
        lambda: torch.arange(3, device="cuda"),
        lambda: torch.randperm(3, device="cuda"),
        lambda: torch.randn(3, device="cuda", generator=torch.Generator(device="cuda")),
        lambda: torch.zeros(3).to("cuda", torch.float16, non_blocking=True),
        lambda: torch.zeros(3).cuda(),
        lambda: torch.zeros(3).pin_memory().cuda(non_blocking=True),
        lambda: torch.empty(3, pin_memory=True).to("cuda"),
        lambda: torch.nn.Linear(2, 3).cuda().weight,
        lambda: torch.nn.Linear(2, 3, device="meta").to_empty(device="cuda").bias,
        lambda: torch.ones_like(torch.zeros(2), device="cuda"),
        lambda: copy.deepcopy(torch.zeros(3, device="cuda")),
        lambda: pickle.loads(pickle.dumps(torch.zeros(3, device="cuda"))),
        lambda: torch.from_dlpack(torch.zeros(3, device="cuda")),
        lambda: torch.zeros(3, device="cuda").to("cuda"),
    ],
)
def test_factories_make_tensors_on_cuda(make: Callable[[], Tensor]) -> None:
    made = make()
    assert made.is_cuda
    assert made.device == torch.device("cuda", 0)
    assert made.get_device() == 0
    assert made.data_ptr() % 512 == 0
    assert made.type().startswith("torch.cuda.")
    assert made.__dlpack_device__() == (2, 0)  # kDLCUDA


def test_default_devices() -> None:
    with torch.device("cuda"):
        assert torch.ones(2).is_cuda
    torch.set_default_device("cuda")
    try:
        assert torch.ones(2).is_cuda
    finally:
        torch.set_default_device(None)
    assert not torch.ones(2).is_cuda


def test_views_share_memory() -> None:
    x = torch.zeros(8, device="cuda")
    x.view(2, 4)[1].add_(1)
    x[::2].fill_(5)
    assert x.tolist() == [5, 0, 5, 0, 5, 1, 5, 1]
    assert x[3:].untyped_storage().data_ptr() == x.data_ptr()
    assert x.to("cuda") is x


def test_outputs_that_are_given_are_written_and_grow() -> None:
    x = X.cuda()
    given = torch.empty(4, 4, device="cuda")
    assert torch.mm(x, x.t(), out=given) is given
    grown = torch.empty(0, device="cuda")
    torch.mm(x, x.t(), out=grown)
    assert torch.equal(given.cpu(), X @ X.t())
    assert torch.equal(grown, given)
    grown.resize_(20)
    assert torch.equal(grown[:16].cpu(), (X @ X.t()).flatten())


def test_devices_are_not_mixed() -> None:
    x = X.cuda()
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x + X
    assert torch.equal((x + X[0, 0]).cpu(), X + X[0, 0])  # a scalar may be on the CPU, as on a GPU
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        x.numpy()
    with pytest.raises(RuntimeError, match=wording("sim.virtual.no-such-device", device="cuda:1")):
        torch.empty(2, device="cuda:1")


def test_saved_tensors_are_loaded_where_they_were() -> None:
    file = io.BytesIO()
    torch.save({"x": X.cuda()}, file)
    for where, on_gpu in ((None, True), ("cpu", False), ("cuda", True)):
        file.seek(0)
        loaded = torch.load(file, map_location=where)["x"]
        assert loaded.is_cuda == on_gpu
        assert torch.equal(loaded.cpu(), X)


def test_threads_see_the_device() -> None:
    found: list[Tensor] = []
    thread = threading.Thread(target=lambda: found.append(torch.ones(2, device="cuda") + 1))
    thread.start()
    thread.join()
    assert found[0].is_cuda
    assert found[0].tolist() == [2, 2]


def test_autocast_computes_in_its_type() -> None:
    x = X.cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (x @ x.t()).dtype is torch.bfloat16


def test_live_tensors_are_the_allocations(gpu: VirtualGpu) -> None:
    before = len(gpu.allocations())
    x = torch.zeros(1000, device="cuda")
    part = x[10:20]
    found = {region.address: region.size for region in gpu.allocations()}
    assert found[x.data_ptr()] == 4000
    del x
    assert len(gpu.allocations()) == before + 1  # `part` keeps it
    del part
    assert len(gpu.allocations()) == before


def test_what_has_no_kernel_on_the_cpu_is_refused(gpu: VirtualGpu) -> None:
    name = "aten::_thnn_fused_lstm_cell"
    with pytest.raises(UnsupportedError, match=wording("sim.virtual.no-cpu-kernel", name=name)):
        torch.nn.LSTM(4, 5).cuda()(torch.randn(3, 2, 4, device="cuda"))
    with pytest.raises(UnsupportedError, match=wording("sim.virtual.layout", layout=torch.sparse_coo)):
        torch.eye(3, device="cuda").to_sparse()
    assert len(gpu.refusals) == 2


def test_products_with_a_result_of_another_dtype(gpu: VirtualGpu) -> None:
    """torch documents `out_dtype` for CUDA alone; the sums are those of float32."""
    a, b, c = (torch.arange(12.0).reshape(shape).bfloat16() for shape in ((3, 4), (4, 3), (3, 4)))
    wide = a.float() @ b.float()
    found = torch.mm(a.cuda(), b.cuda(), out_dtype=torch.float32)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.cpu(), wide, rtol=0, atol=0)
    found = torch.addmm(c.cuda(), wide.bfloat16().cuda(), a.cuda(), out_dtype=torch.float32)
    torch.testing.assert_close(found.cpu(), c.float() + wide.bfloat16().float() @ a.float(), rtol=0, atol=0)
