# SPDX-License-Identifier: Apache-2.0
"""`cute` of gdn_decode on a GPU: the bits of the simulator, in a CUDA graph, and a sequence the same whatever
is beside it.

Most of the time is compiling: tests share plans and forms of calls.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_decode.cute import cute, prepare
from gdnbench_kernels.gdn_decode.decode_plan import DecodePlan, default_plans
from gdnbench_kernels.gdn_decode.launch_args import arch_of
from tests.kernels.gdn_decode_calls import (
    CALLS,
    Outputs,
    arguments,
    assert_passes,
    made,
    run,
    same,
    same_outputs,
    sequence_of,
    with_gaps,
    with_tensors,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(scope="module", autouse=True)
def arch() -> str:
    """What `cute` is compiled for here."""
    try:
        return arch_of(torch.device("cuda"))
    except NotImplementedError as error:
        pytest.skip(str(error))


def moved(call: Call) -> dict[str, Any]:
    """The call's arguments on the GPU, the pool with its gaps."""
    held = with_gaps(call.tensors["state"])
    memory = held.as_strided((held.untyped_storage().nbytes() // held.element_size(),), (1,)).cuda()
    tensors = {name: tensor.cuda() for name, tensor in call.tensors.items()}
    tensors["state"] = memory.as_strided(held.shape, held.stride())
    return {**arguments(call), **tensors}


def on_gpu(call: Call, plan: DecodePlan | None = None) -> Outputs:
    given = moved(call)
    o = torch.full(call.tensors["v"].shape, torch.nan, dtype=torch.bfloat16, device="cuda")
    cute(**given, o=o, plan=plan)
    return {"o": o.cpu(), "state": given["state"].cpu()}


SIMULATED = (
    "log gates",
    "raw, padding",
    "raw, bf16 state",
    "gates over 60",
    "slots apart",
    "drafted tokens, bf16 state",
    "read slots of their own",
    "one slot read by all",
    "fp16 gates",
)
"""Calls of every dtype, gate and way to read; the simulator's tests have them all."""


@pytest.mark.parametrize("name", SIMULATED)
def test_bits_are_those_of_the_simulator(name: str, arch: str) -> None:
    call = made(**CALLS[name])
    simulated = run(call, {"arch": arch})
    assert_passes(call, simulated)
    assert same_outputs(on_gpu(call), simulated)


OTHERS = [
    DecodePlan(),
    DecodePlan(rows=2, passes=4, spread=True, resident=2, pdl=True),
    DecodePlan(transport="bulk", pdl=True, spread=True),
]
"""Plans of kinds that are not chosen: loads that keep out of L1, without `pdl`, rows apart."""


@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
def test_every_kind_of_plan_has_the_same_bits(state_dtype: str) -> None:
    call = made(batch=48, heads=(4, 8), state_dtype=state_dtype, padding=0.1)
    first, *others = default_plans(state_dtype, 1)
    outputs = on_gpu(call, first)
    assert_passes(call, outputs)
    for plan in (*others, *OTHERS):
        assert same_outputs(on_gpu(call, plan), outputs), plan


@pytest.mark.parametrize(
    "options",
    [
        {"batch": 40, "padding": 0.1},
        {"batch": 40, "state_dtype": "bfloat16"},
        {"batch": 8, "steps": 3, "speculative": True, "holes": 0.2, "state_dtype": "bfloat16"},
    ],
    ids=["fp32", "bf16", "drafted"],
)
def test_a_sequence_is_the_same_alone(options: dict[str, Any]) -> None:
    """More CTAs than the GPU holds at once in the batch, in plans that one sequence does not have."""
    call = made(heads=(16, 32), **options)
    whole = on_gpu(call)
    for row in (0, 7, len(whole["o"]) - 1):
        single = sequence_of(call, row)
        alone = on_gpu(single)
        assert_passes(single, alone)
        assert same(alone["o"], whole["o"][row : row + 1])
        written = call.tensors["state_indices"][row].long()
        for slot in written[written >= 0].tolist():
            assert same(alone["state"][slot], whole["state"][slot])


def test_twice_is_the_same() -> None:
    call = made(batch=40, heads=(16, 32))
    assert same_outputs(on_gpu(call), on_gpu(call))


PLANS = [*default_plans("float32", 1), *OTHERS]


@pytest.mark.parametrize("plan", PLANS)
def test_captured_into_a_graph(plan: DecodePlan) -> None:
    """Steps of one graph follow one another, each on the state that the one before left, which another SM may
    have had. With nothing in between each may start before the one in front of it is done."""
    call, steps = made(batch=16, heads=(4, 8), padding=0.25), 16
    plain, captured = moved(call), moved(call)
    outputs: list[Tensor] = [torch.full_like(plain["v"], torch.nan) for _ in range(2)]
    for _ in range(steps):
        cute(**plain, o=outputs[0])
    launch = prepare(**captured, o=outputs[1], plan=plan)
    assert same(captured["state"].cpu(), call.tensors["state"])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(steps):
            launch()
    graph.replay()
    assert same(captured["state"].cpu(), plain["state"].cpu())
    assert same(outputs[1].cpu(), outputs[0].cpu())


@pytest.mark.parametrize("plan", default_plans("float32", 1))
def test_what_the_kernel_before_writes_is_what_is_read(plan: DecodePlan) -> None:
    """Slots and gates that a copy leaves right in front of a launch, which may start before it is done."""
    call, steps = made(batch=16, heads=(4, 8)), 64
    generator = torch.Generator().manual_seed(0)
    slots = torch.stack([torch.randperm(17, generator=generator)[:16] for _ in range(steps)]).int().cuda()
    gates = torch.randn(steps, 16, 1, 8, generator=generator).bfloat16().cuda()
    plain, captured = moved(call), moved(call)
    outputs = [torch.full((steps, 16, 1, 8, 128), torch.nan).bfloat16().cuda() for _ in range(2)]

    def fill(given: dict[str, Any], step: int) -> None:
        given["g"].copy_(gates[step])
        given["state_indices"].copy_(slots[step].unsqueeze(1))

    for step in range(steps):
        fill(plain, step)
        torch.cuda.synchronize()
        cute(**plain, o=outputs[0][step])
    launches = [prepare(**captured, o=o, plan=plan) for o in outputs[1]]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for step, launch in enumerate(launches):
            fill(captured, step)
            launch()
    graph.replay()
    assert same(outputs[1].cpu(), outputs[0].cpu())
    assert same(captured["state"].cpu(), plain["state"].cpu())


@pytest.mark.parametrize("seed", range(3))
def test_of_tokens_with_one_slot_the_last_one_stays(seed: int) -> None:
    """Bulk copies of a thread to one place, more of them than land at once."""
    call = made(batch=32, steps=8, heads=(4, 8), seed=seed)
    one = call.tensors["state_indices"][:, :1].expand(-1, 8).contiguous()
    call = with_tensors(call, state_indices=one)
    outputs = on_gpu(call)
    assert_passes(call, outputs)
    assert same_outputs(on_gpu(call, OTHERS[-1]), outputs)


def test_a_call_never_waits_for_the_device() -> None:
    call = made(batch=16, heads=(4, 8))
    given, o = moved(call), torch.empty(16, 1, 8, 128, dtype=torch.bfloat16, device="cuda")
    cute(**given, o=o)
    launch = prepare(**given, o=o)
    torch.cuda.set_sync_debug_mode("error")
    try:
        cute(**given, o=o)
        launch()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_prepared_launch_follows_the_current_stream(arch: str) -> None:
    call = made(batch=2)
    given, o = moved(call), torch.empty(2, 1, 2, 128, dtype=torch.bfloat16, device="cuda")
    launch = prepare(**given, o=o)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        launch()
    # The launch waits behind the sleep on its own stream: the default one has nothing to wait for.
    assert not side.query()
    side.synchronize()
    found = {"o": o.cpu(), "state": given["state"].cpu()}
    assert same_outputs(found, run(call, {"arch": arch}))
