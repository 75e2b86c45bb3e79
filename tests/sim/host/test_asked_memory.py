# SPDX-License-Identifier: Apache-2.0
"""Memory that a kernel reaches by an address the program asked for: while the program keeps it."""

from __future__ import annotations

import functools
import gc
import re
from typing import Any

import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
import torch
from cutlass.cute.runtime import from_dlpack, make_fake_stream, make_fake_tensor, make_ptr
from torch import Tensor

from gdnbench import sim
from gdnbench.sim.host.asked_memory import REMEMBERED, AskedMemory
from tests.messages import wording
from tests.sim.host import host_kernels


def pointer(address: int) -> Any:
    return make_ptr(cutlass.Float32, address, cute.AddressSpace.gmem, assumed_align=4)


@functools.cache
def through_pointer() -> Any:
    return sim.compile(host_kernels.through_pointer, pointer(4), make_fake_stream())


@functools.cache
def follow() -> Any:
    addresses = make_fake_tensor(cutlass.Int64, (cute.sym_int(),), (1,))
    return sim.compile(host_kernels.follow, addresses, make_fake_stream())


@functools.cache
def follow_twice() -> Any:
    return sim.compile(host_kernels.follow_twice, pointer(8), make_fake_stream())


@functools.cache
def increment_at_distance() -> Any:
    example = make_fake_tensor(cutlass.Float32, (4096,), (1,), assumed_align=4)
    return sim.compile(host_kernels.increment_at_distance, example, cutlass.Int64(0), make_fake_stream())


def vector() -> Tensor:
    return torch.arange(32.0)


def test_a_pointer_to_a_tensor_whose_address_was_asked_for() -> None:
    data = vector()
    with sim.active():
        through_pointer()(pointer(data.data_ptr()), 0)
    assert torch.equal(data, vector() + 1)


def test_addresses_in_a_tensor() -> None:
    """As a grouped GEMM passes them."""
    data = [vector() for _ in range(3)]
    with sim.active():
        addresses = torch.tensor([each.data_ptr() for each in data])
        follow()(addresses, 0)
        follow()(addresses[1:], 0)
    assert [each[0].item() for each in data] == [1, 2, 2]


@pytest.mark.parametrize("how", ["torch", "numpy"])
def test_a_pointer_to_a_tensor_of_from_dlpack(how: str) -> None:
    data = vector() if how == "torch" else np.arange(32, dtype=np.float32)
    with sim.active():
        tensor = from_dlpack(data)
        through_pointer()(pointer(tensor.data_ptr), 0)
    assert (torch.as_tensor(data) == vector() + 1).all()


def test_reachable_tensors_of_a_block_and_of_those_around_it() -> None:
    first, second = vector(), vector()
    addresses = torch.tensor([first.data_ptr(), second.data_ptr()])
    with sim.active(reachable=[first]):
        with sim.active(reachable=[second]):
            follow()(addresses, 0)
        with pytest.raises(sim.KernelFault, match="out-of-bounds"):
            follow()(addresses, 0)
    assert second[0] == 1
    with pytest.raises(sim.LaunchError, match=wording("sim.reachable-type")), sim.active(reachable=first):  # type: ignore[arg-type]
        pass


def test_an_address_asked_for_outside_is_not_reachable() -> None:
    data = vector()
    at = pointer(data.data_ptr())
    with sim.active(), pytest.raises(sim.KernelFault, match="out-of-bounds"):
        through_pointer()(at, 0)
    assert torch.equal(data, vector())


def test_arguments_of_a_launch_are_not_reachable_for_the_next() -> None:
    """The simulator itself asks for their addresses, which must not hide an access out of bounds."""
    data = vector()
    address = data.data_ptr()
    with sim.active():
        sim.launch(follow(), torch.zeros(1, dtype=torch.int64), reachable=[data], raises=False)
        with pytest.raises(sim.KernelFault, match="out-of-bounds"):
            through_pointer()(pointer(address), 0)


def test_a_tensor_is_reachable_for_launches_that_are_given_its_address() -> None:
    """A program also asks to check alignment: `other` must not hide that `data` is too short."""
    other, data = torch.zeros(4096), torch.zeros(4096)
    with sim.active():
        other.data_ptr()
        data.data_ptr()
        beside = other.data_ptr() - data.data_ptr()
        with pytest.raises(sim.KernelFault, match="out-of-bounds"):
            increment_at_distance()(data, beside // 4, 0)
        sim.launch(increment_at_distance(), data, beside // 4, reachable=[other])
    assert other[:32].eq(1).all()


def test_addresses_behind_an_address() -> None:
    """A pointer to a table of pointers."""
    data = vector()
    with sim.active():
        table = torch.tensor([data.data_ptr()])
        follow_twice()(pointer(table.data_ptr()), 0)
    assert torch.equal(data, vector() + 1)


def test_a_freed_tensor_is_named() -> None:
    with sim.active():
        data = vector()
        at = pointer(data.data_ptr())
        del data
        gc.collect()
        with pytest.raises(
            sim.KernelFault,
            match=wording(
                "sim.machine.freed-allocation",
                name=re.compile(r"the float32\[32\] of data_ptr\(\) at test_asked_memory.py:\d+"),
                size=128,
            ),
        ):
            through_pointer()(at, 0)


def test_a_view_keeps_its_tensor_reachable() -> None:
    data = torch.zeros(64)
    with sim.active():
        at = pointer(data[32:].data_ptr())  # the view itself is gone
        view = data[:1]
        del data
        through_pointer()(at, 0)
        assert view.untyped_storage()[256 - 1] != 0  # the last byte of 1.0
        with pytest.raises(sim.KernelFault, match="out-of-bounds"):
            through_pointer()(at + 1, 0)


def test_nothing_is_kept_alive() -> None:
    import weakref

    with sim.active():
        data = vector()
        data.data_ptr()
        storage = weakref.ref(data.untyped_storage())
        del data
        gc.collect()
        assert storage() is None


def test_only_the_last_freed_are_remembered() -> None:
    class Owner:
        pass

    asked, owner = AskedMemory(), Owner()
    asked.note("kept", 1, 1, owner)
    for address in range(2, 3 * REMEMBERED):
        asked.note("freed", address, 1, Owner())
    assert [region.name for region in asked.live()] == ["kept"]
    assert REMEMBERED <= len(asked.freed()) <= 2 * REMEMBERED
    assert asked.freed()[-1].address == 3 * REMEMBERED - 1
