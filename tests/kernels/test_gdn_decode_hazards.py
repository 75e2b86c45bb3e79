# SPDX-License-Identifier: Apache-2.0
"""What is easily got wrong around gdn_decode's compiled kernel: the order of what is asynchronous, and where
the tensors of a call may lie."""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.messages import wording

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import active
from gdnbench_kernels.compiling import program
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_decode.contract import OPERATION
from gdnbench_kernels.gdn_decode.cute import cute, prepare
from gdnbench_kernels.gdn_decode.decode_plan import DecodePlan
from gdnbench_kernels.gdn_decode.sources import source
from tests.kernels.gdn_decode_calls import (
    FRESH,
    Outputs,
    arguments,
    assert_passes,
    made,
    run,
    same,
    same_outputs,
    with_gaps,
    with_tensors,
)
from tests.subset import quick

BULK = DecodePlan(warps=2, transport="bulk")
MAP_NORESERVE = 0x4000
"""Linux's, on x86-64 and AArch64; Python 3.11 does not name it."""


@pytest.mark.slow  # many launches
def test_of_tokens_with_one_slot_the_last_one_stays() -> None:
    """A sequence may write a slot twice: copies of two tokens to one place, which land in any order. `random`
    schedules found them the wrong way round, late and early ones did not."""
    call = made(batch=2, steps=3)
    indices = call.tensors["state_indices"].clone()
    indices[0, 2], indices[1, 1] = indices[0, 0], indices[1, 0]
    call = with_tensors(call, state_indices=indices)
    OPERATION.validate(call)
    outputs = run(call)
    assert_passes(call, outputs)
    for schedule in ("random:0", "random:1", f"random:{FRESH}"):
        assert same_outputs(run(call, {"plan": BULK}, schedule=schedule), outputs), schedule


@pytest.mark.slow
@pytest.mark.parametrize("transport", quick(["registers", "bulk_in", "bulk"], 0, 2))
def test_nothing_is_read_before_the_kernel_before_is_waited_for(transport: str) -> None:
    """ptxas moved a `ld.global.nc`, whose data no one writes while the kernel runs, in front of
    `griddepcontrol.wait`, where the kernel before may still write it. What it moves shows in the assembly
    alone, so that such a load must not be there at all."""
    forms = (2, 2, "float32", "raw", "raw", "bfloat16", "bfloat16", "float32", "accepted")

    text = program(source(*forms, DecodePlan(transport=transport, pdl=True)), "sm_90a").ptx
    assert ".nc" not in text
    reads = [found.start() for found in re.finditer(r"\b(?:ld\.global|cp\.async\.(?:cg|bulk))\b", text)]
    assert len(reads) > 8
    # Nor does the next kernel start before: it may count on what came before this one.
    assert text.index("griddepcontrol.wait") < text.index("griddepcontrol.launch_dependents") < reads[0]


@pytest.mark.slow
def test_rows_of_padding_are_left_in_an_o_that_cannot_be_written_directly() -> None:
    call = made(batch=4, padding=0.5)
    memory = torch.full((4, 1, 2, 136), 7.0, dtype=torch.bfloat16)
    o, padding = memory[..., :128], call.tensors["state_indices"][:, 0] < 0
    with active(), programs_simulated():
        cute(**{**arguments(call), "state": with_gaps(call.tensors["state"])}, o=o)
    assert (o[padding] == 7).all()
    assert same(o[~padding], run(call)["o"][~padding])
    assert (memory[..., 128:] == 7).all()


def unaligned(x: Tensor) -> Tensor:
    return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)


def tokens_first(x: Tensor) -> Tensor:
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def every_other(x: Tensor) -> Tensor:
    return torch.stack([x, torch.full_like(x, torch.nan)], -1)[..., 0]


@pytest.mark.every(2)
@pytest.mark.parametrize("moved", quick([unaligned, tokens_first, every_other], 0, 2))
def test_inputs_may_lie_anywhere(moved: Callable[[Tensor], Tensor]) -> None:
    call = made(batch=3, steps=2, heads=(1, 2))
    views = {name: moved(call.tensors[name]) for name in ("q", "k", "v", "g", "beta")}
    views["state_indices"] = tokens_first(call.tensors["state_indices"])
    views |= {name: every_other(call.tensors[name]) for name in ("A_log", "dt_bias")}
    assert same_outputs(run(with_tensors(call, **views)), run(call))


def test_one_row_for_all() -> None:
    """Strides of 0."""
    call = made(batch=3, heads=(1, 2))
    one = {name: call.tensors[name][:1] for name in ("q", "k", "v", "g", "beta", "A_log", "dt_bias")}
    views = {name: x.expand_as(call.tensors[name]) for name, x in one.items()}
    copies = {name: x.clone(memory_format=torch.contiguous_format) for name, x in views.items()}
    assert same_outputs(run(with_tensors(call, **views)), run(with_tensors(call, **copies)))


def test_a_stride_of_an_axis_of_one_element_says_nothing() -> None:
    call = made(batch=1, heads=(1, 1), slots=1)
    strides = {"q": (3, 5, 7, 1), "k": (3, 5, 7, 1), "v": (3, 5, 7, 1), "g": (11, 3, 5), "beta": (11, 3, 5)}
    strides |= {"state": (9, 5, 128, 1), "state_indices": (9, 9)}
    views = {name: call.tensors[name].as_strided(call.tensors[name].shape, strides[name]) for name in strides}
    o = torch.empty(128, dtype=torch.bfloat16).as_strided((1, 1, 1, 128), (3, 5, 7, 1))
    state = with_gaps(call.tensors["state"])
    moved = {**arguments(call), **views, "state": state.as_strided(state.shape, strides["state"])}
    with active(), programs_simulated():
        prepare(**moved, o=o)()
    assert same_outputs({"o": o.contiguous(), "state": state}, run(call))


def test_slots_beyond_2_to_the_31_bytes_and_elements() -> None:
    """Only the pages that are touched exist."""
    call = made(batch=3, heads=(1, 1))
    near, stride = call.tensors["state"], 2**30 + 4
    indices, used = call.tensors["state_indices"], call.tensors["state_indices"].flatten().long()
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    held = mmap.mmap(-1, 4 * (2 * stride + 128 * 128), flags=flags)
    far = torch.frombuffer(held, dtype=torch.float32).as_strided((3, 1, 128, 128), (stride, 16384, 128, 1))
    far.copy_(near[used])
    o = torch.empty_like(call.tensors["v"])
    order = torch.arange(3, dtype=torch.int32).view_as(indices)
    with active(), programs_simulated():
        cute(**{**arguments(call), "state": far, "state_indices": order}, o=o)
    wanted = run(call)
    assert same(o, wanted["o"])
    assert same(far.contiguous(), wanted["state"][used])


def in_pool(state: Tensor, call: Call, name: str, first: int) -> Tensor:
    """The input's values, in the memory of the pool from that element on."""
    tensor = call.tensors[name]
    memory = state.as_strided((state.untyped_storage().nbytes() // 4,), (1,))
    numbers = memory[first:].view(tensor.dtype)[: tensor.numel()]
    return numbers.view(tensor.shape).copy_(tensor)


SLOT = 2 * 128 * 128


def gapped(call: Call) -> Tensor:
    """The pool with room for 1024 more elements behind each slot."""
    state = call.tensors["state"]
    whole = torch.full((len(state), SLOT + 1024), torch.nan)
    whole[:, :SLOT] = state.flatten(1)
    return whole[:, :SLOT].view(state.shape)


def test_inputs_may_lie_between_slots() -> None:
    """A page of states may hold other things too."""
    call = made(batch=2, slots=4)
    state = gapped(call)
    o = torch.empty_like(call.tensors["v"])
    names = ("k", "g", "state_indices")
    views = {name: in_pool(state, call, name, (SLOT + 1024) * slot + SLOT) for slot, name in enumerate(names)}
    with active(), programs_simulated():
        cute(**{**arguments(call), **views, "state": state}, o=o)
    assert same_outputs({"o": o, "state": state.contiguous()}, run(call))


@pytest.mark.parametrize("name", ["q", "k", "v", "g", "beta", "A_log", "dt_bias", "state_indices"])
@pytest.mark.parametrize("first", [0, SLOT - 1, SLOT + 1024 - 1], ids=["start", "end", "into the next"])
def test_inputs_in_a_slot_are_refused(name: str, first: int) -> None:
    call = made(batch=2, slots=4)
    state = gapped(call)
    view = in_pool(state, call, name, first)
    with pytest.raises(ValueError, match="^" + wording("kernels.shares-state", tensor=name)):
        cute(**{**arguments(call), name: view, "state": state})


def outputs_over(call: Call, name: str) -> Outputs:
    """o and the input of that name in one memory."""
    tensor = call.tensors[name]
    o = torch.zeros_like(call.tensors["v"])
    memory = o.view(-1).view(tensor.dtype)
    return {"o": o, name: memory[: tensor.numel()].view(tensor.shape).copy_(tensor)}


@pytest.mark.parametrize("name", ["q", "k", "v", "g", "beta", "A_log", "dt_bias", "state_indices"])
def test_o_over_an_input_is_refused(name: str) -> None:
    call = made(batch=2)
    with pytest.raises(ValueError, match=wording("kernels.memory-shared", tensor="o", other=name)):
        cute(**{**arguments(call), **outputs_over(call, name)})


def test_o_in_the_pool_is_refused() -> None:
    call = made(batch=2, slots=4)
    o = call.tensors["state"].clone().view(-1).view(torch.bfloat16)[: call.tensors["v"].numel()]
    state = o.view(torch.float32).as_strided(call.tensors["state"].shape, call.tensors["state"].stride())
    with pytest.raises(ValueError, match=wording("kernels.shares-state", tensor="o")):
        cute(**{**arguments(call), "state": state, "o": o.view_as(call.tensors["v"])})


def test_tensors_without_memory_are_refused() -> None:
    given = arguments(made(batch=2))
    meta = {name: x.to("meta") if isinstance(x, Tensor) else x for name, x in given.items()}
    with pytest.raises(ValueError, match=wording("kernels.no-memory", tensor="state")):
        cute(**meta)
    with pytest.raises(ValueError, match=wording("kernels.devices-differ", tensor="q", device="meta")):
        cute(**{**given, "q": meta["q"]})


def test_without_a_device_or_simulator_nothing_is_touched() -> None:
    call = made(batch=2)
    state = call.tensors["state"].clone()
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(NotImplementedError, match=wording("kernels.gpu-missing")):
        cute(**{**arguments(call), "state": state})
    assert same(state, call.tensors["state"])


def test_more_sequences_than_a_grid_has_rows_are_refused() -> None:
    call = made(batch=1)
    shared = {"A_log", "dt_bias", "state"}
    many = {name: x if name in shared else x.expand(65_536, *x.shape[1:]) for name, x in call.tensors.items()}
    with pytest.raises(
        NotImplementedError, match=wording("kernels.batch-limit", max_batch=65535, batch=65536)
    ):
        cute(**{**arguments(call), **many})
