# SPDX-License-Identifier: Apache-2.0
"""What kernels ask of the GPU while they are compiled and launched: the simulated device answers."""

from __future__ import annotations

import ctypes
from typing import Any

import cutlass
import pytest
import torch
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
from cutlass.utils import HardwareInfo

from gdnbench import sim
from gdnbench.sim.host.device import device_for
from gdnbench.sim.host.runtime import Runtime
from tests.messages import wording
from tests.sim.host import host_kernels


def example() -> Any:
    return make_fake_tensor(cutlass.Float32, (32,), (1,), assumed_align=4)


@pytest.mark.parametrize(("sms", "ctas"), [(None, 148), (3, 3)])
def test_a_persistent_kernel_sees_the_multiprocessors(sms: int | None, ctas: int) -> None:
    data = torch.zeros(32)
    with sim.active(sms=sms, check=False) as session:
        compiled = sim.compile(host_kernels.persistent, example(), make_fake_stream())
        compiled(data, 0)
    assert session.reports[0].launches[0].grid == (ctas, 1, 1)


def test_an_inner_block_has_the_multiprocessors_of_the_one_around_it() -> None:
    with sim.active(sms=4):
        with sim.active():
            assert HardwareInfo().get_device_multiprocessor_count() == 4
        with sim.active(sms=1):
            assert HardwareInfo().get_max_active_clusters(1) == 1
        assert HardwareInfo().get_device_multiprocessor_count() == 4
        assert HardwareInfo().get_max_active_clusters(2) == 2


# NVIDIA's data sheets: 148 multiprocessors and 126 MB of L2 cache in a B200, 132 and 50 MB in an H100 SXM.
@pytest.mark.parametrize(("arch", "sms", "cache"), [("sm_100a", 148, 126), ("sm_90a", 132, 50)])
def test_hardware_info(arch: str, sms: int, cache: int) -> None:
    with sim.keep_ptx(arch):
        info = HardwareInfo()
        assert info.get_device_multiprocessor_count() == sms
        assert info.get_max_active_clusters(1) == sms
        assert info.get_l2_cache_size_in_bytes() == cache << 20


def test_hardware_that_there_is_not() -> None:
    with sim.keep_ptx():
        with pytest.raises(sim.LaunchError, match="device 0"):
            HardwareInfo(1)
        with pytest.raises(sim.LaunchError, match=wording("sim.host.cluster-size", size=33)):
            HardwareInfo().get_max_active_clusters(33)


def test_min_blocks_per_mp_compiles() -> None:
    """The compiler asks for the shared memory of a multiprocessor, to share it among the blocks."""
    data = torch.arange(32.0)
    compiled = sim.compile(host_kernels.two_blocks_per_multiprocessor, example(), make_fake_stream())
    assert ".minnctapersm 2" in compiled.artifacts.PTX
    sim.launch(compiled, data)
    assert torch.equal(data, torch.arange(32.0).flip(0))


def test_an_attribute_that_the_device_lacks_is_named() -> None:
    from cutlass.base_dsl.runtime import cuda

    with sim.keep_ptx():
        assert cuda.get_device_attribute(16) == 148
        with pytest.raises(sim.UnsupportedError, match=wording("sim.host.compile-attribute", attribute=999)):
            cuda.get_device_attribute(999)


@pytest.mark.parametrize("sms", [0, -1, True, 1.5, "4"])
def test_a_number_of_multiprocessors_that_cannot_be(sms: Any) -> None:
    with pytest.raises(sim.LaunchError, match=wording("sim.host.sms", sms=sms)), sim.active(sms=sms):
        pass


def test_host_code_asks_for_the_multiprocessors_of_the_block() -> None:
    """cudaDevAttrMultiProcessorCount is 16."""
    out = ctypes.c_int32()
    with sim.active(sms=7):
        device = device_for("sm_100a")
    assert Runtime("", device, lambda _: []).device_attribute(ctypes.addressof(out), 16, 0) == 0
    assert out.value == 7
    assert device_for("sm_100a").multiprocessors == 148


# Each line by the limits of compute capability 10.0 in the CUDA programming guide: 32 blocks, 2048 threads,
# 65536 registers in units of 256 a warp, 228 KiB of shared memory of which each block costs 1 KiB more.
@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks"),
    [
        (32, 16, 0, 32),
        (1024, 16, 0, 2),
        (1000, 16, 0, 2),
        (256, 128, 0, 2),
        (256, 129, 0, 1),
        (128, 16, 227 << 10, 1),
        (128, 16, 56 << 10, 4),
        (128, 16, (56 << 10) + 1, 3),
    ],
)
def test_occupancy(threads: int, registers: int, shared: int, blocks: int) -> None:
    assert device_for("sm_100a").blocks_per_multiprocessor(threads, registers, shared) == blocks
