# SPDX-License-Identifier: Apache-2.0
"""Findings of the checker as delays that a GPU can make: CUTracer's configuration for a replay.

CUTracer (github.com/facebookresearch/CUTracer, 2026-04-30: `delay_config.schema.json` and
`src/delay_inject_config.cu`) waits in front of machine instructions that its configuration names by their
address in the kernel. It knows a kernel by a checksum of its name and machine code (`compute_kernel_checksum`
in `src/cutracer.cu`).

The two accesses of a race are both delayed: CUTracer draws how long, up to the delay, for each thread and
execution, so that both orders occur. Where the right order is known, one access alone is late. Tensor
memory is allocated before all uses and freed after them: there the allocation is delayed, and of a pair with
tcgen05.dealloc the other access. Where only a fence or a wait is missing, the first access is delayed, so
that the second one follows it as soon as the synchronisation lets it. Delays of errors are on; those of
findings for review are written, but off.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gdnbench.sim.checker.evidence import Access, Evidence
from gdnbench.sim.checker.happens_before import Cause
from gdnbench.sim.errors import InputError
from gdnbench.sim.finding import Finding, Severity
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.predict.addresses import AddressedInstruction, addresses, need_tools
from gdnbench.sim.predict.machine_code import arch_of
from gdnbench.sim.ptx.ir import Kernel, Module

__all__ = ["Launched", "configuration", "delays_for", "need_tools", "patterns", "read_dump"]

VERSION = "1.0"
DELAY = 10_000
"""Nanoseconds, as in CUTracer's documentation; 15,000 to 20,000 cycles, many times what a warp falls behind
another one by itself."""
OPCODES: Mapping[str, tuple[str, ...]] = {
    "ld": ("LD", "LDG", "LDS"),
    "st": ("ST", "STG", "STS"),
    "atom": ("ATOM", "ATOMG", "ATOMS"),
    "red": ("RED", "REDG", "ATOMS", "ATOMG"),
    "ldmatrix": ("LDSM",),
    "stmatrix": ("STSM",),
    "cp.async": ("LDGSTS",),
    "cp.async.bulk": ("UBLKCP", "UBLKRED", "UTMALDG", "UTMASTG", "UTMAREDG"),
    "mbarrier": ("SYNCS",),
    "wgmma.mma_async": ("HGMMA", "QGMMA", "IGMMA", "BGMMA"),
    "tcgen05.ld": ("LDTM",),
    "tcgen05.st": ("STTM",),
    "tcgen05.mma": ("UTCHMMA", "UTCQMMA", "UTCIMMA", "UTCOMMA", "UTCMXQMMA"),
    "tcgen05.cp": ("UTCCP",),
    "tcgen05.alloc": ("UTCATOMSWS",),
    "tcgen05.dealloc": ("UTCATOMSWS",),
}
"""What ptxas makes of an access, by how its opcode in PTX begins."""
LAST, FIRST = "tcgen05.dealloc", "tcgen05.alloc"

RACES = [cause.value for cause in (Cause.RACE, Cause.CTAS, Cause.CLUSTER, Cause.LAUNCHES)]

Modules = dict[str, list[Module]]


@dataclass(slots=True)
class Launched:
    """The modules of the launches that it was called with, for `Settings(before=...)`, by kernel. `dump` is
    what CUTracer wrote of them on a GPU (`read_dump`), None if that is not known."""

    dump: Mapping[str, Any] | None = None
    modules: Modules = field(default_factory=dict)

    def __call__(self, module: Module, request: LaunchRequest, memory: GlobalMemory) -> None:
        known = self.modules.setdefault(request.entry, [])
        if not any(module.text == one.text for one in known):
            known.append(module)

    def kernel_with(self, name: str, access: Access) -> tuple[Module, Kernel, int]:
        """The kernel with an access, and the pc of its instruction there. Raises InputError for a kernel that
        was not launched."""
        for module in self.modules.get(name, ()):
            kernel = module.kernels[name]
            for ins in kernel.instructions:
                same = " ".join(ins.place.text.split()) == " ".join(access.place.text.split())
                if ins.place.line == access.place.line and same:
                    return module, kernel, ins.pc
        raise InputError(f"{name} with {access.place} was not launched here: check and delay in one run")


@dataclass(slots=True)
class KernelDelays:
    """A kernel's machine code, the instructions of it to delay by their address, and which of them are on."""

    name: str
    code: tuple[AddressedInstruction, ...]
    points: dict[int, AddressedInstruction] = field(default_factory=dict)
    on: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Delays:
    """The kernels with delays, how many findings have one, and how many others have none, by their kind and
    the reason."""

    kernels: list[KernelDelays] = field(default_factory=list)
    delayed: int = 0
    without: Counter[str] = field(default_factory=Counter)


def late_access(evidence: Evidence) -> Access | str:
    """The access to delay, or why no delay shows the finding."""
    first, second = evidence.first, evidence.second
    if second is None:
        return "it is about no access"
    if first is None:
        return "it is about one access, which is wrong in any order"
    if not first.kernel and all(before == after for before, after in evidence.warps):
        return "both accesses are of one warp, which a delay holds up together"
    if first.does.startswith(LAST):
        return second
    return first


def other_access(evidence: Evidence, late: Access) -> list[Access]:
    """The other access of a race, whose order the program's text does not say."""
    sides = [side for side in (evidence.first, evidence.second) if side is not None]
    known = any(side.does.startswith((FIRST, LAST)) for side in sides)
    return [] if known or evidence.cause not in RACES else [side for side in sides if side is not late]


def delays_for(findings: Iterable[Finding], launched: Launched, machine: str | None) -> Delays:
    """The delays for the findings of the checker that nobody accepted, as `machine` would run the kernels,
    without one the GPU that they are compiled for.
    Raises UnsupportedError without ptxas and nvdisasm."""
    found = Delays()
    by_kernel: dict[tuple[str, str], KernelDelays] = {}
    for finding in findings:
        evidence = finding.evidence
        if evidence is None or finding.accepted is not None:
            continue
        late = late_access(evidence)
        if isinstance(late, str):
            found.without[f"{finding.kind}: {late}"] += 1
            continue
        for access in (late, *other_access(evidence, late)):
            module, kernel, pc = launched.kernel_with(access.kernel or evidence.kernel, access)
            key = module.text, kernel.name
            if key not in by_kernel:
                arch = module.target if machine is None else arch_of(module, machine)
                by_kernel[key] = KernelDelays(kernel.name, addresses(module, kernel, arch))
            points = points_of(by_kernel[key].code, pc, access.does)
            by_kernel[key].points |= {one.address: one for one in points}
            if finding.severity is Severity.ERROR:
                by_kernel[key].on |= {one.address for one in points}
            if access is not late:
                continue
            if points:
                found.delayed += 1
            else:
                found.without[f"{finding.kind}: ptxas makes no instruction of its own of {late.place}"] += 1
    found.kernels = [one for one in by_kernel.values() if one.points]
    return found


def points_of(code: Sequence[AddressedInstruction], pc: int, does: str) -> list[AddressedInstruction]:
    """The machine instructions that do what the PTX instruction at `pc` `does`."""
    ptx = does.split()[0]
    known = [prefix for prefix in OPCODES if ptx == prefix or ptx.startswith(f"{prefix}.")]
    opcodes = OPCODES[max(known, key=len)] if known else ()
    return [one for one in code if one.pc == pc and one.opcode.partition(".")[0] in opcodes]


def checksum(name: str, code: Iterable[AddressedInstruction]) -> str:
    """FNV-1a with 64 bits of the name, and of each instruction's text and address, in hexadecimal digits. It
    is CUTracer's own where NVBit prints instructions as nvdisasm does."""
    value = 14695981039346656037

    def add(number: int) -> None:
        nonlocal value
        value = (value ^ number) * 1099511628211 % 2**64

    for char in name.encode():
        add(char)
    for one in code:
        for char in f"{one.text} ;".encode():
            add(char)
        add(one.address)
    return f"{value:x}"


def configuration(delays: Delays, dump: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The delays as CUTracer reads them. With `dump`, what CUTracer wrote of a run on the GPU, kernels have
    the name and the checksum that it gives to the kernel with the same instructions. Raises InputError if it
    has no such kernel."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
    kernels = {}
    for one in delays.kernels:
        name, digest = one.name, checksum(one.name, one.code)
        if dump is not None:
            name, digest = _in_dump(one, dump)
        kernels[f"{name}_{digest}"] = {
            "kernel_name": name,
            "kernel_checksum": digest,
            "timestamp": now,
            "instrumentation_points": {
                str(address): {
                    "pc": address,
                    "sass": f"{point.text} ;",
                    "delay": DELAY,
                    "on": address in one.on,
                }
                for address, point in sorted(one.points.items())
            },
        }
    return {"version": VERSION, "delay_ns": DELAY, "kernels": kernels}


def _in_dump(kernel: KernelDelays, dump: Mapping[str, Any]) -> tuple[str, str]:
    """The name and checksum of the dumped kernel all of whose instructions are those of `kernel`."""
    code = {one.address: one.text for one in kernel.code}
    differs = f"no kernel named {kernel.name}"
    for entry in dump["kernels"].values():
        points = entry["instrumentation_points"].values()
        other = [one for one in points if code.get(one["pc"]) != " ".join(one["sass"].rstrip("; ").split())]
        if points and not other:
            return entry["kernel_name"], entry["kernel_checksum"]
        if entry["kernel_name"] == kernel.name and other:
            differs = f"at {other[0]['pc']:#x} it has {other[0]['sass']}, here {code.get(other[0]['pc'])}"
    raise InputError(
        f"the dump has no kernel with the machine code of {kernel.name}: {differs}; assemble with the ptxas"
        " of that run"
    )


def read_dump(path: Path) -> dict[str, Any]:
    """What CUTracer wrote to CUTRACER_DELAY_DUMP_PATH. Raises InputError for anything else."""
    try:
        read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for entry in read["kernels"].values():
            texts = [entry["kernel_name"], entry["kernel_checksum"]]
            points = entry["instrumentation_points"].values()
            texts += [one["sass"] for one in points]
            if not all(isinstance(one, str) for one in texts) or any(
                type(one["pc"]) is not int for one in points
            ):
                raise TypeError(path)
            if not re.fullmatch("[0-9a-f]+", entry["kernel_checksum"]):
                raise ValueError(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{path} is no dump of CUTracer's delays: give a CUTRACER_DELAY_DUMP_PATH") from None
    return read


def patterns(delays: Delays) -> str:
    """CUTRACER_DELAY_PATTERNS for the delays: CUTracer looks at no other instruction."""
    opcodes = {point.opcode.partition(".")[0] for one in delays.kernels for point in one.points.values()}
    return ",".join(sorted(opcodes))
