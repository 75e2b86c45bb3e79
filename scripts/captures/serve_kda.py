# SPDX-License-Identifier: Apache-2.0
"""Records what a server calls of Kimi Delta Attention: batches of requests over a pool of bfloat16 states.

    python scripts/captures/serve_kda.py MODELS_DIR STORE.zarr kda_prefill|kda_decode

MODELS_DIR has the folders kimi_linear and bailing_hybrid. As in serve.py, each request runs through plain
transformers, and the inputs of one layer's kernel are taken from there and laid out as a server does. Servers
give their kernels the outputs of the projections, not gates and step sizes: x and the logits of beta, with
A_log and dt_bias beside them. The first model has the unbounded gate, the second one the bounded.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from corpus import corpus
from serve import watched
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.bailing_hybrid import modeling_bailing_hybrid as bailing
from transformers.models.kimi_linear import modeling_kimi_linear as kimi

from gdnbench.capture import CaptureOptions, capturing, record
from gdnbench_kernels.kda import KdaGates

LAYER = 2
"""The last layer of either model, whose first head remembers longest."""
POOL_DTYPE = "bfloat16"
LOWER_BOUND = -5.0


@dataclass(frozen=True, slots=True)
class Activations:
    """The inputs of one layer's Kimi Delta Attention: q, k, v, x [T, H, 128] and logits [T, H], and the
    layer's parameters A_log [H] and dt_bias [H, 128]."""

    tokens: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
    parameters: tuple[Tensor, Tensor]
    lower_bound: float | None

    def __getitem__(self, part: slice) -> Activations:
        return Activations(
            tuple(x[part] for x in self.tokens),  # type: ignore[arg-type]
            self.parameters,
            self.lower_bound,
        )

    def head(self, number: int) -> Activations:
        """Of one head, as the rank of a server that divides them has it."""
        only = slice(number, number + 1)
        return Activations(
            tuple(x[:, only].contiguous() for x in self.tokens),  # type: ignore[arg-type]
            (self.parameters[0][only], self.parameters[1][only]),
            self.lower_bound,
        )

    def __len__(self) -> int:
        return len(self.tokens[0])

    def fresh_state(self) -> Tensor:
        """Zeros, [1, H, V, K]."""
        heads, dim = self.tokens[0].shape[1:]
        return torch.zeros(1, heads, dim, dim, dtype=torch.bfloat16)


def gated(
    g: Tensor, beta: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float | None
) -> tuple[Tensor, Tensor]:
    """The log decays and the step sizes, in fp32."""
    gates = KdaGates("raw" if lower_bound is None else "bounded", "logit", 1.0, A_log, dt_bias, lower_bound)
    return gates.log_decay(g, torch.float32), gates.step_size(beta, torch.float32)


# What is recorded, with the parameters of the contracts.


def prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    lower_bound: float | None = None,
    final_state_dtype: str = POOL_DTYPE,
) -> tuple[Tensor, Tensor]:
    """transformers' chunked rule, sequence by sequence; states are [N, H, V, K]."""
    g, beta = gated(g, beta, A_log, dt_bias, lower_bound)
    bounds = cu_seqlens.tolist()
    o, final = torch.empty_like(v), v.new_empty(len(bounds) - 1, v.shape[1], v.shape[2], k.shape[2])
    for n, tokens in enumerate(map(slice, bounds, bounds[1:])):
        out, state = kimi.chunk_kimi_delta_attention(
            *(x[None, tokens] for x in (q, k, v)),
            g=g[None, tokens],
            beta=beta[None, tokens],
            initial_state=None if initial_state is None else initial_state[n : n + 1].mT,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        o[tokens], final[n] = out[0], state[0].mT
    return o, final


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    state_indices: Tensor,
    num_accepted: Tensor | None = None,
    lower_bound: float | None = None,
) -> Tensor:
    """transformers' recurrent rule, token by token; `state` [slots, H, V, K] is updated in place."""
    g, beta = gated(g, beta, A_log, dt_bias, lower_bound)
    o = torch.zeros_like(v)
    for i, slots in enumerate(state_indices.tolist()):
        read = slots[0 if num_accepted is None else int(num_accepted[i]) - 1]
        if read < 0:
            continue
        current = state[read : read + 1].mT.float()
        for t, slot in enumerate(slots):
            one = (slice(i, i + 1), slice(t, t + 1))
            out, current = kimi.recurrent_kimi_delta_attention(
                q[one],
                k[one],
                v[one],
                g=g[one],
                beta=beta[one],
                initial_state=current,
                output_final_state=True,
                use_qk_l2norm_in_kernel=True,
            )
            o[i, t] = out[0, 0]
            if slot >= 0:
                state[slot] = current[0].mT
    return o


def recorded(op: str, function: Callable[..., Any], gate: str) -> Callable[..., Any]:
    conventions = {"gate": gate, "beta_form": "logit", "qk": "raw"}
    return record(op, conventions=conventions)(function)


PREFILL = {gate: recorded("kda_prefill", prefill, gate) for gate in ("raw", "bounded")}
DECODE = {gate: recorded("kda_decode", decode, gate) for gate in ("raw", "bounded")}


# What the models compute.


@dataclass(frozen=True, slots=True)
class Server:
    """A model, and the form of its gate."""

    model: PreTrainedModel
    module: Any
    gate: str

    def run(self, tokens: Sequence[int]) -> tuple[Activations, list[int]]:
        """(activations of every token in the recorded layer, the byte that the model expects after each)."""
        layer = self.model.model.layers[LAYER].self_attn
        gate = layer.forget_gate
        kept: dict[str, Tensor] = {}
        projections = {"x": gate.f_b_proj if self.gate == "raw" else gate.f_proj, "b": layer.b_proj}
        hooks = [
            module.register_forward_hook(lambda _, __, out, name=name: kept.update({name: out[0]}))
            for name, module in projections.items()
        ]
        calls: list[tuple[Any, ...]] = []
        with watched(self.module, "chunk_kimi_delta_attention", calls):
            logits = self.model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits
        for hook in hooks:
            hook.remove()
        (q, k, v), _ = calls[LAYER - 1]  # layer 0 has none
        heads, dim = q.shape[2:]
        found = Activations(
            (q[0], k[0], v[0], kept["x"].unflatten(-1, (heads, dim)), kept["b"]),
            (gate.A_log.detach().float().flatten(), gate.dt_bias.detach().float().view(heads, dim)),
            None if self.gate == "raw" else LOWER_BOUND,
        )
        return found, logits[0].argmax(1).tolist()

    def prefill(self, part: Activations, lengths: Sequence[int], states: Tensor | None) -> Tensor:
        """Record a prefill of these sequences in one row; returns the states after them."""
        offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        given = (*part.tokens, *part.parameters, offsets, states)
        final: Tensor = PREFILL[self.gate](*given, **bound_of(part))[1]
        return final


def bound_of(part: Activations) -> dict[str, float]:
    return {} if part.lower_bound is None else {"lower_bound": part.lower_bound}


def joined(parts: Sequence[Activations], how: Callable[[Any], Tensor]) -> Activations:
    rows = zip(*(part.tokens for part in parts), strict=True)
    return Activations(tuple(how(row) for row in rows), parts[0].parameters, parts[0].lower_bound)  # type: ignore[arg-type]


def state_after(part: Activations) -> Tensor:
    """[1, H, V, K] after all tokens, from zeros."""
    offsets = torch.tensor([0, len(part)], dtype=torch.int32)
    return prefill(*part.tokens, *part.parameters, offsets, None, **bound_of(part))[1]


# Scenarios.


def kda_prefill(raw: Server, bounded: Server, text: bytes) -> None:
    """With the bounded gate three fresh prompts in one row, of 33, 1 and 14 tokens. With the unbounded one
    two more pieces of a prompt of which 200 tokens were prefilled before: 35 and 13 tokens, each from the
    state that the last piece left."""
    pieces = (text[1000:1033], text[2000:2001], text[4000:4014])
    parts = [bounded.run(piece)[0] for piece in pieces]
    bounded.prefill(joined(parts, torch.cat), [len(part) for part in parts], None)
    activations, _ = raw.run(text[8000:8248])
    state = state_after(activations[:200])
    for piece in (activations[200:235], activations[235:]):
        state = raw.prefill(piece, [len(piece)], state)


def kda_decode(raw: Server, bounded: Server, text: bytes) -> None:
    """With the unbounded gate a step of a batch of two rows, one of them padding, over a pool of three slots.
    With the bounded one a step of speculative decoding, drafts of 3 tokens with a slot each, of a request of
    which 2 tokens were accepted, and padding: the first head alone, as the rank of a server has it."""
    activations, _ = raw.run(text[10000:10201])
    pool = activations.fresh_state().repeat(3, 1, 1, 1)
    pool[1] = state_after(activations[:200])[0]
    step = joined([activations[200:201]] * 2, torch.stack)
    DECODE["raw"](*step.tokens, *step.parameters, pool, torch.tensor([[1], [-1]], dtype=torch.int32))

    activations = bounded.run(text[12000:12164])[0].head(0)
    slots = [4, 1, 2]
    pool = activations.fresh_state().repeat(6, 1, 1, 1)
    for draft in range(2):  # the last step's drafts, of which the third was rejected
        pool[slots[draft]] = state_after(activations[: 160 + draft])[0]
    step = joined([activations[161:164]] * 2, torch.stack)
    indices = torch.tensor([slots, [-1] * 3], dtype=torch.int32)
    accepted = torch.tensor([2, 1], dtype=torch.int32)
    DECODE["bounded"](*step.tokens, *step.parameters, pool, indices, accepted, **bound_of(step))


SCENARIOS: dict[str, Callable[[Server, Server, bytes], None]] = {
    function.__name__: function for function in (kda_prefill, kda_decode)
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models_dir", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("scenario", choices=SCENARIOS)
    options = parser.parse_args()

    def loaded(name: str) -> PreTrainedModel:
        folder = options.models_dir / name
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    servers = (
        Server(loaded("kimi_linear"), kimi, "raw"),
        Server(loaded("bailing_hybrid"), bailing, "bounded"),
    )
    text = corpus()[-65536:]
    # By name: not the calls of the models' own layers.
    capture = CaptureOptions(layer=("prefill", "decode"), zstd=9)
    with torch.no_grad(), capturing(options.store, capture):
        SCENARIOS[options.scenario](*servers, text)


if __name__ == "__main__":
    main()
