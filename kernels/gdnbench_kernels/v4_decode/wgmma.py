"""The kernel named `wgmma` of v4_decode: `WgmmaSegments` (kernel_sm90.py), for SM90, then a merge of splits.

The host reads nothing back and no shape depends on values, so a call can be captured into a CUDA graph. The
kernel is compiled per number of heads, layout, dtype of scales, presence of a sink, form of lse, and
`Tuning`. Caches of two layouts, or two dtypes of scales, are attended to by a launch each.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gdnbench_kernels.compiling import Program
from gdnbench_kernels.gpu import capability_of, multiprocessors
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.programs import SM90, compiled
from gdnbench_kernels.swa_decode.wgmma import workers_of
from gdnbench_kernels.v4_decode.launch_args import PoolArguments, V4Arguments, arch_of, prepare
from gdnbench_kernels.v4_decode.lse_forms import LseForm
from gdnbench_kernels.v4_decode.params import V4BufferParams
from gdnbench_kernels.v4_decode.partials import Partials
from gdnbench_kernels.v4_decode.sm90_plan import TILE, Division, Tuning
from gdnbench_kernels.v4_decode.sm90_sources import DEFAULT, wgmma_source
from gdnbench_kernels.v4_decode.splits import MAX_SPLITS, query_tiles

__all__ = ["wgmma"]


@takes_params(V4BufferParams)
def wgmma(
    params: V4BufferParams,
    *,
    splits: int | None = None,
    workers: int | None = None,
    rows: int | None = None,
    prefetch: int = DEFAULT.prefetch,
) -> dict[str, Tensor]:
    """o [B, S, H, 512] bfloat16, and on request lse [B, S, H] float32, written to the tensors of that name if
    they are given.

    `splits` is the number of CTAs among which the tiles of a query are divided, and `rows` the number of
    heads per CTA; None takes those of `Division.choose`. `workers` is the number of CTAs, at most one per
    item; None takes `workers_of`. `prefetch` is that of `Tuning`. Only `splits` changes the bits of the
    result. Raises NotImplementedError for a call that the kernel does not support or for another GPU,
    ValueError for an invalid call.
    """
    given = prepare(params)
    if capability_of(given.device) is not None and arch_of(given.device) != SM90:
        raise NotImplementedError(f"this kernel of v4_decode is compiled for {SM90} alone; take portable")
    if given.rows:
        sms = multiprocessors(given.device, SM90)
        Launches(given, sms, division_of(given, sms, rows, splits), prefetch, workers).run()
    return given.finish()


@dataclass(frozen=True, slots=True)
class Launches:
    """The launches of a call with at least one query."""

    given: V4Arguments
    sms: int
    division: Division
    prefetch: int
    workers: int | None

    def run(self) -> None:
        """Fill o and lse."""
        given, splits = self.given, self.division.splits
        if given.extra is not None and not alike(given):
            partials = self.allocate(1 + splits)
            self.attend(given.window, None, Partials(partials.o[:1], partials.lse[:1]))
            self.attend(None, given.extra, Partials(partials.o[1:], partials.lse[1:]))
        elif splits == 1:
            self.attend(given.window, given.extra, None)
            return
        else:
            partials = self.allocate(splits)
            self.attend(given.window, given.extra, partials)
        partials.merge(SM90, given.attn_sink, given.o, given.lse, given.form)

    def allocate(self, splits: int) -> Partials:
        return Partials.allocate(splits, self.given.rows * self.given.heads, self.given.device)

    @property
    def items(self) -> int:
        """Items of one split."""
        return self.given.rows * -(-self.given.heads // self.division.rows)

    def attend(
        self, window: PoolArguments | None, extra: PoolArguments | None, partials: Partials | None
    ) -> None:
        """One launch over one or both segments; without `partials` it fills o and lse."""
        given = self.given
        one = window or extra
        assert one is not None
        other = extra or one
        nothing = one.entries[:, :0]
        splits = 1 if partials is None else len(partials.o)
        items = self.items * splits
        workers = workers_of(items, self.sms) if self.workers is None else self.workers
        if partials is None:
            o, lse, sink = given.o, given.lse, given.attn_sink
        else:
            o, lse, sink = partials.o.flatten(0, 1), partials.lse.flatten(), None
        self.program(one, sink is not None, lse is not None, given.form if partials is None else None)(
            given.q,
            one.pages,
            one.inv_scale,
            nothing if window is None else window.entries,
            one.lens,
            other.pages,
            other.inv_scale,
            nothing if extra is None else extra.entries,
            other.lens,
            sink,
            o,
            lse,
            given.scale,
            one.block_shift,
            other.block_shift,
            other.block_shift if extra is not None and extra.of_pages else 0,
            splits,
            max(1, min(items, workers)),
        )

    def program(self, pool: PoolArguments, sink: bool, lse: bool, form: LseForm | None) -> Program:
        tuning = Tuning(self.division.rows, self.prefetch, layout=pool.layout)
        return compiled(SM90, wgmma_source, self.given.heads, pool.scale_dtype, sink, lse, form, tuning)


def alike(given: V4Arguments) -> bool:
    """Whether one program reads both pools."""
    window, extra = given.window, given.extra
    return extra is None or (window.layout, window.scale_dtype) == (extra.layout, extra.scale_dtype)


def division_of(given: V4Arguments, sms: int, rows: int | None, splits: int | None) -> Division:
    """The division of a call; of the extra segment alone if pools that are not alike need two launches."""
    if splits is not None and not 1 <= splits < MAX_SPLITS:
        raise ValueError(f"splits is {splits}; it must be 1 to {MAX_SPLITS - 1}")
    extra = 0 if given.extra is None else given.extra.capacity
    tiles = query_tiles(given.window.capacity if alike(given) else 0, extra, TILE)
    return Division.choose(given.rows, given.heads, tiles, sms, rows, splits, MAX_SPLITS - 1)
