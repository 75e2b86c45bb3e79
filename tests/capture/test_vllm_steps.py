# SPDX-License-Identifier: Apache-2.0
"""Whose the calls of vLLM's layers are: a few steps of two requests in each of its runners of models, which
here stand under their own names. What is expected is written from the steps, not from what capture reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from blake3 import blake3
from torch import Tensor

from gdnbench.capture import CaptureOptions, capturing, runtime
from gdnbench.capture.adapter import Target
from gdnbench.capture.adapters.vllm import VllmAdapter
from gdnbench.lineage.check import check_stores
from gdnbench.lineage.finding import Break
from gdnbench.store.reader import Store
from tests.capture.frameworks import framework
from tests.capture.stand_in import StandInGraph, StandInStreams, capturing_stand_in, graph_of
from tests.capture.test_vllm import HV, LAYER, OPS, D, gate_parameters, ints, layer, packed, pool
from tests.subset import quick

PROMPTS = {"a": [3, 1, 4, 1, 5, 9, 2, 6], "b": [2, 7, 1]}
SLOTS = {"a": [1, 2, 3], "b": [4, 5, 6]}
"""One for each token of a step with two drafts."""


@pytest.fixture(autouse=True)
def vllm() -> Iterator[None]:
    with framework():
        yield


def prefix(name: str, count: int) -> str:
    return blake3(torch.tensor(PROMPTS[name][:count]).numpy().tobytes()).hexdigest()[:16]


@dataclass
class Plan:
    """A step as its scheduler would say it: by request the tokens, where they begin, the drafts among them
    (-1: it decodes or prefills without), accepted tokens of the step before. `optimistic`: where the host
    believes that they begin."""

    tokens: dict[str, int]
    computed: list[int]
    drafts: list[int]
    accepted: list[int]
    optimistic: list[int] | None = None
    slots: dict[str, list[int]] | None = None
    padding: int = 0

    def scheduled(self, module: Any) -> SimpleNamespace:
        """The step's SchedulerOutput, and what the runner's state will be."""
        return SimpleNamespace(
            num_scheduled_tokens=self.tokens,
            computed=self.computed,
            optimistic=self.optimistic or self.computed,
            drafts=self.drafts,
            states={name: request(name) for name in self.tokens},
            scheduled_new_reqs=[
                request(name) for name, first in zip(self.tokens, self.computed, strict=True) if first == 0
            ],
            finished_req_ids=set(),
            model=lambda runner: self.forward(module),
        )

    def forward(self, module: Any) -> None:
        """The layer, with the metadata that its backend's builder makes."""
        total = sum(self.tokens.values()) + self.padding
        rows, out = packed(total), torch.zeros(total, HV, D, dtype=torch.bfloat16)
        with import_module("vllm.forward_context").set_forward_context({LAYER: self.metadata()}):
            module._forward_core(rows["mixed_qkv"], rows["b"], rows["a"], out)

    def metadata(self) -> SimpleNamespace:
        names, counts = list(self.tokens), list(self.tokens.values())
        slots = self.slots or SLOTS
        masks = [one >= 0 for one in self.drafts]
        spec = [n for n, mask in enumerate(masks) if mask]
        rest = [n for n, mask in enumerate(masks) if not mask]
        decodes = [] if spec else [n for n in rest if counts[n] == 1 and self.computed[n] > 0]
        prefills = [n for n in rest if n not in decodes]
        of_token = [n for n, count in enumerate(counts) for _ in range(count)]
        made: dict[str, Any] = {
            "num_prefills": len(prefills),
            "num_prefill_tokens": sum(counts[n] for n in prefills),
            "num_decodes": len(decodes) + self.padding,
            "num_decode_tokens": len(decodes) + self.padding,
            "num_spec_decodes": len(spec),
            "num_actual_tokens": len(of_token),
            "spec_sequence_masks_cpu": torch.tensor(masks) if spec else None,
            "non_spec_query_start_loc": bounds([counts[n] for n in rest] + [1] * self.padding),
            "non_spec_state_indices_tensor": ints(*[slots[names[n]][0] for n in rest], *[0] * self.padding),
            "chunk_indices": None,
            "chunk_offsets": None,
        }
        if spec:
            made |= {
                "spec_query_start_loc": bounds([counts[n] for n in spec]),
                "spec_state_indices_tensor": ints(*[slots[names[n]] for n in spec]),
                "num_accepted_tokens": ints(*[self.accepted[n] for n in spec]),
                "spec_token_indx": tokens_in(of_token, spec),
                "non_spec_token_indx": tokens_in(of_token, rest),
            }
        if prefills:
            made |= {
                "prefill_query_start_loc": bounds([counts[n] for n in prefills]),
                "prefill_state_indices": ints(*[slots[names[n]][0] for n in prefills]),
                "prefill_has_initial_state": torch.tensor([self.computed[n] > 0 for n in prefills]),
            }
        return SimpleNamespace(**made)


def bounds(counts: list[int]) -> Tensor:
    return torch.tensor([0, *counts]).cumsum(0).int()


def tokens_in(of_token: list[int], sequences: list[int]) -> Tensor:
    return torch.tensor([place for place, n in enumerate(of_token) if n in sequences])


def request(name: str) -> SimpleNamespace:
    """A NewRequestData and a CachedRequestState in one."""
    return SimpleNamespace(
        req_id=name,
        prompt_token_ids=PROMPTS[name],
        prefill_token_ids=PROMPTS[name],
        mm_features=[],
        lora_request=None,
        prompt_embeds=None,
    )


def runner_of(version: str, **more: Any) -> Any:
    config = SimpleNamespace(kv_transfer_config=more.get("transfer"))
    caches = SimpleNamespace(
        kv_cache_groups=[
            SimpleNamespace(
                kv_cache_spec=SimpleNamespace(num_prefill_checkpoint_blocks=more.get("blocks", 0))
            )
        ]
    )
    if version == "V1":
        module = import_module("vllm.v1.worker.gpu_model_runner")
        return module.GPUModelRunner(config, caches, speculative_config=object())
    return import_module("vllm.v1.worker.gpu.model_runner").GPUModelRunner(config, caches)


STEPS = [
    # The first chunk of a's prompt, and b's prompt.
    Plan({"a": 5, "b": 3}, [0, 0], [-1, -1], [1, 1]),
    # The rest of a's prompt beside two drafts of b.
    Plan({"a": 3, "b": 3}, [5, 3], [-1, 2], [1, 1]),
    # Of b's three tokens two were right; the host still believes in all three.
    Plan({"a": 3, "b": 3}, [8, 5], [2, 2], [1, 2], optimistic=[8, 6]),
    # b is preempted. All of a's tokens were right.
    Plan({"a": 3}, [11], [2], [3]),
    # b begins again in other slots, with another row of the batch.
    Plan({"b": 3, "a": 3}, [0, 12], [-1, 2], [1, 1], slots={"a": [1, 2, 3], "b": [7, 8, 6]}),
]
EXPECTED = [
    {"requests": ["a", "b"], "positions": [0, 0], "padding": [], "prefixes": [None, None], "slots": [1, 4]},
    {"requests": ["b"], "positions": [3], "padding": [], "prefixes": [prefix("b", 3)]},
    {"requests": ["a"], "positions": [5], "padding": [], "prefixes": [prefix("a", 5)], "slots": [1]},
    {"requests": ["a", "b"], "positions": [8, 5], "padding": [], "prefixes": [prefix("a", 8), None]},
    {"requests": ["a"], "positions": [11], "padding": [], "prefixes": [None]},
    {"requests": ["a"], "positions": [12], "padding": [], "prefixes": [None]},
    {"requests": ["b"], "positions": [0], "padding": [], "prefixes": [None], "slots": [7]},
]


def run(
    path: Path, version: str, plans: list[Plan], options: CaptureOptions | None = None, **more: Any
) -> list[Any]:
    with capturing(path, options) as counts:
        module = layer()
        module.pool.zero_()
        runner = runner_of(version, **more)
        for plan in plans:
            runner.execute_model(plan.scheduled(module))
    assert (counts.failures, counts.first_failure, counts.passed_over, counts.unclaimed) == (0, None, {}, {})
    return [record.info.dispatch.get("lineage") for record in Store.open(path).records]


@pytest.mark.parametrize("version", ["V1", "V2"])
def test_requests_of_each_step(version: str, tmp_path: Path) -> None:
    assert run(tmp_path / "run.zarr", version, STEPS) == EXPECTED


def broken(path: Path) -> list[tuple[Break, str, int]]:
    """The breaks that `gdnbench lineage` finds: kind, request and position of the read."""
    report = check_stores([Store.open(path)])
    (process,) = report.processes
    assert report.total("right") + report.breaks == report.total("reads") == 9
    return [
        (one.kind, process.table.requests[one.found.request], one.found.position)
        for chain in process.chains
        for one in chain.findings
    ]


KINDS = quick([("V1", False), ("V2", False), ("V1", True), ("V2", True)], 0)
"""Runners, and whether calls are kept as digests only."""


@pytest.mark.parametrize(("version", "digests"), KINDS)
def test_lineage_of_the_steps(version: str, digests: bool, tmp_path: Path) -> None:
    run(tmp_path / "run.zarr", version, STEPS, CaptureOptions(digests=digests))
    assert broken(tmp_path / "run.zarr") == []


@pytest.mark.slow
@pytest.mark.parametrize(("version", "digests"), KINDS)
def test_lineage_of_a_stale_slot(version: str, digests: bool, tmp_path: Path) -> None:
    """In the third step b's second column is the slot of the state after its first token."""
    stale = replace(STEPS[2], slots={"a": [1, 2, 3], "b": [5, 4, 6]})
    plans = [*STEPS[:2], stale, *STEPS[3:]]
    run(tmp_path / "run.zarr", version, plans, CaptureOptions(digests=digests))
    assert broken(tmp_path / "run.zarr") == [(Break.OLDER_VERSION, "b", 5)]


@pytest.mark.parametrize("version", quick(["V1", "V2"]))
def test_a_batch_filled_up_for_a_graph(version: str, tmp_path: Path) -> None:
    plans = [STEPS[0], Plan({"b": 1, "a": 1}, [3, 5], [-1, -1], [1, 1], padding=2)]
    run(tmp_path / "digests.zarr", version, plans, CaptureOptions(digests=True))
    report = check_stores([Store.open(tmp_path / "digests.zarr")])
    assert (report.breaks, report.total("right")) == (0, 4)
    _, found = run(tmp_path / "run.zarr", version, plans)
    assert found["requests"] == ["b", "a", None, None]
    assert (found["positions"], found["padding"]) == ([3, 5, None, None], [2, 3])
    assert found["prefixes"] == [prefix("b", 3), prefix("a", 5), None, None]


@pytest.mark.parametrize("version", quick(["V1", "V2"]))
def test_metadata_of_older_releases(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 0.31 the mask of drafts is on the device only: the runner knows it too."""
    made = Plan.metadata

    def older(plan: Plan) -> SimpleNamespace:
        found = made(plan)
        del found.spec_sequence_masks_cpu
        return found

    monkeypatch.setattr(Plan, "metadata", older)
    assert run(tmp_path / "run.zarr", version, STEPS) == EXPECTED


@pytest.mark.parametrize("version", quick(["V1", "V2"]))
@pytest.mark.parametrize("more", [{"transfer": object()}, {"blocks": 1}])
def test_states_that_come_from_elsewhere(version: str, more: dict[str, Any], tmp_path: Path) -> None:
    """With a connector to other hosts, or checkpoints within prompts, equal tokens decide no state."""
    expected = [{name: value for name, value in one.items() if name != "prefixes"} for one in EXPECTED]
    assert run(tmp_path / "run.zarr", version, STEPS, **more) == [
        {**one, "elsewhere": True} for one in expected
    ]


@pytest.mark.slow
def test_requests_of_the_convolution(tmp_path: Path) -> None:
    """Its prefills have all requests without drafts; it has the pool itself, and so no slots."""
    with capturing(tmp_path / "run.zarr") as counts:
        module, runner = layer(), runner_of("V1")
        width = packed(1)["mixed_qkv"].shape[1]
        module.pool.zero_()
        module.windows = torch.zeros(9, width, 3 + 2, dtype=torch.bfloat16)
        module.weight = torch.ones(width, 4, dtype=torch.bfloat16)
        for plan in STEPS:
            runner.execute_model(plan.scheduled(module))
    assert (counts.failures, counts.first_failure, counts.passed_over, counts.unclaimed) == (0, None, {}, {})
    found = [
        record.info.dispatch["lineage"]
        for record in Store.open(tmp_path / "run.zarr").records
        if record.info.op.startswith("conv_")
    ]
    assert found == [{name: one[name] for name in one if name != "slots"} for one in EXPECTED]
    report = check_stores([Store.open(tmp_path / "run.zarr")])
    assert report.breaks == 0


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [0, 1])
def test_lineage_of_a_state_that_no_call_wrote(blocks: int, tmp_path: Path) -> None:
    """b goes on with a state that it did not leave: wrong, unless the engine writes others."""
    elsewhere = {"a": [1, 2, 3], "b": [7, 8, 6]}
    plans = [
        Plan({"b": 3}, [0], [-1], [1]),
        Plan({"a": 2}, [0], [-1], [1]),
        Plan({"b": 1}, [3], [-1], [1], slots=elsewhere),
    ]
    with capturing(tmp_path / "run.zarr", CaptureOptions(digests=True)):
        module, runner = layer(), runner_of("V1", blocks=blocks)
        module.pool.zero_()
        module.pool[7] = 1
        for plan in plans:
            runner.execute_model(plan.scheduled(module))
    (process,) = check_stores([Store.open(tmp_path / "run.zarr")]).processes
    found = [one.kind for chain in process.chains for one in chain.findings]
    assert found == ([] if blocks else [Break.NEVER_WRITTEN])


@pytest.mark.parametrize("version", quick(["V1", "V2"], 0))
def test_a_dummy_run_is_nobodys(version: str, tmp_path: Path) -> None:
    """The runner still holds the batch of its last step."""
    with capturing(tmp_path / "run.zarr") as counts:
        module, runner = layer(), runner_of(version)
        runner.execute_model(STEPS[0].scheduled(module))
        plan = Plan({"c": 1, "d": 1}, [1, 1], [-1, -1], [1, 1], slots={"c": [7], "d": [8]})
        dummy = SimpleNamespace(model=lambda _: plan.forward(module), num_scheduled_tokens={})
        runner.execute_model(dummy) if version == "V1" else runner.execute_model(dummy, dummy_run=True)
    assert (counts.failures, counts.unclaimed) == (0, {})
    claims = [record.info.dispatch.get("lineage") for record in Store.open(tmp_path / "run.zarr").records]
    assert claims == [EXPECTED[0], None]


@pytest.mark.parametrize("version", quick(["V1", "V2"]))
def test_prompts_whose_tokens_do_not_decide_the_state(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt of `a` has an image, that of `b` a LoRA."""
    plain = request

    def special(name: str) -> SimpleNamespace:
        found = plain(name)
        setattr(found, *{"a": ("mm_features", [object()]), "b": ("lora_request", object())}[name])
        return found

    monkeypatch.setitem(globals(), "request", special)
    for found in run(tmp_path / "run.zarr", version, STEPS):
        assert set(found["prefixes"]) == {None}


def test_a_replay_has_the_requests_of_its_own_step(tmp_path: Path) -> None:
    """One graph of three sequences, captured in a dummy run and replayed in two steps."""
    plan = Plan({"c": 1, "d": 1, "e": 1}, [1, 1, 1], [-1] * 3, [1] * 3, slots={"c": [7], "d": [8], "e": [3]})
    graph = StandInGraph()
    with capturing_stand_in(tmp_path / "run.zarr", StandInStreams()) as counts:
        session = runtime.running[-1].session
        adapter = VllmAdapter()
        name = "fused_recurrent_gated_delta_rule_packed_decode"
        decode = session.wrap_target(adapter, Target(OPS, name), getattr(import_module(OPS), name))
        held = {**packed(3), **gate_parameters(), "initial_state": pool(), "use_qk_l2norm_in_kernel": True}
        held |= {
            "scale": 0.25,
            "out": torch.zeros(3, 1, HV, D).bfloat16(),
            "ssm_state_indices": ints(4, 1, 7),
        }
        scope = session.wrap_scope(adapter, adapter.scopes[0], lambda module: decode(**held))
        runner, kind = runner_of("V1"), import_module("vllm.v1.worker.gpu_model_runner").GPUModelRunner
        execute = session.wrap_step(adapter, adapter.steps[0], kind.execute_model)
        kind._prepare_inputs = session.wrap_part_of_step(
            adapter, adapter.parts_of_steps[0], kind._prepare_inputs
        )
        with (
            graph_of(graph),
            import_module("vllm.forward_context").set_forward_context({LAYER: plan.metadata()}),
        ):
            scope(layer())
        for tokens, computed in (({"b": 1, "a": 1}, [3, 5]), ({"a": 1}, [6])):
            step = Plan(tokens, computed, [-1] * len(tokens), [1] * len(tokens)).scheduled(None)
            step.model = lambda _: graph.replay()
            execute(runner, step)
        graph.replay()
    assert (counts.failures, counts.first_failure, counts.unclaimed) == (0, None, {})
    found = [record.info.dispatch.get("lineage") for record in Store.open(tmp_path / "run.zarr").records]
    assert [one and (one["requests"], one["positions"], one["padding"]) for one in found] == [
        (["b", "a", None], [3, 5, None], [2]),
        (["a", None, None], [6, None, None], [1, 2]),
        None,
    ]
