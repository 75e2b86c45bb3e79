# SPDX-License-Identifier: Apache-2.0
"""The order in which a copy to the host is queued on CUDA, and what the waiting thread leaves alone."""

from __future__ import annotations

import threading
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from gdnbench.capture import streams
from gdnbench.capture.inflight import PendingRecord
from gdnbench.capture.packing import copy_fill, pack
from gdnbench.capture.transfer import LIMIT_BYTES, Transfers


class FakeStream:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self._log = name, log

    def record_event(self) -> str:
        self._log.append(f"event on {self.name}")
        return f"{self.name}'s event"

    def wait_event(self, event: str) -> None:
        self._log.append(f"{self.name} waits for {event}")

    def __enter__(self) -> None:
        self._log.append(f"enter {self.name}")

    def __exit__(self, *_: object) -> None:
        self._log.append(f"leave {self.name}")


class Memory:
    device, shape, dtype = "cuda:0", (4,), None


def test_a_copy_to_the_host_is_queued_behind_the_callers_stream_on_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    callers, side = FakeStream("caller", log), FakeStream("side", log)

    def copy(memory: object, non_blocking: bool) -> None:
        log.append("copy, not waited for" if non_blocking else "copy")

    def event(blocking: bool) -> Any:
        assert blocking, "whoever waits sleeps"
        return SimpleNamespace(
            record=lambda on: log.append(f"done on {on.name}"), synchronize=lambda: log.append("host waits")
        )

    def empty(*_: object, pin_memory: bool, **__: object) -> Any:
        log.append("pinned" if pin_memory else "pageable")
        return host

    host = SimpleNamespace(copy_=copy)
    cuda = SimpleNamespace(
        current_stream=lambda device: callers, Stream=lambda device: side, Event=event, stream=lambda s: s
    )
    monkeypatch.setattr(streams, "torch", SimpleNamespace(cuda=cuda, empty=empty))
    memory = Memory()
    held = weakref.ref(memory)
    way = streams.CudaStreams().to_host(cast(torch.Tensor, memory))
    del memory
    assert log == ["event on caller"], "what the caller's thread does"
    log.clear()
    for _ in range(2):
        way.begin()
    assert log == [
        "enter side",
        "pinned",
        "side waits for caller's event",
        "copy, not waited for",
        "done on side",
        "leave side",
    ]
    log.clear()
    assert held() is not None, "the side stream may be reading it"
    assert way.arrived() is host
    assert log == ["host waits"]
    assert held() is None


def test_a_bundle_gives_back_every_bit() -> None:
    make = torch.Generator().manual_seed(int(torch.randint(1 << 30, ())))
    words = torch.randint(0, 256, (96,), dtype=torch.uint8, generator=make)
    tensors = {
        str(dtype): words.view(dtype).reshape(2, -1).t()
        for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.uint8)
    }
    tensors |= {"scalar": torch.tensor(7), "empty": torch.empty(0, 3), "flag": torch.tensor([True, False])}
    (bundle,) = pack({name: copy_fill(tensor) for name, tensor in tensors.items()})
    views = bundle.views(bundle.memory.clone())
    for name, tensor in tensors.items():
        assert (views[name].dtype, views[name].shape) == (tensor.dtype, tensor.shape)
        assert views[name].is_contiguous()
        if tensor.numel():
            flat = tensor.contiguous().view(-1).view(torch.uint8)
            assert torch.equal(views[name].view(-1).view(torch.uint8), flat)


class FakeRecord:
    """Arrives when `gate` is open."""

    def __init__(self, nbytes: int) -> None:
        self.device = SimpleNamespace(reserved=nbytes)
        self.gate = threading.Event()
        self.asked = threading.Event()

    def arrive(self) -> None:
        self.asked.set()
        assert self.gate.wait(60)


def put(transfers: Transfers, record: FakeRecord) -> None:
    assert transfers.reserve(record.device.reserved)
    transfers.enqueue(cast(PendingRecord, record))


def test_while_a_graph_is_captured_no_event_is_waited_for() -> None:
    written: list[object] = []
    transfers = Transfers(written.append, pytest.fail, when_full="block")
    first, second = FakeRecord(1), FakeRecord(1)
    put(transfers, first)
    begun = threading.Event()
    capture = threading.Thread(target=lambda: (transfers.begin_quiet(), begun.set()))
    capture.start()
    assert first.asked.wait(60)
    assert not begun.wait(0.05), "the capture begins when nothing is waited for"
    first.gate.set()
    assert begun.wait(60)
    capture.join()
    second.gate.set()
    put(transfers, second)
    assert not second.asked.wait(0.05)
    transfers.end_quiet()
    assert second.asked.wait(60)
    transfers.wait_until_written()
    assert written == [first, second]
    transfers.close()


def test_room_is_waited_for_or_refused_and_outputs_always_have_it() -> None:
    refusing = Transfers(lambda _: None, pytest.fail, when_full="drop")
    assert refusing.reserve(LIMIT_BYTES + 1), "a single record goes alone"
    assert not refusing.reserve(1)
    refusing.reserve_more(5)
    refusing.release(LIMIT_BYTES + 6)
    assert refusing.reserve(1)

    blocking = Transfers(lambda _: None, pytest.fail, when_full="block")
    first = FakeRecord(LIMIT_BYTES)
    put(blocking, first)
    passed = threading.Event()
    waiting = threading.Thread(target=lambda: (blocking.reserve(1), passed.set()))
    waiting.start()
    assert not passed.wait(0.05)
    first.gate.set()
    assert passed.wait(60)
    waiting.join()
    blocking.close()
