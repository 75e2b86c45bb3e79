# SPDX-License-Identifier: Apache-2.0
"""The simulated device: the attributes that host code can query from the CUDA runtime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from gdnbench.sim.errors import LaunchError, UnsupportedError

# Numbers of cudaDeviceAttr (CUDA runtime API, "Data types used by CUDA Runtime").
MULTIPROCESSORS, L2_BYTES = 16, 38
_COMMON = {
    1: 1024,  # threads per block
    2: 1024,  # block x, y, z
    3: 1024,
    4: 64,
    5: 2**31 - 1,  # grid x, y, z
    6: 65535,
    7: 65535,
    8: 48 << 10,  # shared memory per block without opting in
    10: 32,  # threads per warp
    12: 65536,  # registers per block
    39: 2048,  # threads per multiprocessor
    81: 228 << 10,  # shared memory per multiprocessor
    82: 65536,  # registers per multiprocessor
    95: 1,  # cooperative launch
    97: 227 << 10,  # shared memory per block, opted in
    106: 32,  # blocks per multiprocessor
    111: 1 << 10,  # shared memory per block that the system keeps
    120: 1,  # cluster launch
}


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU's limits (CUDA C++ Programming Guide, "Compute Capabilities", and the product's data sheet)."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    l2_bytes: int

    @property
    def attributes(self) -> Mapping[int, int]:
        """The value of each cudaDeviceAttr number."""
        major, minor = self.capability
        own = {MULTIPROCESSORS: self.multiprocessors, L2_BYTES: self.l2_bytes, 75: major, 76: minor}
        return _COMMON | own

    def blocks_per_multiprocessor(self, threads: int, registers: int, shared_bytes: int) -> int:
        """How many CTAs of a kernel fit one multiprocessor, as cudaOccupancyMaxActiveBlocksPerMultiprocessor
        counts: `registers` a thread, which warps take in units of 256, and `shared_bytes` a CTA, of which the
        system adds 1 KiB."""
        limits = self.attributes
        warps = -(-threads // limits[10])
        warp_registers = -(-registers * limits[10] // 256) * 256
        fits = [
            limits[106],
            limits[39] // (warps * limits[10]),
            limits[81] // (shared_bytes + limits[111]),
        ]
        if warp_registers:
            fits.append(limits[82] // warp_registers // warps)
        return min(fits)

    def active_clusters(self, cluster_size: int) -> int:
        """How many clusters run at once with one CTA on a multiprocessor. A real GPU has somewhat fewer of
        large ones: a cluster lies in one of its processing clusters, which have different sizes."""
        return self.multiprocessors // cluster_size


_H100, _B200 = Device("H100 SXM", (9, 0), 132, 50 << 20), Device("B200", (10, 0), 148, 126 << 20)
# 160 multiprocessors are those of the full chip (NVIDIA, "Inside NVIDIA Blackwell Ultra", 2025); the product
# has 148 (NVIDIA, cudnn-frontend of 2026, `_B300_FIT` of the tests of `choose_split_kv`). The size of its L2
# cache is not published; the B200's is taken.
_B300 = Device("B300", (10, 3), 148, 126 << 20)
DEVICES = {
    **dict.fromkeys(("sm_90", "sm_90a"), _H100),
    **dict.fromkeys(("sm_100", "sm_100a", "sm_100f"), _B200),
    **dict.fromkeys(("sm_103", "sm_103a", "sm_103f"), _B300),
}


@dataclass(slots=True)
class Questions:
    """What a program asked of the device: whether for its number of multiprocessors."""

    multiprocessors: bool = False


@dataclass(frozen=True, slots=True)
class _Setting:
    device: Device | None
    multiprocessors: int | None
    questions: Questions


_setting: ContextVar[_Setting | None] = ContextVar("gdnbench_sim_device", default=None)


@contextmanager
def described_device(
    device: Device | None = None, sms: int | None = None, questions: Questions | None = None
) -> Iterator[None]:
    """Inside this block the simulated device is `device`, with `sms` multiprocessors in place of its own
    number. None leaves what an enclosing block says, or else the device of each kernel's PTX target. What is
    asked of it is noted in `questions`. Raises LaunchError for a number below 1."""
    if sms is not None and (not isinstance(sms, int) or isinstance(sms, bool) or sms < 1):
        raise LaunchError(f"sms {sms!r}; a number of multiprocessors, 1 or more, or None for the device's")
    around = _setting.get()
    if around is not None:
        if sms is None and device is None:
            sms = around.multiprocessors
        device = device or around.device
    token = _setting.set(_Setting(device, sms, questions or Questions()))
    try:
        yield
    finally:
        _setting.reset(token)


def multiprocessors_asked() -> None:
    """Note that the program asks for the number of multiprocessors."""
    if (setting := _setting.get()) is not None:
        setting.questions.multiprocessors = True


def device_of_host_code() -> Device:
    """The device of a function without kernels: what `described_device` names, or a B200."""
    setting = _setting.get()
    if setting is None:
        return _B200
    device = setting.device or _B200
    if setting.multiprocessors is None:
        return device
    return replace(device, multiprocessors=setting.multiprocessors)


def device_for(target: str) -> Device:
    """The device that a kernel of a PTX `.target` runs on. Raises UnsupportedError for a target that is not
    simulated, and for one that does not run on the device that `described_device` names."""
    if target not in DEVICES:
        raise UnsupportedError(f"PTX target {target}; there are {', '.join(DEVICES)}")
    setting = _setting.get()
    if setting is None:
        return DEVICES[target]
    device = setting.device or DEVICES[target]
    if not _runs_on(target, device):
        major, minor = device.capability
        raise UnsupportedError(
            f"a kernel for {target} on {device.name}, which has compute capability {major}.{minor}"
        )
    if setting.multiprocessors is None:
        return device
    return replace(device, multiprocessors=setting.multiprocessors)


def _runs_on(target: str, device: Device) -> bool:
    """Whether PTX of this target runs on the device (PTX ISA, ".target"): with the suffix a on one compute
    capability, with f on later ones of its family, without a suffix on all later ones."""
    capability = DEVICES[target].capability
    if target.endswith("a"):
        return device.capability == capability
    if target.endswith("f") and device.capability[0] != capability[0]:
        return False
    return device.capability >= capability
