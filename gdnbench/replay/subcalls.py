# SPDX-License-Identifier: Apache-2.0
"""Makes smaller calls of a recorded one by removing random parts of it: other legal shapes, with recorded
values.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from gdnbench.errors import BadInputError
from gdnbench.judge import calls
from gdnbench.ops import operation
from gdnbench.replay.execute import device_of
from gdnbench.store.compression import Compression
from gdnbench.store.reader import Store, StoredRecord
from gdnbench.store.recover import open_store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import drafted
from gdnbench_kernels.contract import Axis, Call, ContractError, Operation

KEPT = 0.5
"""The share of axes of which everything is kept: shapes that differ in one thing alone are tried as well."""


def smaller(found: Operation, call: Call, seed: int) -> Call:
    """`call` without units of its axes that `seed` draws; BadInputError for an operation that does not say
    how its calls are made smaller."""
    if found.shrinking is None:
        raise BadInputError(f"{found.name} does not say how its calls are made smaller: it has one shape")
    chance = random.Random(seed)
    for name in [axis.name for axis in found.shrinking.axes(found, call)]:
        # Those of the call as it is by now.
        axis = next((one for one in found.shrinking.axes(found, call) if one.name == name), None)
        if axis is not None and axis.units > axis.least and chance.random() >= KEPT:
            call = _fewer(found, call, axis, chance)
    return call


def _fewer(found: Operation, call: Call, axis: Axis, chance: random.Random) -> Call:
    """`call` where the units drawn make none."""
    count = chance.randint(max(axis.least, 1), axis.units)
    kept = sorted(chance.sample(range(axis.units), count))
    try:
        fewer = axis.keep(kept)
        found.validate(fewer)
    except ContractError:
        return call
    return fewer


def extent(found: Operation, call: Call) -> str:
    """What there is of it: `65 tokens, 2 sequences`."""
    assert found.shrinking is not None
    counted = found.shrinking.extent(call).items()
    return ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for what, count in counted)


@contextmanager
def smaller_record(record: StoredRecord, seed: int) -> Iterator[tuple[Store, str]]:
    """A store of one record, made of `record` by `seed`, and what there is of it."""
    found = operation(record.info.op)
    call = smaller(found, calls.compact_call(record, found, device_of("cpu")), seed)
    draft = drafted(found, call, replace(record.info, scalars=dict(call.scalars)), {})
    with TemporaryDirectory(prefix="gdnbench-smaller-") as folder:
        path = Path(folder) / "smaller.zarr"
        with StoreWriter(path, kind="synth", compression=Compression(None), durable=False) as writer:
            writer.write("0", [draft])
        with open_store(path) as store:
            yield store, extent(found, call)
