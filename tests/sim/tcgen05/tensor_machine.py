# SPDX-License-Identifier: Apache-2.0
"""One CTA, or a pair, without an engine: instructions are written as PTX, operands given by register name."""

from __future__ import annotations

import re
from functools import cache

import numpy as np

from gdnbench.sim.machine import mbarrier
from gdnbench.sim.machine.async_queue import Schedule
from gdnbench.sim.machine.cluster import Cluster, ClusterGrid
from gdnbench.sim.machine.cta import Cta, Launch, MachineConfig
from gdnbench.sim.machine.engine_interface import LANES, SHARED_BASE, Wait
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.machine.units import handler
from gdnbench.sim.ptx.ir import Address, Immediate, Instruction, Module, Register, Vector
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.tensorcore import reference

ALL = np.ones(LANES, bool)
ONE = np.arange(LANES) == 0
BARRIER = SHARED_BASE


@cache
def module_of(text: str) -> Module:
    """A kernel of one instruction. Registers named p* are predicates, d* have 64 bits, all others 32. Only
    the B300's target, sm_103a, has tcgen05.ld.red."""
    target = "sm_103a" if "tcgen05.ld.red" in text else "sm_100a"
    widths = {"p": ".pred", "d": ".b64"}
    registers = "".join(
        f".reg {widths.get(name[1], '.b32')} {name}; " for name in sorted(set(re.findall(r"%\w+", text)))
    )
    return parse(
        f".version 8.8\n.target {target}\n.address_size 64\n.entry k() {{\n{registers}\n{text}\nret;\n}}\n"
    )


def instruction(text: str) -> Instruction:
    return module_of(text).kernels["k"].instructions[0]


class Machine:
    """A CTA with four warps and a little shorthand for what every test does."""

    def __init__(
        self, shared: int = 200 * 1024, schedule: str = "late", mma: str = "hardware", track: bool = True
    ) -> None:
        module = module_of("tcgen05.wait::ld.sync.aligned;")
        config = MachineConfig(
            Schedule.parse(schedule), mma, reference.multiply, reference.multiply_scaled, track=track
        )
        grid, clusters = self.shape()
        self.launch = Launch(
            module,
            module.kernels["k"],
            grid,
            (128, 1, 1),
            b"",
            GlobalMemory(),
            config,
            0,
            shared,
            shared,
            handler,
            clusters=clusters,
        )
        self.use(self.made())

    def shape(self) -> tuple[tuple[int, int, int], ClusterGrid | None]:
        """The grid, and its clusters."""
        return (1, 1, 1), None

    def made(self) -> Cta:
        return Cta(self.launch, 0)

    def use(self, cta: Cta) -> None:
        """The instructions that follow are this CTA's."""
        self.cta = cta
        self.warps = [cta.warp(index) for index in range(4)]

    def issue(
        self, text: str, *, warp: int = 0, lanes: np.ndarray = ALL, previous: Wait | None = None,
        **values: object,
    ) -> object:  # fmt: skip
        """Execute one instruction; `values` are the registers' contents, one number or 32."""
        ins = instruction(text)

        def operand(source: object) -> object:
            match source:
                case Register(name=name):
                    return np.broadcast_to(np.asarray(values[name[1:]], np.uint64), LANES).copy()
                case Immediate(bits=bits):
                    return np.full(LANES, bits, np.uint64)
                case Address(base=base, offset=offset):
                    return operand(base) + np.uint64(offset)
                case Vector(elements=elements):
                    return tuple(operand(element) for element in elements)
            raise AssertionError(source)

        return self.cta.issue(
            self.warps[warp], ins, lanes.copy(), tuple(operand(source) for source in ins.sources), previous
        )

    def alloc(self, columns: int, slot: int = SHARED_BASE + 8) -> int:
        result = self.issue(
            f"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r], {columns};", r=slot
        )
        assert not isinstance(result, Wait)
        return int(self.cta.shared.view(slot, 4).view(np.uint32)[0])

    def dealloc(self, address: int, columns: int) -> None:
        text = f"tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r, {columns};"
        wait = self.issue(text, r=address)
        if isinstance(wait, Wait):
            self.issue(text, r=address, previous=wait)

    def load(
        self, shape: str, repeat: int, address: int, *, warp: int = 0, tail: str = "", mods: str = ""
    ) -> np.ndarray:
        """tcgen05.ld -> uint32[32 threads, registers]."""
        count = {"16x128b": 2, "16x256b": 4}.get(shape, 1) * repeat
        registers = ",".join(f"%o{i}" for i in range(count))
        text = f"tcgen05.ld.sync.aligned.{shape}.x{repeat}{mods}.b32 {{{registers}}}, [%r]{tail};"
        rows = self.issue(text, warp=warp, r=address)
        self.issue("tcgen05.wait::ld.sync.aligned;", warp=warp)
        return np.array(rows).astype(np.uint32).T

    def store(
        self, shape: str, repeat: int, address: int, data: np.ndarray, *, warp: int = 0, tail: str = "",
        mods: str = "", wait: bool = True,
    ) -> None:  # fmt: skip
        """tcgen05.st of uint32[32 threads, registers]."""
        names = [f"o{i}" for i in range(data.shape[1])]
        registers = ",".join(f"%{name}" for name in names)
        text = f"tcgen05.st.sync.aligned.{shape}.x{repeat}{mods}.b32 [%r]{tail}, {{{registers}}};"
        self.issue(text, warp=warp, r=address, **dict(zip(names, data.T, strict=True)))
        if wait:
            self.issue("tcgen05.wait::st.sync.aligned;", warp=warp)

    def write(self, address: int, data: np.ndarray) -> None:
        """Bytes into shared memory, as plain stores would."""
        flat = np.ascontiguousarray(data).view(np.uint8).ravel()
        self.cta.shared.view(address, flat.size)[:] = flat
        self.cta.shared.written(address, flat.size)

    def mma(
        self, kind: str, d: int, a: int, b: int, idesc: int, *, a_in_tmem: bool = False,
        accumulate: bool = False, disable: tuple[int, ...] = (), scale: int | None = None,
        lanes: np.ndarray = ONE, ctas: int = 1,
    ) -> None:  # fmt: skip
        mask = f"{{{','.join(f'%m{i}' for i in range(len(disable)))}}}, " if disable else ""
        tail = "" if scale is None else f", {scale}"
        source = "[%a]" if a_in_tmem else "%da"
        text = f"tcgen05.mma.cta_group::{ctas}.kind::{kind} [%r], {source}, %db, %i, {mask}%p{tail};"
        masks = {f"m{i}": word for i, word in enumerate(disable)}
        operand = {"a": a} if a_in_tmem else {"da": a}
        self.issue(text, lanes=lanes, r=d, db=b, i=idesc, p=int(accumulate), **operand, **masks)

    def finish(self, ctas: int = 1) -> None:
        """tcgen05.commit to a fresh mbarrier, and wait for it."""
        barrier = self.cta.shared.origin + BARRIER
        mbarrier.init(self.cta.shared, barrier, 1)
        self.issue(
            f"tcgen05.commit.cta_group::{ctas}.mbarrier::arrive::one.shared::cluster.b64 [%r];",
            lanes=ONE,
            r=barrier,
        )
        while not mbarrier.is_complete(self.cta.shared, barrier, 0):
            assert self.cta.advance_signal(barrier)
        mbarrier.inval(self.cta.shared, barrier)


class Pair(Machine):
    """Two CTAs of a cluster; `of` says which one executes."""

    def shape(self) -> tuple[tuple[int, int, int], ClusterGrid | None]:
        return (2, 1, 1), ClusterGrid((2, 1, 1), (2, 1, 1))

    def made(self) -> Cta:
        clusters = self.launch.clusters
        assert clusters is not None
        cluster = Cluster(clusters.cluster_of(0), self.launch.warps, self.launch.shared_size)
        self.ctas = [Cta(self.launch, rank, cluster, rank) for rank in range(2)]
        for cta in self.ctas:
            cta.members = self.ctas
        return self.ctas[0]

    def of(self, rank: int) -> Pair:
        self.use(self.ctas[rank])
        return self

    def together(self, text: str, *values: dict[str, int]) -> list[object]:
        """Both CTAs execute an instruction, CTA 0 first; `values` are their registers."""
        first = self.of(0).issue(text, **values[0])
        second = self.of(1).issue(text, **values[-1])
        if isinstance(first, Wait) and first.over():
            first = self.of(0).issue(text, previous=first, **values[0])
        return [first, second]

    def alloc_both(self, columns: int, slot: int = SHARED_BASE + 8) -> list[int]:
        """The address that each CTA gets."""
        text = f"tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r], {columns};"
        slots = [cta.shared.origin + slot for cta in self.ctas]
        results = self.together(text, *({"r": at} for at in slots))
        assert not any(isinstance(result, Wait) for result in results)
        return [
            int(cta.shared.view(at, 4).view(np.uint32)[0]) for cta, at in zip(self.ctas, slots, strict=True)
        ]
