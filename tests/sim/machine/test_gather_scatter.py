# SPDX-License-Identifier: Apache-2.0
"""`.tile::gather4` and `.tile::scatter4`: four rows of a tensor as one box of four rows (PTX ISA 5.5.3.4).

Each row is walked by the byte model of a box (tma_model.py). What rows and columns outside the tensor do is
what Triton's tutorial of native gather and scatter states of a B200: loaded as zeros, not stored, and an
illegal instruction for a store below zero and for a column that is no multiple of 16 bytes.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gdnbench.sim import run_ptx
from gdnbench.sim.checker.grid import LaunchChecker
from gdnbench.sim.checker.happens_before import Verdict
from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.machine.engine_interface import PARAM_WINDOW
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.mutants.generate import mutants
from gdnbench.sim.mutants.judge import KILLED, Judge
from gdnbench.sim.mutants.launches import KeptLaunch
from gdnbench.sim.mutants.launches import Tensor as KeptTensor
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.run import RunResult
from tests.messages import wording
from tests.sim.machine.test_tma import BAR, TILE, Tensor, corner
from tests.sim.machine.tma_model import Map

PLACE = "{%c0, %c1, %c2, %c3, %c4}"
GATHER = (
    "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes "
    f"[%s], [%d1, {PLACE}], [%b]"
)
SCATTER = f"cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%d1, {PLACE}], [%s]"

# dtype, dims, elements of a row of the box, swizzle, column, four rows
CASES = [
    ("bf16", (64, 32), 64, 128, 0, (5, 0, 31, 2)),
    ("bf16", (100, 37), 64, 128, 64, (36, 3, 3, 9)),
    ("bf16", (100, 37), 32, 128, 8, (1, 37, 30, 5000)),
    ("f32", (24, 50), 8, 32, 16, (7, 49, 50, 0)),
    ("f16", (70, 50), 32, 64, 40, (40, 4, 11, 49)),
    ("u8", (300, 9), 128, 0, 288, (8, 0, 7, 2)),
    ("u8", (64, 9), 16, 0, 16, (9, 10, 11, 12)),
]
BELOW = [("bf16", (100, 37), 64, 128, -8, (-1, 3, -40, 9)), ("f32", (40, 11), 20, 0, -4, (-2, -1, 0, 1))]


def walk(map_: Map, shared: int, column: int, rows: tuple[int, ...], *, store: bool = False):  # type: ignore[no-untyped-def]
    """(shared address, global address or None) of each byte of the four rows."""
    pitch = max(map_.box[0] * map_.size, map_.swizzle)
    for index, row in enumerate(rows):
        yield from map_.walk(shared + index * pitch, (column, row), store=store)


@pytest.mark.parametrize("case", CASES + BELOW, ids=str)
@pytest.mark.parametrize("offset", [0, 128, 512])
def test_gather(case: tuple, offset: int) -> None:  # type: ignore[type-arg]
    dtype, dims, width, swizzle, column, rows = case
    tensor = Tensor(random.Random(1), dtype, dims, (width, 1), swizzle)
    bench = tensor.bench()
    want = bench.shared.bytes.copy()
    bench.issue("mbarrier.init.shared.b64 [%b], %n", b=BAR, n=1)
    bench.issue("mbarrier.arrive.expect_tx.shared.b64 _, [%b], %n", b=BAR, n=4 * tensor.map.box_bytes)
    bench.issue(GATHER, s=TILE + offset, d1=PARAM_WINDOW, b=BAR, **corner((column, *rows)))
    bench.cta.queue.drain()
    assert bench.shared.phase[BAR // 8] == 1, "four full rows complete the phase"
    inside = 0
    for to, source in walk(tensor.map, TILE + offset, column, rows):
        want[to] = 0 if source is None else tensor.bytes[tensor.at(source)]
        inside += source is not None
    want[BAR : BAR + 8] = bench.shared.bytes[BAR : BAR + 8]
    np.testing.assert_array_equal(bench.shared.bytes, want)
    assert bench.cta.counters.traffic["global to shared"] == inside


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("offset", [0, 128])
def test_scatter(case: tuple, offset: int) -> None:  # type: ignore[type-arg]
    dtype, dims, width, swizzle, column, rows = case
    rng = random.Random(2)
    tensor = Tensor(rng, dtype, dims, (width, 1), swizzle)
    bench = tensor.bench()
    shared = TILE + offset
    bench.shared.bytes[shared : shared + 1024] = np.frombuffer(rng.randbytes(1024), np.uint8)
    bench.shared.written(shared, 1024)
    want = tensor.bytes.copy()
    for source, to in walk(tensor.map, shared, column, rows, store=True):
        if to is not None:
            want[tensor.at(to)] = bench.shared.bytes[source]
    bench.issue(SCATTER, s=shared, d1=PARAM_WINDOW, **corner((column, *rows)))
    bench.cta.queue.drain()
    np.testing.assert_array_equal(tensor.bytes, want)


def faults(text: str, map_of: dict[str, object], *place: int) -> KernelFault:
    options = {"dtype": "bf16", "dims": (64, 32), "box": (64, 1), "swizzle": 128, **map_of}
    bench = Tensor(random.Random(1), **options).bench(track=False)  # type: ignore[arg-type]
    bench.issue("mbarrier.init.shared.b64 [%b], %n", b=BAR, n=1)
    with pytest.raises(KernelFault) as caught:
        bench.issue(text, s=TILE, d1=PARAM_WINDOW, b=BAR, **corner(place))
    return caught.value


@pytest.mark.parametrize("text", [GATHER, SCATTER])
def test_a_box_of_two_rows(text: str) -> None:
    fault = faults(text, {"box": (64, 2)}, 0, 1, 2, 3, 4)
    assert fault.kind is FaultKind.DESCRIPTOR
    assert re.search(wording("sim.machine.rows-box", rows=2), fault.message)


@pytest.mark.parametrize("text", [GATHER, SCATTER])
def test_a_column_between_16_byte_units(text: str) -> None:
    assert faults(text, {}, 4, 1, 2, 3, 4).kind is FaultKind.MISALIGNED


@pytest.mark.parametrize("place", [(0, 1, 2, 3, -1), (-8, 1, 2, 3, 4)])
def test_a_scatter_below_zero(place: tuple[int, ...]) -> None:
    fault = faults(SCATTER, {}, *place)
    assert fault.kind is FaultKind.OUT_OF_BOUNDS
    assert re.search(wording("sim.machine.tma-below-zero", coordinate=place), fault.message)


def test_a_map_of_more_rows_than_the_tensor_has() -> None:
    tensor = Tensor(random.Random(1), "bf16", (64, 32), (64, 1), 128, pad=0)
    tensor.map = Map(tensor.map.address, "bf16", (64, 48), tensor.map.strides, (64, 1), 128)
    bench = tensor.bench()
    bench.issue("mbarrier.init.shared.b64 [%b], %n", b=BAR, n=1)
    place = {"s": TILE, "d1": PARAM_WINDOW, "b": BAR}
    bench.issue(GATHER, **place, **corner((0, 48, 31, 30, 7)))
    with pytest.raises(KernelFault, match=r"out-of-bounds.*nearest is tensor"):
        bench.issue(GATHER, **place, **corner((0, 1, 40, 30, 7)))


def test_one_mbarrier_counts_the_rows_and_a_prefetch_needs_a_box_of_one() -> None:
    tensor = Tensor(random.Random(1), "bf16", (64, 32), (64, 2), 128)
    text = f"cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4 [%d1, {PLACE}]"
    with pytest.raises(KernelFault, match=wording("sim.machine.rows-box", rows=2)):
        tensor.bench().issue(text, d1=PARAM_WINDOW, **corner((0, 1, 2, 3, 4)))
    tensor = Tensor(random.Random(1), "bf16", (64, 32), (64, 1), 128)
    tensor.bench().issue(text, d1=PARAM_WINDOW, **corner((0, 1, 2, 3, 4)))


def test_a_row_that_is_stored_twice_is_noted() -> None:
    bench = Tensor(random.Random(1), "bf16", (64, 32), (64, 1), 128).bench(track=False)
    bench.issue(SCATTER, s=TILE, d1=PARAM_WINDOW, **corner((0, 1, 40, 40, 3)))  # outside: neither is stored
    assert not bench.notes()
    bench.issue(SCATTER, s=TILE, d1=PARAM_WINDOW, **corner((0, 1, 2, 1, 3)))
    (note,) = bench.notes()
    assert re.fullmatch(wording("sim.machine.rows-twice"), note)


def test_the_number_of_coordinates() -> None:
    bench = Tensor(random.Random(1), "bf16", (64, 32), (64, 1), 128).bench()
    with pytest.raises(UnsupportedError, match="2 coordinates"):
        bench.issue(GATHER.replace(PLACE, "{%c0, %c1}"), s=TILE, d1=PARAM_WINDOW, b=BAR, c0=0, c1=0)


@pytest.mark.parametrize(
    ("text", "target", "name"),
    [
        (GATHER, "sm_90a", "tile::gather4"),
        (SCATTER, "sm_90a", "tile::scatter4"),
        (SCATTER, "sm_100", "tile::scatter4"),
    ],
)
def test_targets_without_these_modes(text: str, target: str, name: str) -> None:
    registers = "".join(f".reg .b32 %{r};" for r in ("s", "b", "c0", "c1", "c2", "c3", "c4"))
    module = (
        f".version 8.8\n.target {target}\n.address_size 64\n.entry k() {{\n"
        f"{registers} .reg .b64 %d1;\n{text};\nret;\n}}\n"
    )
    refused = wording("sim.ptx.target-refused", op=f"cp.async.bulk.tensor.{name}", target=target)
    with pytest.raises(UnsupportedError, match=refused):
        parse(module)


# Mutants that are right. One thread initialises the mbarrier, expects its bytes and issues every copy, so its
# program order replaces the fence of initialisation and the release of the arrive. The thread that stores
# executes the proxy fence after the barrier too. The kernel's end waits for stores whose sources were read.
SURVIVORS = {
    "behind bar.sync at PTX line 21: @%one fence.mbarrier_init.release.cluster;",
    "mbarrier.arrive.expect_tx.relaxed.cta.shared.b64: "
    "mbarrier.arrive.expect_tx.shared.b64 %state, [full], 4096;",
    "behind bar.sync at PTX line 50: fence.proxy.async.shared::cta; // fence",
    "cp.async.bulk.wait_group.read: cp.async.bulk.wait_group 0; // stored",
}

# A whole kernel: 32 rows of a tensor, flipped and scattered to other rows. `@@` stand for one line each that
# a twin lacks.
WIDTH, ROWS = 64, 32
KERNEL = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry permute(.param .align 64 .b8 from[128], .param .align 64 .b8 to[128], .param .u64 indices)
{
.reg .pred %p, %one;
.reg .b32 %t, %s, %a, %v, %i, %r<9>;
.reg .b64 %d<4>, %state;
.shared .align 1024 .b8 tile[4096];
.shared .align 8 .b64 full;
ld.param.u64 %d0, [indices];
mov.b64 %d1, from;
cvta.param.u64 %d1, %d1;
mov.b64 %d2, to;
cvta.param.u64 %d2, %d2;
mov.u32 %t, %tid.x;
mov.u32 %s, tile;
setp.eq.u32 %one, %t, 0;
@%one mbarrier.init.shared.b64 [full], 1;
@%one fence.mbarrier_init.release.cluster;
bar.sync 0;
@!%one bra loaded;
mbarrier.arrive.expect_tx.shared.b64 %state, [full], 4096;
mov.u32 %i, 0;
load:
mul.wide.u32 %d3, %i, 4;
add.u64 %d3, %d0, %d3;
ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%d3];
shl.b32 %a, %i, 7;
add.s32 %a, %a, %s;
cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes [%a], """ + (
    """[%d1, {0, %r0, %r1, %r2, %r3}], [full];
add.s32 %i, %i, 4;
setp.lt.u32 %p, %i, 32;
@%p bra load;
loaded:
wait:
mbarrier.try_wait.parity.shared.b64 %p, [full], 0; // wait
@!%p bra wait; // wait
mov.u32 %i, %t;
flip:
shl.b32 %a, %i, 2;
add.s32 %a, %a, %s;
ld.shared.b32 %v, [%a];
not.b32 %v, %v;
st.shared.b32 [%a], %v;
add.s32 %i, %i, 64;
setp.lt.u32 %p, %i, 1024;
@%p bra flip;
fence.proxy.async.shared::cta; // fence
bar.sync 0;
@!%one bra done;
mov.u32 %i, 0;
store:
mul.wide.u32 %d3, %i, 4;
add.u64 %d3, %d0, %d3;
ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%d3+128];
shl.b32 %a, %i, 7;
add.s32 %a, %a, %s;
cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%d2, {0, %r0, %r1, %r2, %r3}], [%a];
add.s32 %i, %i, 4;
setp.lt.u32 %p, %i, 32;
@%p bra store;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0; // stored
done:
ret;
}
"""
)


@dataclass
class Permutation:
    """A launch of KERNEL. Every fourth row that is asked for does not exist; every fifth is stored to a row
    that does not exist."""

    source: np.ndarray
    target: np.ndarray
    indices: np.ndarray
    want: np.ndarray

    @classmethod
    def draw(cls) -> Permutation:
        rng = np.random.default_rng(3)
        source = rng.integers(0, 1 << 16, (40, WIDTH), np.uint16)
        target = rng.integers(0, 1 << 16, (64, WIDTH), np.uint16)
        asked, stored = rng.permutation(40)[:ROWS], rng.permutation(64)[:ROWS]
        asked[::4], stored[::5] = 77, 100 + np.arange(len(stored[::5]))
        rows = np.where((asked < 40)[:, None], source[np.minimum(asked, 39)], 0)
        want = target.copy()
        want[stored[stored < 64]] = ~rows[stored < 64].astype(np.uint16)
        return cls(source, target, np.concatenate((asked, stored)).astype(np.int32), want)

    def params(self) -> list[bytes]:
        maps = [
            Map(array.ctypes.data, "bf16", (WIDTH, len(array)), (2 * WIDTH,), (WIDTH, 1), 128).encode()
            for array in (self.source, self.target)
        ]
        return [*maps, int(self.indices.ctypes.data).to_bytes(8, "little")]

    def arrays(self) -> dict[str, np.ndarray]:
        return {"source": self.source, "target": self.target, "indices": self.indices}


def permute(text: str, engine: str, **settings: Any) -> tuple[Permutation, RunResult]:
    launch = Permutation.draw()
    memory = GlobalMemory()
    for name, array in launch.arrays().items():
        memory.add_array(array.view(np.uint8).reshape(-1), name)
    settings |= {"engine": engine, "memory": memory, "threads": 1}
    return launch, run_ptx(text, "permute", (1, 1, 1), (64, 1, 1), launch.params(), **settings)


@pytest.mark.parametrize("engine", ["interpreter", "compiled"])
def test_a_kernel_that_gathers_and_scatters(engine: str) -> None:
    for schedule in ("late", "early", "random:7"):
        launch, ran = permute(KERNEL, engine, schedule=schedule, profile=True)
        np.testing.assert_array_equal(launch.target, launch.want)
    assert ran.counters.traffic["global to shared"] == (ROWS - ROWS // 4) * 2 * WIDTH
    assert ran.counters.traffic["shared to global"] == (ROWS - len(range(0, ROWS, 5))) * 2 * WIDTH
    assert ran.counters.instructions["cp.async.bulk.tensor"] == ROWS // 2


@pytest.mark.parametrize("engine", ["interpreter", "compiled"])
@pytest.mark.parametrize("without", ["", "wait", "fence", "stored"])
def test_the_checker_follows_the_rows(without: str, engine: str) -> None:
    lines = [line for line in KERNEL.splitlines() if not without or not line.endswith(f"// {without}")]
    text = "\n".join(lines)
    checker = LaunchChecker(parse(text).kernels["permute"])
    permute(text, engine, checker=checker.begin)
    found = checker.found()
    assert bool(found) is bool(without)
    assert all(one.verdict is Verdict.ERROR for one in found)


@pytest.mark.slow
def test_every_mutant_is_killed_or_weakens_nothing() -> None:
    launch, module = Permutation.draw(), parse(KERNEL)
    request = LaunchRequest(
        module.text, "permute", (1, 1, 1), (64, 1, 1), (1, 1, 1), 0, tuple(launch.params()), None, 0
    )
    tensors = tuple(
        KeptTensor(array.ctypes.data, name, array.tobytes(), array) for name, array in launch.arrays().items()
    )
    judge = Judge(KeptLaunch(module, request, tensors), "compiled")
    survivors = {
        f"{mutant.change}: {mutant.place.text}"
        for mutant in mutants(module, "permute")
        if judge.judge(mutant).outcome not in KILLED
    }
    assert survivors == SURVIVORS
