# SPDX-License-Identifier: Apache-2.0
"""What tcgen05.mma does beside the product: accumulation, negation, masks, f16 results, and when."""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine import mbarrier
from gdnbench.sim.machine.engine_interface import SHARED_WINDOW
from gdnbench.sim.tensorcore.formats import FORMATS
from tests.messages import wording
from tests.sim.tcgen05.cute_layouts import shared_layout, swizzle
from tests.sim.tcgen05.products import Operand, codes, instruction_descriptor, matrix_descriptor, result
from tests.sim.tcgen05.tensor_machine import ALL, BARRIER, ONE, Machine

A_AT, B_AT = 16 * 1024, 64 * 1024
POISON = 0xFFFF_FFFF


class Setup:
    """A 64 x 24 x 16 or 128 x 24 x 16 bf16 (or f16) product, not issued yet."""

    def __init__(self, m: int = 64, n: int = 24, name: str = "bf16", **machine: object) -> None:
        self.machine = Machine(**machine)
        self.machine.alloc(64)
        self.m, self.n, self.name = m, n, name
        rng = np.random.default_rng(7)
        self.a = rng.integers(-3, 4, (m, 16)).astype(np.float32)
        self.b = rng.integers(-3, 4, (n, 16)).astype(np.float32)
        self.left = Operand(shared_layout("SW32", name, False, m, 16), A_AT, name)
        self.right = Operand(shared_layout("SW32", name, False, n, 16), B_AT, name)
        self.left.put(self.machine, self.a)
        self.right.put(self.machine, self.b)
        self.product = self.a @ self.b.T

    def issue(self, *, d: int = 0, accumulate: bool = False, **options: object) -> None:
        disable = options.pop("disable", ())
        scale = options.pop("scale", None)
        lanes = options.pop("lanes", ONE)
        idesc = instruction_descriptor(self.name, self.name, self.m, self.n, **options)
        self.machine.mma(
            "f16", d, self.left.descriptor(0), self.right.descriptor(0), idesc,
            accumulate=accumulate, disable=disable, scale=scale, lanes=lanes,
        )  # fmt: skip

    def issue_with(self, right: int, idesc: int) -> None:
        """Another B, and wait."""
        self.machine.mma("f16", 0, self.left.descriptor(0), right, idesc)
        self.machine.finish()

    def words(self) -> np.ndarray:
        return result(self.machine, 0, self.m, self.n)

    def values(self) -> np.ndarray:
        return self.words().view(np.float32)


@pytest.mark.parametrize(("negate_a", "negate_b"), [(True, False), (False, True), (True, True)])
def test_negation(negate_a: bool, negate_b: bool) -> None:
    setup = Setup()
    setup.issue(negate_a=negate_a, negate_b=negate_b)
    setup.machine.finish()
    sign = -1 if negate_a != negate_b else 1
    np.testing.assert_array_equal(setup.values(), sign * setup.product)


def test_accumulation_adds_in_order_of_issue() -> None:
    setup = Setup()
    for step in range(4):
        setup.issue(accumulate=step > 0)
    setup.machine.finish()
    np.testing.assert_array_equal(setup.values(), 4 * setup.product)


@pytest.mark.parametrize("scale", [0, 1, 5, 15])
def test_scaled_input(scale: int) -> None:
    """D = A B + D 2^-scale (PTX ISA 9.7.16.10.9.1)."""
    setup = Setup()
    setup.issue()
    setup.issue(accumulate=True, scale=scale)
    setup.machine.finish()
    np.testing.assert_array_equal(setup.values(), setup.product + setup.product * 2.0**-scale)


@pytest.mark.parametrize("m", [64, 128])
def test_disabled_lanes_keep_their_cells(m: int) -> None:
    """Bit i of the mask is lane i of TMEM, the first register lowest."""
    setup = Setup(m)
    setup.issue()
    mask = (0x0000_F00F, 0xFFFF_FFFF, 0, 0x8000_0001)
    setup.issue(accumulate=True, disable=mask)
    setup.machine.finish()
    row = np.arange(m)
    lane = row if m == 128 else 32 * (row // 16) + row % 16
    disabled = np.array([mask[at // 32] >> at % 32 & 1 for at in lane], bool)
    assert 0 < disabled.sum() < m
    np.testing.assert_array_equal(setup.values(), np.where(disabled[:, None], 1, 2) * setup.product)


def test_half_precision_result() -> None:
    """An f16 result takes the low half of a column of its own (PTX ISA 9.7.16.10.4.1)."""
    setup = Setup(128, 24, "f16")
    setup.issue(d_f32=False)
    setup.issue(d_f32=False, accumulate=True)
    setup.machine.finish()
    words = setup.words()
    np.testing.assert_array_equal((words & 0xFFFF).astype(np.uint16), codes("f16", 2 * setup.product))
    np.testing.assert_array_equal(words >> 16, 0)


def test_loads_before_the_commit_see_poison() -> None:
    setup = Setup(128)
    setup.issue()
    assert (setup.machine.load("32x32b", 8, 0) == POISON).all()
    setup.machine.finish()
    np.testing.assert_array_equal(setup.values(), setup.product)


def test_a_second_product_poisons_again_and_keeps_its_input() -> None:
    setup = Setup(128)
    setup.issue()
    setup.machine.finish()
    setup.issue(accumulate=True)
    assert (setup.machine.load("32x32b", 8, 0) == POISON).all()
    setup.machine.finish()
    np.testing.assert_array_equal(setup.values(), 2 * setup.product)


def test_early_schedule_lands_at_once() -> None:
    setup = Setup(128, schedule="early")
    setup.issue()
    np.testing.assert_array_equal(setup.machine.load("32x32b", 8, 0).view(np.float32), setup.product[:32, :8])


def test_products_of_other_columns_do_not_disturb_a_load() -> None:
    setup = Setup(128)
    setup.issue()
    setup.machine.finish()
    setup.issue(d=24)
    np.testing.assert_array_equal(setup.values(), setup.product)
    setup.machine.cta.queue.drain()


def test_operands_are_read_when_the_product_lands() -> None:
    """Overwriting an operand before the commit was waited for shows in the result."""
    setup = Setup(128)
    setup.issue()
    setup.left.put(setup.machine, np.zeros((128, 16)))
    setup.machine.finish()
    np.testing.assert_array_equal(setup.values(), 0)


def test_a_store_is_not_seen_before_its_wait() -> None:
    """Neither by a load nor by a product that adds to it."""
    machine = Machine()
    machine.alloc(32)
    data = np.arange(32 * 8, dtype=np.uint32).reshape(32, 8)
    machine.store("32x32b", 8, 0, data, wait=False)
    assert (machine.load("32x32b", 8, 0) == POISON).all()
    machine.issue("tcgen05.wait::st.sync.aligned;")
    np.testing.assert_array_equal(machine.load("32x32b", 8, 0), data)


def test_a_product_reads_poison_from_a_store_that_was_not_waited_for() -> None:
    """A in TMEM, stored by a warp without tcgen05.wait::st."""
    setup = Setup(128)
    machine = setup.machine
    for warp in range(4):
        machine.store("32x32b", 8, 32, np.zeros((32, 8), np.uint32), warp=warp, wait=warp != 2)
    idesc = instruction_descriptor("bf16", "bf16", 128, 24)
    machine.mma("f16", 0, 32, setup.right.descriptor(0), idesc, a_in_tmem=True)
    machine.finish()
    values = setup.values()
    assert np.isnan(values[64:96]).all()
    np.testing.assert_array_equal(np.delete(values, range(64, 96), axis=0), 0)


def test_one_warps_wait_does_not_complete_anothers_store() -> None:
    machine = Machine()
    machine.alloc(32)
    data = np.ones((32, 1), np.uint32)
    machine.store("32x32b", 1, 0, data, warp=1, wait=False)
    machine.issue("tcgen05.wait::st.sync.aligned;", warp=0)
    assert (machine.load("32x32b", 1, 0, warp=1) == POISON).all()


def test_commit_signals_after_what_was_issued_before_it() -> None:
    setup = Setup(128)
    machine = setup.machine
    mbarrier.init(machine.cta.shared, BARRIER, 1)
    setup.issue()
    machine.issue(
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r];", lanes=ONE, r=BARRIER
    )
    setup.issue(d=24)
    assert not mbarrier.is_complete(machine.cta.shared, BARRIER, 0)
    assert machine.cta.queue.advance_signal(BARRIER)
    assert mbarrier.is_complete(machine.cta.shared, BARRIER, 0)
    np.testing.assert_array_equal(setup.values(), setup.product)
    assert (machine.load("32x32b", 8, 24) == POISON).all()


@pytest.mark.parametrize("address", [SHARED_WINDOW + BARRIER, BARRIER], ids=["generic", "shared, extended"])
def test_commit_takes_64_bit_addresses(address: int) -> None:
    """A generic address, as the PTX ISA has it; or a shared one extended to 64 bits, which the ISA leaves
    undefined: Triton emits it, and in ptxas's SASS UTCBAR has the low 32 bits alone."""
    machine = Machine()
    mbarrier.init(machine.cta.shared, BARRIER, 1)
    machine.issue("tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%d];", lanes=ONE, d=address)
    assert machine.cta.queue.advance_signal(BARRIER)
    assert mbarrier.is_complete(machine.cta.shared, BARRIER, 0)


def test_commit_refuses_a_generic_address_of_other_memory() -> None:
    machine = Machine()
    with pytest.raises(KernelFault, match="is not shared memory"):
        machine.issue("tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%d];", lanes=ONE, d=1 << 32)


def test_commit_takes_a_shared_address_for_a_generic_one() -> None:
    """As Triton writes it; a generic address beyond the window is a fault as before."""
    machine = Machine()
    mbarrier.init(machine.cta.shared, BARRIER, 1)
    text = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%d];"
    machine.issue(text, lanes=ONE, d=BARRIER)
    assert machine.cta.queue.advance_signal(BARRIER)
    assert mbarrier.is_complete(machine.cta.shared, BARRIER, 0)
    (note,) = machine.launch.notes
    assert "where a generic one is due" in note.message
    with pytest.raises(KernelFault, match=wording("sim.machine.generic-not-shared")):
        machine.issue(text, lanes=ONE, d=1 << 40)


def test_equal_operands_of_all_lanes_are_one_product() -> None:
    setup = Setup(128)
    setup.issue()
    setup.issue(accumulate=True, lanes=ALL)
    setup.machine.finish()
    np.testing.assert_array_equal(setup.values(), 2 * setup.product)
    (note,) = setup.machine.launch.notes
    assert "32 lanes" in note.message


@pytest.mark.parametrize("name", ["e2m1", "e2m3", "e3m2"])
def test_narrow_formats(name: str) -> None:
    """Codes of six and four bits: 16 of them at the start of 16 bytes, then padding (9.7.16.10.4.4)."""
    rng = np.random.default_rng(3)
    code = {"e2m1": 5, "e2m3": 3, "e3m2": 4}[name]
    bits = FORMATS[name].bits
    machine = Machine()
    machine.alloc(32)
    sides = []
    for base, rows in ((A_AT, 64), (B_AT, 32)):
        side = rng.integers(0, 1 << bits, (rows, 32))
        sides.append(FORMATS[name].values(side.astype(np.uint8)))
        layout = shared_layout("SW32", "e4m3", False, rows, 32)
        data = np.full((rows, 2, 16), 0xA5, np.uint8)
        for row, chunk in np.ndindex(rows, 2):
            stream = sum(int(c) << bits * i for i, c in enumerate(side[row, 16 * chunk : 16 * chunk + 16]))
            data[row, chunk, : 2 * bits] = list(stream.to_bytes(2 * bits, "little"))
        address = layout.addresses(base)
        machine.cta.shared.bytes[address[..., 0]] = data.reshape(rows, 32)
        machine.cta.shared.valid[address] = True
    idesc = 1 << 4 | code << 7 | code << 10 | 32 >> 3 << 17 | 64 >> 4 << 24
    a, b = (matrix_descriptor(base, 16, 256, 6) for base in (A_AT, B_AT))
    machine.mma("f8f6f4", 0, a, b, idesc)
    machine.finish()
    np.testing.assert_array_equal(result(machine, 0, 64, 32).view(np.float32), sides[0] @ sides[1].T)


@pytest.mark.parametrize(("name", "shift"), [("e2m1", 2), ("e2m3", 1), ("e3m2", 1)])
def test_narrow_formats_in_tensor_memory(name: str, shift: int) -> None:
    """A byte a code (9.7.16.10.4.3), in its middle: e2m1 in bits 2..5, six-bit codes in bits 1..6 (CUTLASS
    `cp_narrow_a_to_tmem_mma.py`). What lies around them is not the element's; here it is noise."""
    rng = np.random.default_rng(4)
    code, bits = {"e2m1": 5, "e2m3": 3, "e3m2": 4}[name], FORMATS[name].bits
    setup = Setup()
    a = rng.integers(0, 1 << bits, (64, 32))
    noise = rng.integers(0, 256, (64, 32)) & ~(((1 << bits) - 1) << shift)
    cells = np.zeros((128, 32), np.uint8)
    row = np.arange(64)
    cells[32 * (row // 16) + row % 16] = a << shift | noise
    for warp in range(4):
        setup.machine.store("32x32b", 8, 32, cells[32 * warp : 32 * warp + 32].view(np.uint32), warp=warp)
    b = rng.integers(-3, 4, (24, 32)).astype(np.float32)
    right = Operand(shared_layout("SW32", "e4m3", False, 24, 32), B_AT, "e4m3")
    right.put(setup.machine, b)
    idesc = 1 << 4 | code << 7 | 24 >> 3 << 17 | 64 >> 4 << 24
    setup.machine.mma("f8f6f4", 0, 32, right.descriptor(0), idesc, a_in_tmem=True)
    setup.machine.finish()
    np.testing.assert_array_equal(setup.values(), FORMATS[name].values(a.astype(np.uint8)) @ b.T)


def test_base_offset_moves_the_pattern() -> None:
    """A swizzle pattern that starts 512 bytes past its period: base offset (start >> 7) & 7 (table 41)."""
    setup = Setup(64, 24)
    start = B_AT + 512
    layout = shared_layout("SW128", "bf16", False, 24, 64)
    b = np.random.default_rng(5).integers(-3, 4, (24, 64)).astype(np.float32)
    address = layout.addresses(0) + start  # swizzled by the offset from the pattern's start
    setup.machine.cta.shared.bytes[address] = codes("bf16", b)[..., None].view(np.uint8)
    setup.machine.cta.shared.valid[address] = True
    idesc = instruction_descriptor("bf16", "bf16", 64, 24)
    for block in range(4):
        descriptor = matrix_descriptor(start + 32 * block, 16, 1024, 2, base_offset=4)
        setup.issue_with(descriptor, idesc)
        np.testing.assert_array_equal(setup.values(), setup.a @ b[:, 16 * block : 16 * block + 16].T)


def test_groups_of_four_columns_in_transposed_tf32() -> None:
    """128-byte swizzle with 32-byte atoms: an atom has 8 x 4 chunks (table 55), so the stride offset leads
    from four columns to the next four; here the groups are apart."""
    stride = 1536
    machine = Machine()
    machine.alloc(32)
    left = Operand(shared_layout("SW32", "tf32", False, 64, 8), A_AT, "tf32")
    rng = np.random.default_rng(8)
    a, b = (rng.integers(-3, 4, (rows, 8)).astype(np.float32) for rows in (64, 32))
    left.put(machine, a)
    row, k = np.meshgrid(np.arange(32), np.arange(8), indexing="ij")
    address = swizzle(B_AT + 4 * row + 128 * (k % 4) + stride * (k // 4), 2, 5, 2)[..., None] + np.arange(4)
    machine.cta.shared.bytes[address] = b[..., None].view(np.uint8)
    machine.cta.shared.valid[address] = True
    idesc = instruction_descriptor("tf32", "tf32", 64, 32, b_mn=True)
    machine.mma("tf32", 0, left.descriptor(0), matrix_descriptor(B_AT, 0, stride, 1), idesc)
    machine.finish()
    np.testing.assert_array_equal(result(machine, 0, 64, 32).view(np.float32), a @ b.T)


@pytest.mark.parametrize(
    ("opcode", "named"),
    [
        ("tcgen05.mma.cta_group::2.kind::f16.ashift", "ashift"),
        ("tcgen05.mma.cta_group::1.kind::f16.ashift", "ashift"),
        ("tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale", "block_scale"),
        ("tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16", "block_scale"),
        ("tcgen05.mma.sp.cta_group::1.kind::f16", "tcgen05.mma.sp"),
    ],
)
def test_refused_by_name(opcode: str, named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        Machine().issue(f"{opcode} [%r], %da, %db, %i, %p;", lanes=ONE, r=0, da=0, db=0, i=0, p=0)


@pytest.mark.parametrize(
    ("bits", "kind", "message"),
    [
        (1 << 6, "f16", "bits 6..6"),
        (1 << 23, "f16", "bits 23..23"),
        (1 << 29, "f16", "bits 29..29"),
        (1 << 30, "f16", wording("sim.machine.maximum-shift")),
        (1 << 3, "f16", "saturation"),
        (1, "f16", "bits 0..1"),
        (7 << 7, "f16", wording("sim.machine.type-unknown", code=7, operand="A")),
        (2 << 4, "f16", wording("sim.machine.type-unknown", kind="f16", code=3, operand="D")),
        (0x1F << 24, "f16", "M = "),
        (0, "tf32", wording("sim.machine.type-unknown", kind="tf32")),
    ],
)
def test_illegal_instruction_descriptors(bits: int, kind: str, message: str) -> None:
    """The legal descriptor with some bits set."""
    idesc = instruction_descriptor("bf16", "bf16", 64, 24) | bits
    setup = Setup()
    with pytest.raises(KernelFault, match=message) as caught:
        setup.machine.mma(kind, 0, setup.left.descriptor(0), setup.right.descriptor(0), idesc)
    assert caught.value.kind is FaultKind.DESCRIPTOR
    assert caught.value.place is not None


@pytest.mark.parametrize("n", [0, 512, 264])
def test_illegal_n(n: int) -> None:
    setup = Setup()
    idesc = instruction_descriptor("bf16", "bf16", 64, 8) & ~(0x3F << 17) | (n >> 3 & 0x3F) << 17
    with pytest.raises(KernelFault, match="N = "):
        setup.machine.mma("f16", 0, setup.left.descriptor(0), setup.right.descriptor(0), idesc)


@pytest.mark.parametrize(
    ("bits", "message"),
    [
        (1 << 14, "bits 14..15"),
        (1 << 31, "bits 30..31"),
        (1 << 47, "0b001"),
        (1 << 48, "0b001"),
        (1 << 52, "bit 52"),
        (1 << 53, "bits 53..60"),
        (3 << 61, "layout type"),
    ],
)
def test_illegal_matrix_descriptors(bits: int, message: str) -> None:
    setup = Setup()
    idesc = instruction_descriptor("bf16", "bf16", 64, 24)
    with pytest.raises(KernelFault, match=message) as caught:
        setup.machine.mma("f16", 0, setup.left.descriptor(0) | bits, setup.right.descriptor(0), idesc)
    assert caught.value.kind is FaultKind.DESCRIPTOR


def test_sparse_is_refused() -> None:
    setup = Setup()
    with pytest.raises(UnsupportedError, match="sparse"):
        setup.machine.mma("f16", 0, 0, 0, instruction_descriptor("bf16", "bf16", 64, 24) | 4)


def test_transposed_tf32_needs_its_own_layout() -> None:
    setup = Setup()
    idesc = instruction_descriptor("tf32", "tf32", 64, 24, b_mn=True)
    with pytest.raises(KernelFault, match="128B_BASE32B"):
        setup.machine.mma("tf32", 0, setup.left.descriptor(0), setup.right.descriptor(0), idesc)


@pytest.mark.parametrize(("m", "lane"), [(64, 8), (64, 32), (128, 16)])
def test_lane_alignment_of_d(m: int, lane: int) -> None:
    """Table of 9.7.16.10.5: lane 0 for M = 128, 0 or 16 for M = 64."""
    setup = Setup(m)
    with pytest.raises(KernelFault, match=f"lane {lane}") as caught:
        setup.issue(d=lane << 16)
    assert caught.value.kind is FaultKind.MISALIGNED


def test_a_and_d_must_use_the_same_lanes() -> None:
    setup = Setup()
    idesc = instruction_descriptor("bf16", "bf16", 64, 24)
    with pytest.raises(KernelFault, match=wording("sim.machine.lanes-apart", a_lane=0, d_lane=16)):
        setup.machine.mma("f16", 16 << 16, 32, setup.right.descriptor(0), idesc, a_in_tmem=True)


def test_operands_outside_shared_memory() -> None:
    setup = Setup(shared=64 * 1024)
    with pytest.raises(KernelFault, match=wording("sim.machine.operand-outside", what="B")) as caught:
        setup.machine.mma(
            "f16", 0, setup.left.descriptor(0), matrix_descriptor(0x10400 - 256, 16, 256, 6),
            instruction_descriptor("bf16", "bf16", 64, 24),
        )  # fmt: skip
    assert caught.value.kind is FaultKind.OUT_OF_BOUNDS


def test_uninitialised_operand() -> None:
    setup = Setup()
    setup.machine.cta.shared.valid[B_AT + 40] = False
    setup.issue()
    with pytest.raises(
        KernelFault,
        match=wording("sim.machine.operand-unwritten", what="B", bytes=1, address=f"{B_AT + 40:#x}"),
    ) as caught:
        setup.machine.finish()
    assert caught.value.kind is FaultKind.UNINITIALISED
    assert caught.value.place is not None
    assert "tcgen05.mma" in caught.value.place.text


def test_uninitialised_accumulator() -> None:
    setup = Setup()
    setup.issue(accumulate=True)
    with pytest.raises(KernelFault, match=wording("sim.machine.accumulator-unwritten")) as caught:
        setup.machine.finish()
    assert caught.value.kind is FaultKind.UNINITIALISED
