"""The simulated device: the attributes that host code can query from the CUDA runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gdnbench.sim.errors import UnsupportedError

# Numbers of cudaDeviceAttr (CUDA runtime API, "Data types used by CUDA Runtime").
MULTIPROCESSORS = 16
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

    @property
    def attributes(self) -> Mapping[int, int]:
        """The value of each cudaDeviceAttr number."""
        major, minor = self.capability
        return _COMMON | {MULTIPROCESSORS: self.multiprocessors, 75: major, 76: minor}


DEVICES = {
    "sm_90": Device("H100 SXM", (9, 0), 132),
    "sm_90a": Device("H100 SXM", (9, 0), 132),
    "sm_100": Device("B200", (10, 0), 148),
    "sm_100a": Device("B200", (10, 0), 148),
    "sm_100f": Device("B200", (10, 0), 148),
}


def device_for(target: str) -> Device:
    """The device of a PTX `.target`. Raises UnsupportedError for a target that is not simulated."""
    if target not in DEVICES:
        raise UnsupportedError(f"PTX target {target}; there are {', '.join(DEVICES)}")
    return DEVICES[target]
