"""The kernel named `wgmma` of swa_decode: one launch of `wgmma_decode`, for SM90.

As `portable`: nothing is read back, a call can be captured into a CUDA graph, and it compiles for a number of
heads, a layout, a dtype of scales, whether there is a sink or lse, and what `Tuning` has.
"""

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.arguments import multiprocessors
from gdnbench_kernels.programs import SM90, compiled
from gdnbench_kernels.swa_decode.launch_args import Arguments, arch_of, prepare
from gdnbench_kernels.swa_decode.sm90_plan import ROWS, Tuning
from gdnbench_kernels.swa_decode.sm90_sources import DEFAULT, wgmma_source

__all__ = ["wgmma"]


def wgmma(
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
    workers: int | None = None,
    rows: int | None = None,
    prefetch: int = DEFAULT.prefetch,
) -> dict[str, Tensor]:
    """o [T, H, 512] bfloat16, and lse [T, H] float32 where asked for, written to the tensors of that name
    where given.

    `workers`: CTAs, at most one for each item; as `workers_of` says unless given. `rows`: heads of a CTA;
    `rows_of` says how many unless given. `prefetch`: as `Tuning` has it. None of them changes a bit.
    NotImplementedError for a call that the kernel is not written for, or another GPU; ValueError for a wrong
    one.
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
    if given.device.type == "cuda" and arch_of(given.device) != SM90:
        raise NotImplementedError(f"this kernel of swa_decode is compiled for {SM90} alone; take portable")
    return launch(given, workers, rows, prefetch)


def launch(
    given: Arguments,
    workers: int | None = None,
    rows: int | None = None,
    prefetch: int = DEFAULT.prefetch,
) -> dict[str, Tensor]:
    """As `wgmma`, of a call that was prepared."""
    sms = multiprocessors(given.device)
    heads = rows_of(given, sms) if rows is None else rows
    items = given.tokens * -(-given.heads // heads)
    made = compiled(
        SM90,
        wgmma_source,
        given.heads,
        given.layout.value,
        given.scale_dtype,
        given.attn_sink is not None,
        given.lse is not None,
        Tuning(heads, prefetch),
    )
    given.launch(made, max(1, min(items, workers_of(items, sms) if workers is None else workers)))
    return given.finish()


def workers_of(items: int, sms: int) -> int:
    """The fewest CTAs of which none has more items than it would have if each SM had one: some with an item
    more than others only take bandwidth from them meanwhile."""
    each = -(-items // sms)
    return -(-items // each) if each else 1


def rows_of(given: Arguments, sms: int) -> int:
    """Heads of a CTA: the fewest that leave every CTA an SM of its own, else the most, since every CTA of a
    token gathers its window."""
    return next((rows for rows in ROWS if given.tokens * -(-given.heads // rows) <= sms), ROWS[-1])
