# SPDX-License-Identifier: Apache-2.0
"""The states that the sequences of a prefill call start from and leave, for `gdnbench lineage`."""

from __future__ import annotations

import torch

from gdnbench_kernels.contract import Accesses, Call


def accesses(call: Call) -> tuple[Accesses, ...]:
    """Row n of initial_state and final_state is sequence n's, gathered from a pool that the call does not
    have. A sequence without tokens has no access."""
    lengths = call.tensors["cu_seqlens"].cpu().long().diff()
    sequences = torch.nonzero(lengths > 0).flatten()
    none = torch.empty((0, 3), dtype=torch.int64)
    reads = torch.stack([sequences, sequences, torch.zeros_like(sequences)], dim=1)
    writes = torch.stack([sequences, sequences, lengths[sequences]], dim=1)
    leaves = call.scalars.get("output_final_state", True)
    return (
        Accesses(
            "state",
            "initial_state",
            "final_state" if leaves else None,
            reads if "initial_state" in call.tensors else none,
            writes if leaves else none,
            lengths.clamp(min=0),
            pooled=False,
        ),
    )
