# SPDX-License-Identifier: Apache-2.0
"""Stores launches with the memory before them, so that they can run again."""

from __future__ import annotations

from dataclasses import dataclass, field

from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.ptx.ir import Module


@dataclass(frozen=True, slots=True)
class Tensor:
    """Memory that the launch may access: its address, and its bytes before the launch. `keeper` owns it."""

    address: int
    name: str
    before: bytes
    keeper: object


@dataclass(frozen=True, slots=True)
class KeptLaunch:
    """One launch, on a device of `multiprocessors` if it is not the usual one. Its parameters contain
    addresses of this process."""

    module: Module
    request: LaunchRequest
    tensors: tuple[Tensor, ...]
    multiprocessors: int | None = None

    def memory(self) -> GlobalMemory:
        """The memory as it was before the launch."""
        memory = GlobalMemory()
        for tensor in self.tensors:
            memory.add(tensor.address, len(tensor.before), tensor.name, tensor.keeper)
        for tensor in self.tensors:
            memory.view(tensor.address, len(tensor.before)).data[:] = tensor.before
        return memory

    def after(self, memory: GlobalMemory) -> tuple[bytes, ...]:
        """The current bytes of the tensors."""
        return tuple(bytes(memory.view(tensor.address, len(tensor.before)).data) for tensor in self.tensors)


@dataclass(slots=True)
class Keeper:
    """Stores every launch that it is called with, in order; for `Settings(before=...)`. They run again on a
    device of `multiprocessors`, if that is given."""

    multiprocessors: int | None = None
    launches: list[KeptLaunch] = field(default_factory=list)

    def __call__(self, module: Module, request: LaunchRequest, memory: GlobalMemory) -> None:
        tensors = tuple(
            Tensor(item.base, item.name, bytes(memory.view(item.base, item.size).data), item.keeper)
            for item in memory.allocations
        )
        self.launches.append(KeptLaunch(module, request, tensors, self.multiprocessors))
