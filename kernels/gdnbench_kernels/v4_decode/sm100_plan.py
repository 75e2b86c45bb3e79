"""The plan of kernel_sm100.py: that of swa_decode's kernel, whose tile of entries is an item there and one of
several here. CuTe DSL."""

from __future__ import annotations

from dataclasses import replace

from gdnbench_kernels.plan import Sync
from gdnbench_kernels.swa_decode import sm100_plan

PLAN = replace(
    sm100_plan.PLAN,
    name="tcgen05_segments",
    does={
        **sm100_plan.PLAN.does,
        "SOFTMAX": "S from TMEM, softmax over the tiles so far, P into s_p; c; lse",
        "EPILOGUE": "O in TMEM times c; after the last tile divided, to memory",
        "GATHER": "rows of both segments from the pages, as bf16 into s_kv; their factors",
    },
    syncs=(
        *sm100_plan.PLAN.syncs,
        Sync("tcgen05.wait::st", "EPILOGUE", "O rescaled before a product adds to it"),
    ),
)
