"""A call while it is being recorded: inputs copied before it, outputs after it, a record made of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gdnbench.capture.adapter import Observation, Seen
from gdnbench.capture.layers import Layer
from gdnbench.capture.snapshot import Copied, is_plain, snapshot
from gdnbench.ops import operation
from gdnbench.pools import checksum, digits, untouched_rows
from gdnbench.record import Pool, RecordDraft, RecordInfo, Status, TensorDraft
from gdnbench_kernels.contract import Call, Operation, Role

# The copy that was kept of a tensor when a layer last left it, if it still has the very same bytes.
Carried = Callable[[str, str, Tensor], Tensor | None]


@dataclass(slots=True)
class PoolRows:
    """Rows of a pool that the call can touch; `rows` is None where the whole pool is kept."""

    slots: int
    numbers: tuple[int, ...]
    rows: Tensor | None = None
    untouched: Tensor | None = None  # of a pool that is written to; a cache that is only read may be huge
    before: Tensor | None = None  # checksums of the untouched rows, on their way like all else
    after: Tensor | None = None

    def recorded(self) -> Pool:
        before, after = (None if total is None else digits(total) for total in (self.before, self.after))
        return Pool(self.slots, self.numbers, before, after)


@dataclass(slots=True)
class PendingRecord:
    observation: Observation
    info: RecordInfo
    axes: Mapping[str, tuple[str, ...]]
    pools: dict[str, PoolRows]
    before: dict[str, Copied]
    after: dict[str, Copied]
    token: int | None = None  # of the journal's entry, once the inputs are in it
    begun: bool = False

    @property
    def cuda_devices(self) -> set[str]:
        return {
            copied.device
            for copies in (self.before, self.after)
            for copied in copies.values()
            if copied.device.startswith("cuda")
        }

    @property
    def nbytes(self) -> int:
        return sum(copied.data.nbytes for copies in (self.before, self.after) for copied in copies.values())

    def close(self, seen: Mapping[str, Seen]) -> None:
        """Copy outputs and mutated tensors."""
        for name, tensor in seen.items():
            rows = self.pools.get(name)
            if rows is None:
                self.after[name] = snapshot(tensor, reused=False)
            else:
                self.after[name], rows.after = _copy_rows(tensor, rows, reused=False)

    def close_unfinished(self, error: BaseException) -> None:
        dispatch = {**self.info.dispatch, "raised": type(error).__name__}
        self.info = replace(self.info, status=Status.UNFINISHED, dispatch=dispatch)

    def finish_info(self) -> RecordInfo:
        """What is known of the call by now; copies must be complete."""
        if all(rows.before is None for rows in self.pools.values()):
            return self.info  # whole pools have no checksums to add
        return replace(self.info, pools={name: rows.recorded() for name, rows in self.pools.items()})

    def finish_inputs(self) -> dict[str, TensorDraft]:
        """The inputs as they are stored; their copies must be complete. May add to the info."""
        finish = self.observation.finish
        if finish is None:
            return {name: copied.draft(self.axes[name]) for name, copied in self.before.items()}
        tensors, dispatch = finish({name: copied.data for name, copied in self.before.items()})
        self.info = replace(self.info, dispatch={**self.info.dispatch, **dispatch})
        return {name: copied.draft(self.axes[name], tensors[name]) for name, copied in self.before.items()}

    def finish_outputs(self) -> dict[str, TensorDraft]:
        return {name: copied.draft(self.axes[name]) for name, copied in self.after.items()}

    def draft(self) -> RecordDraft:
        before = self.finish_inputs()
        return RecordDraft(self.finish_info(), before, self.finish_outputs())


def open_record(
    observation: Observation,
    target: str,
    layer: Layer,
    number: int,
    step: int,
    full_pools: bool,
    implementation: str | None,
    carried: Carried,
) -> PendingRecord:
    """Copy the inputs of a call that is about to start, but for states that the layer's last call left."""
    contract = operation(observation.op)
    pools = _touched(contract, observation, full_pools)
    before = {}
    for name, seen in observation.tensors.items():
        rows = pools.get(name)
        if rows is None:
            before[name] = snapshot(seen, reused=True)
        elif rows.rows is None:
            before[name] = snapshot(seen, reused=True, kept=_carried(carried, layer, name, seen))
        else:
            before[name], rows.before = _copy_rows(seen, rows, reused=True)
    dispatch = dict(observation.dispatch)
    if implementation is not None:
        dispatch["implementation"] = implementation
    info = RecordInfo(
        op=observation.op,
        target=target,
        layer=layer.name,
        layer_index=layer.index,
        call=number,
        step=step,
        status=Status.COMPLETE,
        scalars=observation.scalars,
        conventions=observation.conventions,
        pools={name: Pool(rows.slots, rows.numbers) for name, rows in pools.items()},
        dispatch=dispatch,
    )
    return PendingRecord(observation, info, _axes(contract, observation.conventions), pools, before, {})


def _carried(carried: Carried, layer: Layer, name: str, seen: Seen) -> Tensor | None:
    tensor = seen.tensor
    usable = is_plain(tensor) and tensor.is_cpu and tensor.is_contiguous()
    return carried(layer.name, name, tensor) if usable else None


_axes_known: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = {}


def _axes(contract: Operation, conventions: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    key = (contract.name, *conventions.values())
    if key not in _axes_known:
        _axes_known[key] = {spec.name: spec.axes_in(conventions) for spec in contract.tensors}
    return _axes_known[key]


def _touched(contract: Operation, observation: Observation, full_pools: bool) -> dict[str, PoolRows]:
    names = [s.name for s in contract.tensors if s.pool_index is not None and s.name in observation.tensors]
    pools = {}
    for name in names:
        if full_pools or name in observation.whole_pools:
            slots = observation.tensors[name].tensor.shape[0]
            pools[name] = PoolRows(slots, tuple(range(slots)))
    if len(pools) == len(names):
        return pools
    tensors = {
        name: seen.tensor if seen.shape is None else seen.tensor.reshape(seen.shape)
        for name, seen in observation.tensors.items()
    }
    touched = contract.touched(Call(tensors, observation.scalars, observation.conventions))
    for name in names:
        if name not in pools:
            slots, rows = tensors[name].shape[0], touched[name]
            if len(rows) and not 0 <= int(rows[0]) <= int(rows[-1]) < slots:
                # A GPU would stop the program at a row that is not there.
                raise ValueError(
                    f"the call names row {int(rows[0])} to {int(rows[-1])} of {name}; it has {slots}"
                )
            pools[name] = PoolRows(slots, tuple(rows.tolist()), rows)
            if contract.spec(name).role is Role.MUTATED:
                pools[name].untouched = untouched_rows(slots, rows)
    return pools


def _copy_rows(seen: Seen, pool: PoolRows, *, reused: bool) -> tuple[Copied, Tensor | None]:
    """The kept rows of a pool, and a checksum of the others if it is written to."""
    if pool.rows is None:
        return snapshot(seen, reused=reused), None
    tensor = seen.tensor.detach()
    words = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor  # fp8 has no index_select
    some = torch.index_select(words, 0, pool.rows.to(tensor.device)).view(tensor.dtype)
    # The gather is a copy already.
    copied = snapshot(Seen(some, None, seen.caller if seen.caller is not None else seen.tensor), reused=False)
    if pool.untouched is None:
        return copied, None
    return copied, snapshot(Seen(checksum(tensor, pool.untouched)), reused=False).data
