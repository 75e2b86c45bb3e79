# SPDX-License-Identifier: Apache-2.0
"""Sets of buffers: where they lie, what is in them, and how many pass before one is used again."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.timing.rotation import (
    LEAST_SPREAD,
    MOST_SPREAD,
    CallTensors,
    Rotation,
    RotationOptions,
    Size,
    alignment,
    flat,
    gap_of,
    held_bytes,
    size,
    span,
)
from tests.messages import wording
from tests.seeds import drawn, fresh

CPU = torch.device("cpu")
FRESH = fresh(drawn("rotation", 20))


def tensors(seed: int) -> dict[str, Tensor]:
    """One of every kind of layout: contiguous, strided, expanded, a part off its alignment, empty, scalar."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(3, 40, 16, generator=generator)
    return {
        "contiguous": torch.randn(7, 33, generator=generator).to(torch.bfloat16),
        "strided": base[:, 3:30:2, 4:12],
        "transposed": torch.randn(5, 9, generator=generator).t(),
        "expanded": torch.randn(1, 8, generator=generator).expand(6, 8),
        "part": torch.arange(100, dtype=torch.int32)[3:50],
        "codes": torch.randint(0, 255, (64, 3), generator=generator, dtype=torch.uint8).view(
            torch.float8_e4m3fn
        ),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(2.5),
    }


def rotation(form: CallTensors, placements: int = 3, sets: int = 5, seed: int = 0) -> Rotation:
    return Rotation(form, Size(placements, sets), CPU, seed)


def every(made: Rotation, form: CallTensors) -> list[dict[str, Tensor]]:
    return [made.buffers(form, p, s) for p in range(made.placements) for s in range(made.sets)]


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


@pytest.mark.parametrize("seed", [0, FRESH])
def test_sets_are_the_call_in_layout_and_in_bits(seed: int) -> None:
    form = CallTensors(tensors(seed), {"o": torch.empty(4, 5)}, frozenset())
    made = rotation(form, seed=seed)
    for placement in range(made.placements):
        made.load(form, placement)
    for buffers in every(made, form):
        assert buffers.keys() == {*form.inputs, "o"}
        for name, tensor in form.inputs.items():
            found = buffers[name]
            assert (found.shape, found.stride(), found.dtype) == (
                tensor.shape,
                tensor.stride(),
                tensor.dtype,
            )
            assert torch.equal(bits(found), bits(tensor))


@pytest.mark.parametrize("seed", [0, FRESH])
def test_no_two_buffers_share_memory(seed: int) -> None:
    form = CallTensors(tensors(seed), {"o": torch.empty(4, 5)}, frozenset())
    buffers = [tensor for one in every(rotation(form, seed=seed), form) for tensor in one.values()]
    spans = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + span(tensor)) for tensor in buffers if span(tensor)
    )
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


def test_buffers_are_aligned_as_the_call_was_and_no_better() -> None:
    form = CallTensors(tensors(1), {}, frozenset())
    made = rotation(form)
    for name, tensor in form.inputs.items():
        if span(tensor):
            for buffers in every(made, form):
                assert (buffers[name].data_ptr() - tensor.data_ptr()) % alignment(CPU) == 0, name


def test_offsets_are_random_and_a_seed_gives_them_again() -> None:
    form = CallTensors({"x": torch.zeros(1000), "y": torch.zeros(1000)}, {}, frozenset())

    def steps(made: Rotation, placement: int) -> list[int]:
        """From each set's x to its y, and to the next set's x: wherever the arena begins."""
        found = [made.buffers(form, placement, index) for index in range(made.sets)]
        addresses = [one[name].data_ptr() for one in found for name in ("x", "y")]
        return [after - before for before, after in pairwise(addresses)]

    one = rotation(form, sets=20, seed=3)
    assert steps(one, 0) == steps(rotation(form, sets=20, seed=3), 0)
    assert steps(one, 0) != steps(rotation(form, sets=20, seed=4), 0)
    assert steps(one, 0) != steps(one, 1)
    # 20 gaps of 9 values each: that fewer than 4 values come is (3/9)^20 times a few thousand.
    assert len(set(steps(one, 0))) > 4


def test_load_copies_what_launches_write_and_leaves_the_rest() -> None:
    form = CallTensors({"x": torch.ones(10), "state": torch.ones(10)}, {}, frozenset({"state"}))
    made = rotation(form)
    made.load(form, 0)
    for index in range(made.sets):
        for tensor in made.buffers(form, 0, index).values():
            tensor.fill_(7)
    made.load(form, 0)
    for index in range(made.sets):
        buffers = made.buffers(form, 0, index)
        assert buffers["state"].tolist() == [1] * 10
        assert buffers["x"].tolist() == [7] * 10  # it is never copied twice, so the 7 shows that
    assert form.inputs["state"].tolist() == [1] * 10


def test_forms_lie_over_one_another_and_are_exchanged() -> None:
    q = torch.randn(50)
    one = CallTensors({"q": q, "g": torch.full((8, 4), 1.0)}, {"o": torch.empty(6)}, frozenset())
    other = CallTensors({"q": q, "g": torch.full((4, 8), 2.0)}, {"o": torch.empty(6)}, frozenset())
    made = rotation(one)
    made.load(one, 1)
    made.add(other)
    for form, value in ((other, 2.0), (one, 1.0), (other, 2.0)):
        made.load(form, 1)
        for index in range(made.sets):
            assert bool((made.buffers(form, 1, index)["g"] == value).all())
            assert torch.equal(made.buffers(form, 1, index)["q"], q)
    for mine, its in zip(every(made, one), every(made, other), strict=True):
        assert {name: tensor.data_ptr() for name, tensor in mine.items()} == {
            name: tensor.data_ptr() for name, tensor in its.items()
        }


def test_a_form_that_is_larger_or_has_more_gets_room_of_its_own() -> None:
    one = CallTensors({"g": torch.full((8,), 1.0)}, {}, frozenset())
    other = CallTensors({"g": torch.full((64,), 2.0), "bias": torch.full((3,), 3.0)}, {}, frozenset())
    made = rotation(one)
    made.add(other)
    for form, value in ((one, 1.0), (other, 2.0), (one, 1.0)):
        made.load(form, 0)
        for index in range(made.sets):
            assert bool((made.buffers(form, 0, index)["g"] == value).all())
    assert len({one["g"].data_ptr() for one in [*every(made, one), *every(made, other)]}) == 2 * 3 * 5


def test_memory_of_a_set_holds_all_its_tensors() -> None:
    form = CallTensors({"x": torch.zeros(100), "y": torch.zeros(30, dtype=torch.int64)}, {}, frozenset())
    made = rotation(form)
    for placement in range(made.placements):
        for index in range(made.sets):
            memory = made.memory(placement, index)
            begin, end = memory.data_ptr(), memory.data_ptr() + memory.nbytes
            assert memory.nbytes % 8 == 0
            for tensor in made.buffers(form, placement, index).values():
                # The last 7 bytes may be left out: memory is read in words.
                assert begin <= tensor.data_ptr()
                assert tensor.data_ptr() + span(tensor) <= end + 7


def test_span_and_flat_take_what_lies_between() -> None:
    base = torch.arange(24, dtype=torch.int16).view(4, 6)
    part = base[1:3, 2:4]
    assert span(part) == (6 + 1 + 1) * 2
    assert flat(part).view(torch.int16).tolist() == list(range(8, 16))
    assert span(torch.empty(0, 3)) == 0


@pytest.mark.parametrize("touched", [1 << 20, 3 << 20, 600 << 20])
def test_512_megabytes_pass_before_a_set_is_used_again(touched: int) -> None:
    for device in (CPU, torch.device("cuda")):
        found = size(RotationOptions(memory=64 << 30, most_sets=4096), device, touched, touched, cold=True)
        assert (found.sets - 1) * touched >= 512 << 20
        assert found.placements == 4
        assert found.notes == ()


def test_a_round_on_a_gpu_touches_2_gibibytes_or_has_256_launches() -> None:
    cuda = torch.device("cuda")
    options = RotationOptions(memory=64 << 30)
    assert size(options, cuda, 4 << 20, 4 << 20, cold=True).sets == 256
    assert size(options, cuda, 16 << 20, 16 << 20, cold=True).sets == 128
    assert size(options, cuda, 1 << 10, 1 << 14, cold=True).sets == 256
    assert size(options, cuda, 0, 1 << 14, cold=True).sets == 256
    assert size(options, cuda, 3 << 30, 3 << 30, cold=True).sets == 2


def test_warm_is_one_set() -> None:
    assert size(RotationOptions(), CPU, 1 << 20, 1 << 20, cold=False).sets == 1


def test_where_memory_is_short_sets_go_first_then_placements() -> None:
    cuda, mib = torch.device("cuda"), 1 << 20

    def of(memory: int) -> Size:
        return size(RotationOptions(memory=memory * mib), cuda, 8 * mib, 8 * mib, cold=True)

    assert of(4 * 2048) == Size(4, 256)
    few = of(4 * 1024)
    assert (few.placements, few.sets) == (4, 128)  # of at least 65, which 512 MB ask for
    (note,) = few.notes
    assert re.fullmatch(wording("timing.sets-fewer", sets=128, wanted=256), note)
    fewer = of(1200)
    assert (fewer.placements, fewer.sets) == (2, 75)
    assert re.fullmatch(wording("timing.placements-fewer", placements=2, wanted=4), fewer.notes[1])
    assert (of(100).placements, of(100).sets) == (1, 12)
    with pytest.raises(CannotRunError, match=wording("timing.buffers-too-large")) as caught:
        of(15)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["placements", "touched", "round_bytes", "most_sets", "memory"])
def test_options_of_nothing_are_refused(name: str) -> None:
    with pytest.raises(BadInputError, match=name):
        RotationOptions(**{name: 0})


def test_gaps_are_a_page_to_64_kib_and_memory_is_counted() -> None:
    assert gap_of([torch.zeros(1)]) == LEAST_SPREAD
    assert gap_of([torch.zeros(1 << 22)]) == MOST_SPREAD
    given = tensors(0)
    form = CallTensors(given, {}, frozenset())
    made = rotation(form, placements=1, sets=9)
    first, last = made.memory(0, 0), made.memory(0, 8)
    assert last.data_ptr() + last.nbytes - first.data_ptr() <= 9 * held_bytes(given)
