# SPDX-License-Identifier: Apache-2.0
"""Allow-lists for the metadata of a shared record: anything not listed is left out.

A name is kept if the contract or a released package defines it, or if it is a number. Names that a caller may
have chosen (paths, command lines, hosts, names of layers and of the caller's functions) are never kept.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gdnbench.bits import DTYPES
from gdnbench.ops import operation
from gdnbench.provenance import PACKAGES
from gdnbench.record import Pool, RecordInfo, TensorMeta
from gdnbench.store.reader import StoredRecord

PROCESS = ("rank", "world_size", "local_rank", "parallel")
"""Of the process: its rank among its peers."""
PARALLEL = ("tp", "pp", "dp", "ep", "cp", "sp", "dcp", "pcp")
"""Kinds of parallelism with common names; a third-party adapter may use other names, which are left out."""
PROVENANCE = ("packages", "python", "gpus", "cuda", "driver", "simulator")
"""Versions, since a failure may depend on one of them, and the machine that the simulator stood for."""
DISPATCH = (
    "path",
    "backend",
    "mode",
    "outputs",
    "not_recorded",
    "made_by_capture",
    "laid_out_by_capture",
    "repeated",
    "qk_heads_as_called",
    "metadata",
)
"""Keys of `dispatch` that are kept if the adapter is one of this package's."""
FRAMEWORKS = ("gdnbench", "gdnbench_kernels", "transformers", "fla", "flashinfer", "vllm", "sglang")
"""Public packages, whose function names are kept."""
ELSEWHERE = "shared:function"
"""Replaces the name of any other function."""

_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:,+ -]{0,119}")
_VERSION = re.compile(r"[0-9][A-Za-z0-9.+!]{0,39}")
_TRIGGER = re.compile(r"when|raised|nonfinite:[a-zA-Z_,]+|mismatch:[a-zA-Z_]+ [0-9.e+-]+x|around:call [0-9]+")
_DEVICE = re.compile(r"[a-z]{1,16}")
_LEFT_OUT = "an output"
"""Replaces a third-party adapter's text about outputs that it did not record."""

NAMED = {"argv", "cwd", "host", "pid", "parent", "time", "git", "os", "cpu", "implementation", "replays"}
"""Names of left-out values that may be disclosed, because this package chose them."""


@dataclass(slots=True)
class Layers:
    """Replaces layer names: layers.3, or layer.0 if the caller gave no index."""

    names: dict[tuple[str, int | None], str] = field(default_factory=dict)

    def name(self, layer: str, index: int | None) -> str:
        key = layer, index
        if key not in self.names:
            if index is None:
                self.names[key] = f"layer.{sum(other is None for _, other in self.names)}"
            else:
                again = sum(other == index for _, other in self.names)
                self.names[key] = f"layers.{index}" + (f".{again}" if again else "")
        return self.names[key]


@dataclass(slots=True)
class Dropped:
    """Names of the values that were left out."""

    names: set[str] = field(default_factory=lambda: {"segment names, which hold a time and a process"})
    layers: Layers = field(default_factory=Layers)

    def others(self, where: str, given: Mapping[str, Any], kept: Iterable[str]) -> None:
        for name in given.keys() - set(kept):
            self.names.add(f"{where}.{name if name in NAMED else 'others'}")


def process_of(process: Mapping[str, Any], dropped: Dropped) -> dict[str, Any]:
    """The part of a segment's `process` that may be shared."""
    found = {name: process[name] for name in PROCESS if name in process and _is_rank(name, process[name])}
    dropped.others("process", process, found)
    return found


def _is_rank(name: str, value: Any) -> bool:
    if name == "parallel":
        return isinstance(value, Mapping) and set(value) <= set(PARALLEL) and _is_numbers(value)
    return _is_number(value)


def provenance_of(provenance: Mapping[str, Any], dropped: Dropped) -> dict[str, Any]:
    """The part of a segment's `provenance` that may be shared."""
    found = {name: provenance[name] for name in PROVENANCE if name in provenance}
    packages = found.pop("packages", None)
    found = {name: value for name, value in found.items() if value is None or _is_told(name, value)}
    if isinstance(packages, Mapping):
        # A local version (1.2+company.git) names its builder.
        found["packages"] = {
            str(name): str(version).partition("+")[0]
            for name, version in packages.items()
            if name in PACKAGES and _VERSION.fullmatch(str(version).partition("+")[0])
        }
    dropped.others("provenance", provenance, found)
    return found


def _is_told(name: str, value: Any) -> bool:
    return _plain(value) if name in ("gpus", "simulator") else _VERSION.fullmatch(str(value)) is not None


def info_of(record: StoredRecord, salt: bytes, dropped: Dropped) -> RecordInfo:
    """The record's info in the copy. `salt`: secret, for this copy only."""
    info = record.info
    contract = operation(info.op)
    scalars = {spec.name for spec in contract.scalars if _is_scalar(info.scalars.get(spec.name))}
    tensors = {spec.name for spec in contract.tensors}
    conventions = {one.name: one.values for one in contract.conventions}
    dispatch = _dispatch_of(info)
    dropped.others("dispatch", info.dispatch, dispatch)
    dropped.others("scalars", info.scalars, scalars)
    target = info.target if _is_public(info.target) else ELSEWHERE
    layer = dropped.layers.name(info.layer, info.layer_index)
    dropped.names |= {"target"} if target != info.target else set()
    dropped.names |= {"layer"} if layer != info.layer else set()
    return replace(
        info,
        target=target,
        layer=layer,
        scalars={name: value for name, value in info.scalars.items() if name in scalars},
        conventions={n: v for n, v in info.conventions.items() if v in conventions.get(n, ())},
        pools={name: _pool(pool, salt) for name, pool in info.pools.items() if name in tensors},
        dispatch=dispatch,
        run={},
    )


def _dispatch_of(info: RecordInfo) -> dict[str, Any]:
    # For the caller's own function, a third-party adapter may have written anything here.
    told = DISPATCH if _is_public(info.target) else ()
    found = {name: info.dispatch[name] for name in told if _plain(info.dispatch.get(name))}
    if not _is_numbers(found.get("metadata", {})):
        del found["metadata"]
    if "not_recorded" in info.dispatch:  # replay checks for the key
        found.setdefault("not_recorded", _LEFT_OUT)
    trigger, implementation = (info.dispatch.get(name) for name in ("trigger", "implementation"))
    if isinstance(trigger, str) and _TRIGGER.fullmatch(trigger):
        found["trigger"] = trigger
    if isinstance(implementation, str) and _is_public(implementation):
        found["implementation"] = implementation
    return found


def meta_of(meta: TensorMeta) -> TensorMeta:
    """The metadata unchanged, since a failure may depend on shapes, strides and dtypes; only the device
    number is removed."""
    device = meta.device.partition(":")[0]
    return replace(meta, device=device if _DEVICE.fullmatch(device) else "cpu")


def _pool(pool: Pool, salt: bytes) -> Pool:
    """Replace the checksums of rows that are not stored by salted hashes, so that only their equality is
    preserved."""
    before, after = (
        None if sum_ is None else hashlib.blake2b(sum_.encode(), key=salt, digest_size=8).hexdigest()
        for sum_ in (pool.untouched_before, pool.untouched_after)
    )
    return replace(pool, untouched_before=before, untouched_after=after)


def _is_public(function: str) -> bool:
    return function.partition(".")[0].partition(":")[0] in FRAMEWORKS and _plain(function)


def _is_scalar(value: Any) -> bool:
    """Whether `value` is a number or the name of a dtype, as in `final_state_dtype`."""
    return _is_number(value) or (isinstance(value, str) and value in DTYPES)


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float)


def _is_numbers(value: Any) -> bool:
    """Whether `value` consists of numbers, by field name or in a list."""
    if isinstance(value, Mapping):
        return all(_plain(name) and _is_numbers(one) for name, one in value.items())
    return all(map(_is_numbers, value)) if isinstance(value, list | tuple) else _is_number(value)


def _plain(value: Any) -> bool:
    """Whether `value` consists of numbers and short words."""
    if isinstance(value, bool | int | float):
        return True
    if isinstance(value, str):
        return _WORD.fullmatch(value) is not None
    if isinstance(value, list | tuple):
        return all(_plain(one) for one in value)
    if isinstance(value, Mapping):
        return all(_plain(name) and _plain(one) for name, one in value.items())
    return False
