# SPDX-License-Identifier: Apache-2.0
"""Whose the calls of SGLang's layers are: a few steps of two requests through a runner of models of its name.
What is expected is written from the steps, not from what capture reads."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gdnbench.capture import CaptureOptions, capturing
from gdnbench.capture.recorder import Counts
from gdnbench.lineage.check import check_stores
from gdnbench.lineage.finding import Break, Unknown
from gdnbench.store.reader import Store
from tests.capture.frameworks import framework
from tests.capture.test_sglang import ints, kernel_of, pool, prefill, raw
from tests.subset import quick

DRAFTS = 3
MODES = ("extend", "decode", "target_verify", "dllm_extend")
RUNNER = "sglang.srt.model_executor.model_runner"


@pytest.fixture(autouse=True)
def sglang() -> Iterator[None]:
    with framework():
        yield


def mode(name: str) -> SimpleNamespace:
    """A ForwardMode; verification and diffusion are kinds of extend."""
    asked = {f"is_{one}": one == name for one in MODES} | {"is_extend": name != "decode"}
    return SimpleNamespace(**{one: lambda said=said: said for one, said in asked.items()})


def batch(name: str, requests: dict[str, int], lengths: list[int] | None = None, **more: Any) -> Any:
    """A ForwardBatch of requests and where their first tokens are."""
    starts = list(requests.values())
    counts = lengths or [DRAFTS if name == "target_verify" else 1] * len(starts)
    tokens = [torch.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
    return SimpleNamespace(
        forward_mode=mode(name),
        rids=list(requests),
        batch_size=len(starts),
        positions=torch.cat(tokens),
        extend_prefix_lens=torch.tensor(starts, dtype=torch.int32) if name == "extend" else None,
        extend_seq_lens_cpu=lengths,
        spec_info=SimpleNamespace(draft_token_num=DRAFTS),
        **more,
    )


class Engine:
    """A runner with one layer and its pool."""

    def __init__(self, **more: Any) -> None:
        self.runner = import_module(RUNNER).ModelRunner(**more)
        self.kernel, self.pool = kernel_of("triton"), pool()
        self.pool.zero_()
        self.layer = import_module("sglang.srt.layers.radix_linear_attention").RadixLinearAttention(3, None)

    def extend(self, given: Any, slots: list[int]) -> None:
        bounds = torch.tensor([0, *given.extend_seq_lens_cpu]).cumsum(0).int()
        call = prefill(bounds, ints(*slots), ssm_states=self.pool)
        self.run(given, self.kernel.extend, call)

    def decode(self, given: Any, slots: list[int]) -> None:
        bounds = torch.arange(len(slots) + 1, dtype=torch.int32)
        call = raw(len(slots), cache_indices=ints(*slots), query_start_loc=bounds, ssm_states=self.pool)
        self.run(given, self.kernel.decode, call)

    def verify(self, given: Any, slots: list[int]) -> None:
        """The states after each draft go to a buffer."""
        count = len(slots)
        bounds = torch.arange(0, (count + 1) * DRAFTS, DRAFTS, dtype=torch.int32)
        kept = torch.zeros(9, DRAFTS, *self.pool.shape[1:])
        call = raw(
            count * DRAFTS,
            cache_indices=ints(*slots),
            query_start_loc=bounds,
            ssm_states=self.pool,
            intermediate_states_buffer=kept,
            intermediate_state_indices=torch.arange(count, dtype=torch.int32),
            cache_steps=DRAFTS,
            retrieve_parent_token=None,
        )
        self.run(given, self.kernel.target_verify, call)
        self.kept = kept

    def commit(self, slots: list[int], accepted: list[int]) -> None:
        for row, (slot, count) in enumerate(zip(slots, accepted, strict=True)):
            self.pool[slot] = self.kept[row, count - 1]

    def run(self, given: Any, kernel: Any, call: dict[str, Any]) -> None:
        self.layer.backend = kernel
        given.model = lambda _: self.layer(**call)
        self.runner.forward(given)


def claims_of(path: Path) -> list[Any]:
    """Without the digests of what is kept of drafts, of which there must be one a draft."""
    found = [record.info.dispatch.get("lineage") for record in Store.open(path).records]
    for claims in found:
        if claims is not None and "kept" in claims:
            assert [len(one) for one in claims.pop("kept_digests")] == [DRAFTS] * len(claims["kept"])
    return found


def run(path: Path, stale: int | None = None, options: CaptureOptions | None = None) -> None:
    """Steps of two requests; in the last one a has the slot `stale`."""
    with capturing(path, options) as counts:
        engine = Engine()
        # The first chunk of a's prompt, and b's prompt.
        engine.extend(batch("extend", {"a": 0, "b": 0}, [5, 3]), [4, 7])
        # The rest of a's prompt beside a token of b.
        engine.extend(batch("extend", {"a": 5, "b": 3}, [3, 1]), [4, 7])
        # The batch in another order, filled up to three rows.
        engine.decode(batch("decode", {"b": 4, "a": 8}), [7, 4, -1])
        engine.verify(batch("target_verify", {"b": 5, "a": 9}), [7, 4])
        engine.commit([7, 4], [1, 2])
        # b is retracted, and begins again in another slot, with what it has answered.
        engine.decode(batch("decode", {"a": 11}), [4])
        engine.pool[2] = 0
        engine.extend(batch("extend", {"b": 0}, [6]), [2])
        engine.decode(batch("decode", {"a": 12}), [stale or 4])
    assert (counts.failures, counts.first_failure, counts.passed_over, counts.unclaimed) == (0, None, {}, {})


def test_requests_of_each_step(tmp_path: Path) -> None:
    run(tmp_path / "run.zarr")
    assert claims_of(tmp_path / "run.zarr") == [
        {"requests": ["a", "b"], "positions": [0, 0], "padding": [], "slots": [4, 7]},
        {"requests": ["a", "b"], "positions": [5, 3], "padding": [], "slots": [4, 7]},
        {"requests": ["b", "a", None], "positions": [4, 8, None], "padding": [2]},
        {"requests": ["b", "a"], "positions": [5, 9], "padding": [], "kept": [0, 1]},
        {"requests": ["a"], "positions": [11], "padding": []},
        {"requests": ["b"], "positions": [0], "padding": [], "slots": [2]},
        {"requests": ["a"], "positions": [12], "padding": []},
    ]
    report = check_stores([Store.open(tmp_path / "run.zarr")])
    assert (report.breaks, report.total("reads"), report.total("right")) == (0, 11, 11)


@pytest.mark.slow
def test_lineage_of_digests(tmp_path: Path) -> None:
    run(tmp_path / "run.zarr", options=CaptureOptions(digests=True))
    report = check_stores([Store.open(tmp_path / "run.zarr")])
    assert (report.breaks, report.total("reads"), report.total("right")) == (0, 11, 11)


@pytest.mark.slow
@pytest.mark.parametrize("digests", [False, True])
def test_lineage_of_a_stale_slot(digests: bool, tmp_path: Path) -> None:
    """The one that b has since the step before."""
    run(tmp_path / "run.zarr", stale=2, options=CaptureOptions(digests=digests))
    report = check_stores([Store.open(tmp_path / "run.zarr")])
    (process,) = report.processes
    (found,) = [one for chain in process.chains for one in chain.findings]
    assert found.kind is Break.SHARED_SLOT
    assert (process.table.requests[found.found.request], found.found.position) == ("a", 12)


def tracked(path: Path, materialised: bool, options: CaptureOptions | None = None) -> Counts:
    """The scheduling strategy extra_buffer: of each verification the state at a position that is a multiple
    of 6 goes to a slot for the prefix cache. With SGLang #36537 planted it goes there before the engine knows
    which drafts are right. Request c has a's prompt and answer so far and begins at the cached position; then
    a is retracted, and begins there too."""
    with capturing(path, options) as counts:
        engine = Engine()
        engine.extend(batch("extend", {"a": 0}, [9]), [4])
        engine.verify(batch("target_verify", {"a": 9}), [4])
        engine.commit([4], [2])
        if materialised:
            engine.pool[8] = engine.kept[0, 2]  # after position 12; of the drafts 10 and 11 are right
        engine.verify(batch("target_verify", {"a": 11}), [4])
        engine.commit([4], [3])
        if not materialised:
            engine.pool[8] = engine.kept[0, 0]
        for name, slot in (("c", 6), ("a", 5)):
            engine.pool[slot] = engine.pool[8]
            engine.extend(batch("extend", {name: 12}, [2], mamba_track_indices=ints(8)), [slot])
    assert (counts.failures, counts.first_failure) == (0, None)
    return counts


@pytest.mark.parametrize("digests", quick((False, True), 0))
def test_states_of_the_prefix_cache_that_were_committed(digests: bool, tmp_path: Path) -> None:
    tracked(tmp_path / "run.zarr", False, CaptureOptions(digests=digests))
    report = check_stores([Store.open(tmp_path / "run.zarr")])
    assert (report.breaks, report.total("reads"), report.total("right")) == (0, 5, 4)
    assert report.unknown == {Unknown.NO_PREFIX: 1}  # c's tokens are not known to be a's


@pytest.mark.parametrize("digests", quick((False, True), 0))
def test_a_draft_in_the_prefix_cache_before_it_is_accepted(digests: bool, tmp_path: Path) -> None:
    """Of c nobody knows that its tokens are not the draft's, and that no request before the recording had
    them."""
    tracked(tmp_path / "run.zarr", True, CaptureOptions(digests=digests))
    report = check_stores([Store.open(tmp_path / "run.zarr")])
    (process,) = report.processes
    assert report.unknown == {Unknown.NO_PREFIX: 1}
    found = [one for chain in process.chains for one in chain.findings]
    assert [
        (one.kind, one.damage.call, one.damage.position, process.table.requests[one.found.request])
        for one in found
    ] == [(Break.REJECTED_DRAFT, 1, 12, "a")]


def test_the_trigger_keeps_the_read_of_such_a_draft(tmp_path: Path) -> None:
    for materialised in (False, True):
        counts = tracked(tmp_path / f"{materialised}.zarr", materialised, CaptureOptions(on_lineage=True))
        assert (counts.looked_at, counts.triggered) == (5, int(materialised))


COMMITS: dict[str, tuple[list[int], list[int], Break, str]] = {
    "one draft too many": ([7, 4], [1, 3], Break.REJECTED_DRAFT, "a"),
    "one draft too few": ([7, 4], [1, 1], Break.OLDER_VERSION, "a"),
    "of another request": ([4, 7], [2, 2], Break.SHARED_SLOT, "a"),
    "none": ([], [], Break.OLDER_VERSION, "a"),
}
"""Slots and accepted drafts of b and a, where slots 7 and 4 and counts 1 and 2 are right."""


@pytest.mark.parametrize("case", quick(COMMITS, 0))
@pytest.mark.parametrize("digests", quick((False, True), 1))
def test_a_wrong_commit(case: str, digests: bool, tmp_path: Path) -> None:
    slots, accepted, kind, request = COMMITS[case]
    with capturing(tmp_path / "run.zarr", CaptureOptions(digests=digests)):
        engine = Engine()
        engine.extend(batch("extend", {"a": 0, "b": 0}, [9, 5]), [4, 7])
        engine.verify(batch("target_verify", {"b": 5, "a": 9}), [7, 4])
        engine.commit(slots, accepted)
        engine.decode(batch("decode", {"a": 11}), [4])
    (process,) = check_stores([Store.open(tmp_path / "run.zarr")]).processes
    (found,) = [one for chain in process.chains for one in chain.findings]
    assert (found.kind, process.table.requests[found.found.request], found.found.position) == (
        kind,
        request,
        11,
    )


CONV_D, TAPS = 6, 4


@pytest.mark.parametrize("accepted", quick((2, 3, 1), 0, 1))
@pytest.mark.parametrize("digests", quick((False, True), 0))
def test_the_commit_of_a_window(accepted: int, digests: bool, tmp_path: Path) -> None:
    """Of a's drafts two are right. The windows of a request lie over each other in the buffer."""
    drawn = torch.Generator().manual_seed(7)
    windows = torch.zeros(9, CONV_D, TAPS - 1)
    stored = torch.zeros(2, CONV_D, DRAFTS + TAPS - 2)
    kept = stored.as_strided((2, DRAFTS, CONV_D, TAPS - 1), (stored.stride(0), 1, stored.stride(1), 1))
    weight = torch.randn(CONV_D, TAPS, generator=drawn)
    with capturing(tmp_path / "run.zarr", CaptureOptions(digests=digests)) as counts:
        engine, module = Engine(), import_module("sglang.srt.layers.attention.linear.gdn_backend")

        def prompt(given: Any, length: int, slot: int) -> None:
            call = {
                "x": torch.randn(CONV_D, length, generator=drawn),
                "conv_states": windows,
                "seq_lens_cpu": [length],
            }
            call |= {
                "query_start_loc": ints(0, length),
                "cache_indices": ints(slot),
                "bias": None,
                "weight": weight,
            }
            engine.run(given, module.causal_conv1d_fn, call)

        def update(given: Any, tokens: int, slot: int, **more: Any) -> None:
            x = torch.randn(1, CONV_D, tokens, generator=drawn)
            call = {"x": x, "conv_state": windows, "weight": weight, "conv_state_indices": ints(slot), **more}
            engine.run(given, module.causal_conv1d_update, call)

        prompt(batch("extend", {"a": 0}, [9]), 9, 4)
        buffer = {"intermediate_conv_window": kept, "intermediate_state_indices": ints(1)}
        update(batch("target_verify", {"a": 9}), DRAFTS, 4, **buffer)
        windows[4] = kept[1, accepted - 1]
        update(batch("decode", {"a": 11}), 1, 4)
    assert (counts.failures, counts.first_failure, counts.unclaimed) == (0, None, {})
    report = check_stores([Store.open(tmp_path / "run.zarr")])
    kinds = [one.kind for chain in report.processes[0].chains for one in chain.findings]
    assert report.total("reads") == 2
    assert kinds == {1: [Break.OLDER_VERSION], 2: [], 3: [Break.REJECTED_DRAFT]}[accepted]
    assert report.total("right") == 2 - len(kinds)


@pytest.mark.slow
def test_slots_of_a_copy_of_the_pool(tmp_path: Path) -> None:
    """A backend whose kernels need one after another copies them; its metadata has their own slots."""
    context = import_module("sglang.srt.model_executor.forward_context")
    metadata = SimpleNamespace(mamba_cache_indices=ints(4, 7))
    backend = SimpleNamespace(linear_attn_backend=SimpleNamespace(forward_metadata=metadata))
    with capturing(tmp_path / "run.zarr"), context.forward_context(backend):
        Engine().extend(batch("extend", {"a": 0, "b": 0}, [5, 3]), [0, 1])
    (found,) = claims_of(tmp_path / "run.zarr")
    assert found["slots"] == [4, 7]


UNKNOWN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a draft model's worker": ({"is_draft_worker": True}, {}),
    "context parallel": ({}, {"attn_cp_metadata": object()}),
    "two batches that overlap": ({}, {"tbo_split_seq_index": 1}),
    "items to score": ({}, {"multi_item_delimiter_indices": [ints(2)]}),
    "requests without a name": ({}, {"rids": None}),
    "diffusion": ({}, {"forward_mode": mode("dllm_extend")}),
}


@pytest.mark.parametrize("case", quick(UNKNOWN))
def test_calls_that_are_nobodys(case: str, tmp_path: Path) -> None:
    runner, more = UNKNOWN[case]
    given = batch("extend", {"a": 0, "b": 0}, [5, 3])
    for name, value in more.items():
        setattr(given, name, value)
    with capturing(tmp_path / "run.zarr") as counts:
        Engine(**runner).extend(given, [4, 7])
    assert (counts.failures, counts.records, counts.unclaimed) == (0, 1, {})
    assert claims_of(tmp_path / "run.zarr") == [None]


ELSEWHERE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "states within a prompt": ({}, {"mamba_track_indices": ints(8, 8)}),
    "states in fewer bits": ({"req_to_token_pool": SimpleNamespace(mamba_ckpt_pool=object())}, {}),
    "another host": ({"server_args": SimpleNamespace(disaggregation_mode="decode")}, {}),
}


@pytest.mark.parametrize("case", quick(ELSEWHERE))
def test_states_that_come_from_elsewhere(case: str, tmp_path: Path) -> None:
    runner, more = ELSEWHERE[case]
    with capturing(tmp_path / "run.zarr"):
        Engine(**runner).extend(batch("extend", {"a": 0, "b": 0}, [5, 3], **more), [4, 7])
    (found,) = claims_of(tmp_path / "run.zarr")
    assert found["elsewhere"] is True
