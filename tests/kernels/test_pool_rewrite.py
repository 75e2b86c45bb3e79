# SPDX-License-Identifier: Apache-2.0
"""The rewrite of a pool's slots in the simulator: it moves the bytes of a decode call, each of them once."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import active
from gdnbench_kernels.compiling import program
from gdnbench_kernels.gdn_decode.pool_rewrite import build
from gdnbench_kernels.programs import SM90
from gdnbench_kernels.source import Source

KEY = 0x5A5A5A5A
SLOTS, HEADS = 4, 1


@pytest.mark.parametrize(
    ("dtype", "vectors", "lookup"), [(torch.bfloat16, 1, True), (torch.float32, 2, False)], ids=str
)
def test_named_slots_are_rewritten_once_and_no_others(dtype: torch.dtype, vectors: int, lookup: bool) -> None:
    """Every word of the slots, 0 before, is the key: a word rewritten twice would be 0 again. With lookup,
    -1 writes nothing; without it sequence y has slot y."""
    source = Source.create(
        "gdn_decode.pool_rewrite",
        "gdnbench_kernels.gdn_decode.pool_rewrite:build",
        state_dtype=str(dtype).removeprefix("torch."),
        threads=256,
        vectors=vectors,
        lookup=lookup,
        pdl=lookup,
    )
    state = torch.zeros(SLOTS, HEADS, 128, 128, dtype=dtype)
    indices = torch.tensor([[3], [-1], [1]] if lookup else [[-1], [-1]], dtype=torch.int32)
    written = {3, 1} if lookup else {0, 1}
    with active(), programs_simulated():
        program(source, SM90)(state, indices, KEY)
    words = state.view(torch.int32)
    for slot in range(SLOTS):
        assert (words[slot] == (KEY if slot in written else 0)).all()


def test_tiles_that_do_not_divide_a_state_are_refused() -> None:
    with pytest.raises(ValueError, match="96 threads x 1 vectors"):
        build("float32", 96, 1, True, True)
