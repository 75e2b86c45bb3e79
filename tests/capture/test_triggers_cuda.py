# SPDX-License-Identifier: Apache-2.0
"""On a GPU: a trigger is asked of the device by the call's own stream, and no one waits for the answer but a
thread of ours; what it does not hold for never leaves the device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gdnbench.capture import CaptureOptions, capturing
from gdnbench.capture.nonfinite import _extremes, _odd
from gdnbench.capture.streams import CudaHostCopy
from gdnbench.ops import operation
from gdnbench.store.reader import Store
from tests.capture.test_cuda import Buffers, no_wait

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

NAN_AT, STEPS = 4, 7


@pytest.mark.parametrize("way", ["eager", "graph"])
def test_a_nan_is_found_without_a_wait_and_kept_with_what_was_before(tmp_path: Path, way: str) -> None:
    buffers, graph = Buffers(), torch.cuda.CUDAGraph()
    seen: list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]] = []
    options = CaptureOptions(on_nonfinite=True, around=2, first=1)
    with capturing(tmp_path / "run.zarr", options) as counts:
        run = buffers.forward
        if way == "graph":
            with torch.cuda.graph(graph):
                buffers.forward()
            run = graph.replay
        for at in range(STEPS):
            buffers.next_step()
            if at == NAN_AT:
                buffers.x[3, 0, 1, 7] = torch.nan
            buffers.spied(seen)
            torch.cuda.synchronize()
            if at == 0:
                run()  # makes streams and pinned memory
                continue
            torch.cuda._sleep(200_000_000)  # so that whoever waits for the device waits for this
            with no_wait():
                run()
            assert not torch.cuda.current_stream().query()
    assert (counts.failures, counts.first_failure) == (0, None)
    assert (counts.looked_at, counts.triggered) == (STEPS, 1)
    found = list(Store.open(tmp_path / "run.zarr").records)
    assert [one.info.step for one in found] == [2, 3, 4, 5, 6]
    reasons = [one.info.dispatch["trigger"].partition(":")[0] for one in found]
    assert reasons == ["around", "around", "nonfinite", "around", "around"]
    for one in found:
        before, after = seen[one.info.step]
        for handles, tensors in ((one.before, before), (one.after, after)):
            for name, tensor in tensors.items():
                assert torch.equal(handles[name].read(), tensor.cpu()) or (
                    torch.equal(handles[name].read().nan_to_num(7.0), tensor.cpu().nan_to_num(7.0))
                ), (one.info.step, name)


def test_what_is_finite_stays_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    begin = CudaHostCopy.begin

    def spied_begin(way: CudaHostCopy) -> None:
        if way._host is None and way._memory is not None:
            sent.append(way._memory.nbytes)
        begin(way)

    monkeypatch.setattr(CudaHostCopy, "begin", spied_begin)
    buffers = Buffers()
    with capturing(tmp_path / "run.zarr", CaptureOptions(on_nonfinite=True, around=3)) as counts:
        for _ in range(5):
            buffers.next_step()
            buffers.forward()
    assert (counts.failures, counts.looked_at, counts.triggered) == (0, 5, 0)
    # The least and the largest of q, k, v, g, beta and state, and of o and state.
    assert sorted(sent) == [2 * 16] * 5 + [6 * 16] * 5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn])
def test_a_nan_anywhere_is_both_the_least_and_the_largest(dtype: torch.dtype) -> None:
    o = operation("gdn_decode").spec("o")
    for size in (1, 33, 1025, 1 << 20):
        for place in {0, size // 2, size - 1}:
            data = torch.zeros(size, device="cuda").to(dtype)
            assert not _odd(o, *_extremes(data).tolist())
            words = data.view(torch.uint8)
            words[place * dtype.itemsize : (place + 1) * dtype.itemsize] = (
                0x7F if dtype.itemsize == 1 else 0xFF
            )
            assert _odd(o, *_extremes(data).tolist())
