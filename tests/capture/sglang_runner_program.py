# SPDX-License-Identifier: Apache-2.0
"""A program on SGLang's own runner of models, to be captured: ForwardBatch.init_new, ModelRunner.forward, the
metadata of its linear attention and one layer run as they are, on a CPU. The runner is made without a model
and a configuration: below `forward` stands the layer over references of its kernels. Its scheduler is what
`main` says.

Prints one JSON line: digests by step of what the layer returned and left in its pool. The argument
`stale-slots` plants a bug: in the last step a has the row, and so the slot, of b. `wrong-commit` plants
another: of the verified drafts of a the state after the third goes into its slot, though two are right.
"""

from __future__ import annotations

import importlib
import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.capture.sglang_program import HV, Absent, D, Engine, H, digest, random, replace_kernels

DRAFTS = 3
INFO = "sglang.srt.model_executor.forward_batch_info"
SLOTS = {1: 4, 2: 7, 3: 2}
"""Of each row of requests: a has row 1, b row 2 and later 3."""


class Blank(SimpleNamespace):
    """Has None for what nobody set."""

    def __getattr__(self, name: str) -> None:
        return None


class Alone:
    """A configuration of one process."""

    def __getattr__(self, name: str) -> int | bool:
        return 1 if name.endswith("_size") else False


class Pool(Blank):
    def get_mamba_indices(self, rows: Tensor) -> Tensor:
        return torch.tensor([SLOTS[row] for row in rows.tolist()], dtype=torch.int32)

    def translate_mamba_indices(self, slots: Tensor) -> Tensor:
        return slots


class Server:
    """The runner and its layer, step by step."""

    def __init__(self, gdn: Any) -> None:
        self.engine = Engine(gdn)
        self.engine.pool.zero_()
        self.info = importlib.import_module(INFO)
        linear = self.engine.linear
        linear.req_to_token_pool = Pool(
            mamba2_layer_cache=lambda layer_id: self.engine.cache,
            size=9,
            mamba_pool=Blank(mamba_cache=self.engine.cache),
        )
        known = {"device": "cpu", "topk": 0, "forward_metadata": None, "_fused_state_indices_ok": False}
        for name, value in known.items():
            setattr(linear, name, value)
        runners = importlib.import_module("sglang.srt.model_executor.model_runner")
        self.runner = object.__new__(runners.ModelRunner)
        held = {
            "is_draft_worker": False, "device": "cpu", "forward_pass_id": 0, "msprobe_debugger": None,
            "canary_manager": None, "eplb_manager": None, "enable_elastic_ep": False, "lora_manager": None,
            "model_config": Blank(model_is_mrope=False), "prefill_attention_backend_str": "torch_native",
            "ngram_embedding_manager": Blank(enabled=False), "server_args": Blank(disaggregation_mode="null"),
            "kv_index_translator": Blank(own_plan=lambda batch: Blank(bind=lambda *a, **k: None)),
            "req_to_token_pool": linear.req_to_token_pool, "gpu_id": 0,
        }  # fmt: skip
        for name, value in held.items():
            object.__setattr__(self.runner, name, value)
        self.runner._forward_raw = self._forward
        runners.get_schedule = lambda: Blank(disable_overlap_schedule=True)
        runners.get_exec = lambda: Blank(moe=Blank())
        runners.get_parallel = self.info.get_parallel = Alone
        self.info.enable_num_token_non_padded = lambda: False
        self.out: Tensor | None = None

    def batch(self, mode: str, requests: dict[str, int], rows: list[int], lengths: list[int]) -> Any:
        """The ForwardBatch of requests and where their first tokens are."""
        starts = torch.tensor(list(requests.values()))
        counts, running = torch.tensor(lengths), self.info.ForwardMode[mode]
        seen = starts if running.is_target_verify() else starts + counts
        drafts = torch.cat([torch.arange(start, start + DRAFTS) for start in starts.tolist()])
        verifies = running.is_target_verify()
        given = Blank(
            forward_mode=running,
            seq_lens=seen,
            seq_lens_cpu=seen,
            seq_lens_sum=int(seen.sum()),
            input_ids=torch.zeros(sum(lengths), dtype=torch.int64),
            req_pool_indices=torch.tensor(rows),
            out_cache_loc=torch.zeros(sum(lengths), dtype=torch.int64),
            prefix_lens=starts.tolist(),
            extend_lens=lengths,
            extend_num_tokens=sum(lengths),
            reqs=[Blank(rid=name, extend_end=0, full_untruncated_fill_ids=[0]) for name in requests],
            spec_info=Blank(draft_token_num=DRAFTS, positions=drafts) if verifies else None,
        )
        mode_of_hidden = self.info.CaptureHiddenMode.NULL
        return self.info.ForwardBatch.init_new(
            given, self.runner, capture_hidden_mode=mode_of_hidden, return_hidden_states_before_norm=False
        )

    def _forward(self, batch: Any, *others: Any) -> Any:
        context = importlib.import_module("sglang.srt.model_executor.forward_context")
        engine, tokens = self.engine, len(batch.input_ids)
        engine.linear.init_forward_metadata(batch)
        mixed = random(tokens, 2 * H * D + HV * D).bfloat16()
        a, b = random(tokens, HV, seed=3).bfloat16(), random(tokens, HV, seed=5).bfloat16()
        with context.forward_context(context.ForwardContext(attn_backend=engine.backend)):
            self.out = engine.layer(batch, mixed, a, b)
        return Blank()

    def run(self, mode: str, requests: dict[str, int], rows: list[int], lengths: list[int]) -> str:
        with torch.no_grad():
            self.runner.forward(self.batch(mode, requests, rows, lengths))
        assert self.out is not None
        return digest(self.out, self.engine.pool)

    def commit(self, accepted: list[int]) -> None:
        """The states after the last right draft of each request, into its slot."""
        last = torch.tensor(accepted) - 1
        slots = self.engine.linear.forward_metadata.mamba_cache_indices.long()
        kept = self.engine.cache.intermediate_ssm[torch.arange(len(last)), last]
        self.engine.pool[slots] = kept.to(self.engine.pool.dtype)


def main() -> None:
    sys.meta_path.append(Absent())
    gdn = importlib.import_module("sglang.srt.layers.attention.linear.gdn_backend")
    replace_kernels(gdn)
    server, found = Server(gdn), []
    # The first chunk of a's prompt, and b's prompt; then the rest of a's beside a token of b.
    found.append(server.run("EXTEND", {"a": 0, "b": 0}, [1, 2], [5, 3]))
    found.append(server.run("MIXED", {"a": 5, "b": 3}, [1, 2], [3, 1]))
    found.append(server.run("DECODE", {"b": 4, "a": 8}, [2, 1], [1, 1]))
    found.append(server.run("TARGET_VERIFY", {"b": 5, "a": 9}, [2, 1], [DRAFTS, DRAFTS]))
    server.commit([1, 3 if "wrong-commit" in sys.argv else 2])
    # b is retracted, and begins again in another row and slot.
    found.append(server.run("DECODE", {"a": 11}, [1], [1]))
    found.append(server.run("EXTEND", {"b": 0}, [3], [6]))
    found.append(server.run("DECODE", {"a": 12}, [3 if "stale-slots" in sys.argv else 1], [1]))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
