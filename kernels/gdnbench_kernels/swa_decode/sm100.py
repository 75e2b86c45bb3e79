"""The kernel named `sm100` of swa_decode: one launch of `tcgen05_decode`, for SM100.

Nothing is read back from the device and no shape depends on values, so a call can be captured into a CUDA
graph; with outputs of the caller's it allocates nothing. It compiles for a number of heads, a layout, a
dtype of scales, and whether there is a sink or lse; the first call of each compiles or finds it.
"""

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.arguments import multiprocessors
from gdnbench_kernels.programs import BLACKWELL, compiled
from gdnbench_kernels.swa_decode.launch_args import arch_of, prepare
from gdnbench_kernels.swa_decode.sizes import TILE_HEADS
from gdnbench_kernels.swa_decode.sources import PART_COUNTS, sm100_source

__all__ = ["launch_of", "sm100"]


def sm100(
    *,
    q: Tensor,
    cache: Tensor,
    inv_scale: Tensor | None = None,
    swa_indices: Tensor,
    swa_lens: Tensor,
    attn_sink: Tensor | None = None,
    scale: float | None = None,
    output_lse: bool = False,
    cache_layout: str = "per_token_scale",
    index_shape: str = "TW",
    o: Tensor | None = None,
    lse: Tensor | None = None,
    parts: int | None = None,
    workers: int | None = None,
) -> dict[str, Tensor]:
    """o [T, H, 512] bfloat16, and lse [T, H] float32 where asked for, written to the tensors of that name
    where given.

    `parts`, 1, 2 or 4: into how many CTAs the features of o are dealt, by `workers` CTAs of each; `launch_of`
    says how many unless given. They change no bit. NotImplementedError for a call that the kernel is not
    written for, or another GPU; ValueError for a wrong one.
    """
    given = prepare(
        q=q,
        cache=cache,
        inv_scale=inv_scale,
        swa_indices=swa_indices,
        swa_lens=swa_lens,
        attn_sink=attn_sink,
        scale=scale,
        output_lse=output_lse,
        cache_layout=cache_layout,
        index_shape=index_shape,
        o=o,
        lse=lse,
    )
    sms = multiprocessors(given.device)
    wanted_parts, wanted_workers = launch_of(given.tokens, given.heads, sms, parts)
    made = compiled(
        arch_of(given.device, BLACKWELL),
        sm100_source,
        given.heads,
        given.layout.value,
        given.scale_dtype,
        given.attn_sink is not None,
        given.lse is not None,
    )
    given.launch(made, wanted_parts, wanted_workers if workers is None else workers)
    return given.finish()


def launch_of(tokens: int, heads: int, sms: int, parts: int | None = None) -> tuple[int, int]:
    """(parts, CTAs of each): as many parts as leave every item an SM of its own, else one, since each part
    gathers the whole window; no more CTAs than SMs."""
    items = tokens * -(-heads // TILE_HEADS)
    if parts is None:
        parts = next((count for count in reversed(PART_COUNTS) if items * count <= sms), 1)
    if parts not in PART_COUNTS:
        raise ValueError(f"parts is {', '.join(map(str, PART_COUNTS))}, not {parts}")
    return parts, max(1, min(sms // parts, items))
