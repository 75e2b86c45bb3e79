# SPDX-License-Identifier: Apache-2.0
"""The commits of the repository, in order: the regressions that are to be found, and plausible others."""

from __future__ import annotations

from tests.bisect.regressions import inverse_by_newton
from tests.bisect.regressions.edits import Edit, replace, write

GOOD = "v1.0"
INVERSE, BETA, TAIL, BARRIER, OPERAND, FENCE = "inverse", "beta", "tail", "barrier", "operand", "fence"
"""Tags of the commits that are to be found."""
BEFORE_BARRIER, WITH_BARRIER = "v1.1", "v1.2"
BEFORE_OPERAND, WITH_OPERAND = "v1.3", "v1.4"
"""Releases whose results do not depend on the schedule, and those whose do."""
BEFORE_FENCE, WITH_FENCE = "v1.5", "v1.6"
"""One that the checker finds nothing in, and one that no number shows to be wrong."""

_README = "# served_kernels\n"
_COMMIT = "        cute.arch.cp_async_bulk_commit_group()\n"
_WAIT = "        cute.arch.cp_async_bulk_wait_group(0, read=True)\n"
_ACQUIRE, _OPERAND = (
    f"            pipelines.{call}\n" for call in ("d2.producer_acquire(d2)", "vs.consumer_wait(vs)")
)
_FENCE = '                cute.arch.fence_proxy("async.shared", space="cta")\n'
_WARPS, _GROUP_WARPS = (f"{name} = CHUNK // ROWS_OF_WARP\n" for name in ("WARPS", "GROUP_WARPS"))

HISTORY = (
    Edit(
        "Say what is served",
        write("README.md", f"{_README}Gated DeltaNet kernels of a server: prefill and decode."),
    ),
    Edit(
        "Rows of a fragment: the lane's first",
        replace(
            "triangle",
            "return ROWS_OF_WARP * warp + lane // 4 + 8 * half",
            "return lane // 4 + 8 * half + ROWS_OF_WARP * warp",
        ),
    ),
    Edit("Notes on chunks", write("notes/chunks.md", "A chunk has 64 tokens. The last may have fewer.")),
    Edit(
        "decode: say which gates it takes",
        replace(
            "decode", "Updates `state` in place and returns o.", "Gates in log. Updates `state`, returns o."
        ),
    ),
    Edit("A smoke test", write("tests/test_import.py", "def test_import():\n    import served_kernels")),
    Edit("inverse: one name for a fragment's places", inverse_by_newton.rename("_place", "_place_in_block")),
    Edit("Who to ask", write("OWNERS", "kernels@example.org")),
    Edit("inverse: diagonal blocks on tensor cores", inverse_by_newton.introduce, "newton"),
    Edit("Notes on the inverse", write("notes/inverse.md", "Newton-Schulz squares its residual.")),
    # A name is forgotten.
    Edit(
        "chunk_uw: warps of a group get a shorter name", replace("chunk_uw", _GROUP_WARPS, _WARPS), "broken"
    ),
    Edit("Ignore caches", write(".gitignore", "__pycache__/")),
    Edit("chunk_uw: the name that was forgotten", replace("chunk_uw", _WARPS, _GROUP_WARPS), "mended"),
    Edit("Notes on decode", write("notes/decode.md", "One token a call.")),
    Edit(
        "chunk_uw: turns are of items",
        replace(
            "chunk_uw",
            "# One turn more than items: each turn issues",
            "# There is one turn more than items: each turn issues",
        ),
    ),
    Edit("Notes on gates", write("notes/gates.md", "A gate is the log of a decay, at most 0.")),
    Edit(
        "inverse: three rounds do for blocks of 16",
        replace("inverse", "cutlass.range_constexpr(4)", "cutlass.range_constexpr(3)"),
        INVERSE,
    ),
    Edit("Notes on speed", write("notes/speed.md", "The inverse takes fewer products than it did.")),
    Edit(
        "triangle: columns before rows",
        replace("triangle", "return 8 * n + 2 * (lane % 4) + j", "return 2 * (lane % 4) + 8 * n + j"),
    ),
    Edit(
        "README: how to test",
        write("README.md", f"{_README}Gated DeltaNet kernels of a server. `pytest` tests them."),
    ),
    Edit(
        "decode: gates in the dtype of activations",
        replace("decode", "beta = beta.float()", "beta = beta.to(v.dtype).float()"),
        BETA,
    ),
    Edit("Notes on states", write("notes/states.md", "A state is kept in fp32.")),
    Edit(
        "chunk_output: who reads a tile",
        replace(
            "chunk_output",
            "The plan's buffers of tiles in shared memory",
            "The plan's tiles in shared memory",
        ),
    ),
    Edit(
        "chunk_uw: a tail of values is multiplied by a beta of 0 and need not be cleared",
        replace("chunk_uw", "for s_tile in (shared.k, shared.v):", "for s_tile in (shared.k,):"),
        TAIL,
    ),
    Edit("Notes on tails", write("notes/tails.md", "Behind the end of a sequence beta is 0.")),
    Edit(
        "decode: outputs by name",
        replace("decode", "What the server calls for a step of decode.", "A step of decode."),
    ),
    Edit(
        "README: releases",
        write("README.md", f"{_README}Kernels of a server. Releases are tags."),
        BEFORE_BARRIER,
    ),
    Edit(
        "chunk_state: who scans",
        replace(
            "chunk_state",
            "Store S as the final state, if the call asks for it.",
            "Store S as the final state.",
        ),
    ),
    Edit(
        "chunk_state: a store has been read by the time its stage is written again",
        replace("chunk_state", _WAIT, ""),
        BARRIER,
    ),
    Edit("Notes on stores", write("notes/stores.md", "h and V_new leave by TMA.")),
    Edit(
        "chunk_state: where a scan begins",
        replace(
            "chunk_state",
            "Load S from the initial state; zeros if there is none.",
            "Load S from the initial state, else 0.",
        ),
    ),
    Edit(
        "README: who uses it",
        write("README.md", f"{_README}Kernels of a server, for its own models."),
        WITH_BARRIER,
    ),
    Edit(
        "chunk_state: stores are waited for again",
        replace("chunk_state", f"{_COMMIT}        pipe", f"{_COMMIT}{_WAIT}        pipe"),
        BEFORE_OPERAND,
    ),
    Edit(
        "chunk_state: product 2 follows product 1, and need not wait for its operand",
        replace("chunk_state", _OPERAND, ""),
        OPERAND,
    ),
    Edit("Notes on products", write("notes/products.md", "Products of a warp are in order."), WITH_OPERAND),
    Edit(
        "chunk_state: product 2 waits for its operand again",
        replace("chunk_state", _ACQUIRE, _ACQUIRE + _OPERAND),
        BEFORE_FENCE,
    ),
    Edit(
        "chunk_uw: what a warp has written it stores itself",
        replace("chunk_uw", _FENCE, ""),
        FENCE,
    ),
    Edit("Notes on rows", write("notes/rows.md", "A warp stores the rows that it has made."), WITH_FENCE),
)
