# SPDX-License-Identifier: Apache-2.0
"""The tensors, scalars and stages that the decode operations of the delta rule share."""

from __future__ import annotations

from gdnbench_kernels.contract import Role, ScalarSpec, Stage, TensorSpec
from gdnbench_kernels.gdn import ACTIVATIONS, OFFSETS, STATES

QKV = (
    TensorSpec("q", ("B", "S", "H", "K"), ACTIVATIONS, Role.INPUT, "queries"),
    TensorSpec("k", ("B", "S", "H", "K"), ACTIVATIONS, Role.INPUT, "keys, of q's dtype"),
    TensorSpec(
        "v", ("B", "S", "Hv", "V"), ACTIVATIONS, Role.INPUT, "values, of q's dtype; Hv is a multiple of H"
    ),
)

POOL = (
    TensorSpec(
        "state",
        ("slots", "Hv", "V", "K"),
        STATES,
        Role.MUTATED,
        "the state pool; its slots may lie further apart than they are long",
        pool_index="state_indices",
        axes_by={("state_layout", "KV"): ("slots", "Hv", "K", "V")},
    ),
    TensorSpec("state_indices", ("B", "S"), OFFSETS, Role.INPUT, "slot of each token's state; -1 is padding"),
    TensorSpec(
        "num_accepted",
        ("B",),
        ("int32",),
        Role.INPUT,
        "which token's slot holds the state to read, counted from 1; 1 if absent",
        optional=True,
    ),
    TensorSpec(
        "read_indices",
        ("B",),
        ("int32",),
        Role.INPUT,
        "slot that each sequence reads, -1 for padding; not together with num_accepted",
        optional=True,
    ),
)

OUTPUT = TensorSpec("o", ("B", "S", "Hv", "V"), ACTIVATIONS, Role.OUTPUT, "outputs, of v's dtype")

SCALE = ScalarSpec("scale", float, None, "factor of the output; K ** -0.5 unless given")


def stage(name: str, axes: tuple[str, ...], meaning: str, formula: str) -> Stage:
    """A stage of decode, which kernels keep in registers as fp32."""
    return Stage(TensorSpec(name, axes, ("float32",), Role.OUTPUT, meaning), formula, "float32")


BETA = stage("beta_t", ("B", "S", "Hv"), "step size", "beta, or beta_max sigmoid(b)")
QUERIES_AND_KEYS = (
    stage("q_t", ("B", "S", "H", "K"), "queries", "q, or q (sum q^2 + 1e-6)^-1/2"),
    stage("k_t", ("B", "S", "H", "K"), "keys", "k, or k (sum k^2 + 1e-6)^-1/2"),
)
