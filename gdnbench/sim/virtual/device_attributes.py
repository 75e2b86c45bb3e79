# SPDX-License-Identifier: Apache-2.0
"""The attributes of the virtual GPU that a program can ask for by number."""

from __future__ import annotations

from gdnbench.sim.host.device import MULTIPROCESSORS
from gdnbench.sim.virtual.gpu import VirtualGpu
from gdnbench.sim.virtual.refusals import refusal

# cudaDeviceAttr and CUdevice_attribute have the same numbers.
_MORE_ATTRIBUTES = {
    9: 64 << 10,  # constant memory
    11: 2**31 - 1,  # pitch of copies
    13: 1_965_000,  # clock, kHz
    14: 512,  # alignment of textures
    15: 1,  # copies while a kernel runs
    17: 0,  # no run-time limit on kernels
    18: 0,  # not integrated
    19: 1,  # memory of the host can be mapped
    20: 0,  # compute mode: default
    31: 1,  # concurrent kernels
    32: 1,  # error-correcting memory
    33: 0,  # PCI bus, device
    34: 0,
    35: 0,  # no TCC driver
    36: 3_996_000,  # memory clock, kHz
    37: 8192,  # bits of the memory bus
    40: 3,  # copy engines
    41: 1,  # unified addressing
    50: 0,  # PCI domain
    69: 1 << 28,  # texels of a 1D texture in linear memory
    78: 1,  # stream priorities
    79: 1,  # global, local memory in L1
    80: 1,
    83: 1,  # managed memory
    84: 0,  # no board of several GPUs
    85: 0,
    87: 2,  # fp32 performance over fp64
    88: 0,  # no access to pageable memory
    89: 1,  # managed memory while a kernel runs
    90: 1,  # preemption
    91: 1,  # registered memory at the host's address
    96: 0,  # no launches on several devices
    99: 1,  # registration of the host's memory
    100: 0,  # no page tables of the host
    101: 0,
    102: 0,  # no virtual memory management, nor handles of memory to export
    103: 0,
    104: 0,
    105: 0,
    107: 0,  # no compressible memory
    110: 0,  # no GPUDirect RDMA
    112: 0,  # no sparse arrays
    115: 1,  # memory pools
    116: 0,
    119: 0,  # pools are not shared by processes
    124: 0,  # no dma_buf, IPC events
    125: 0,
    127: 1,  # tensor maps
    128: 0,
    129: 0,  # no unified function pointers
    132: 0,  # no multicast
    133: 0,  # no MPS
    142: 0,  # no pools of the host's memory
    144: 0,
}


def device_attribute(gpu: VirtualGpu, number: int) -> int:
    """A device attribute by its number, which both APIs share. Raises UnsupportedError for an unknown one."""
    device = gpu.asked_device() if number == MULTIPROCESSORS else gpu.device
    known = {**_MORE_ATTRIBUTES, **device.attributes}
    if number not in known:
        raise refusal(f"a program that asks for device attribute {number}")
    return known[number]
