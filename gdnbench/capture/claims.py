# SPDX-License-Identifier: Apache-2.0
"""What an engine says about the sequences of a call: request, position, padding.

A record has it in `dispatch["lineage"]`, and the access log in its columns.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

LINEAGE = "lineage"
"""The key of the claims in a record's `dispatch`."""
FIELDS = ("requests", "positions", "padding", "prefixes", "slots")
_IN_BUNDLE = "claims/"  # prefix of the names of tensors on their way to the host; tensor names have no slash


@dataclass(frozen=True, slots=True)
class Claims:
    """What an engine says about the sequences of one call, in the call's order.

    `requests`: an id for each sequence, None if it is unknown. `positions`: the position in its request of
    each sequence's first token in this call, None if it is unknown. `padding`: the numbers of sequences
    that only fill the batch. `prefixes`: for each sequence 16 hexadecimal digits, `prefix_digits` of the
    request's tokens before its position. `slots`: the pool's row of each sequence, for states that the
    caller gathered. `kept`: the numbers of sequences whose states after each token the call keeps outside the
    pool, where the engine later puts one of them. `elsewhere`: whether the engine also writes states in ways
    that are not recorded: checkpoints within a prompt, states of another host.

    FIELDS but `prefixes` may be integer tensors, on the device too: they are copied with the call's inputs,
    and nothing waits for them. A negative request or position in one is unknown; any negative slot is none.
    ValueError if lengths differ.
    """

    requests: Sequence[str | int | None] | Tensor
    positions: Sequence[int | None] | Tensor
    padding: Sequence[int] | Tensor = ()
    prefixes: Sequence[str | None] | None = None
    slots: Sequence[int] | Tensor | None = None
    kept: Sequence[int] = ()
    elsewhere: bool = False

    def __post_init__(self) -> None:
        count = len(self.requests)
        for name in ("positions", "prefixes", "slots"):
            given = getattr(self, name)
            if given is not None and len(given) != count:
                raise ValueError(f"{count} requests have {len(given)} {name}; each sequence has one")

    def of_sequences(self, numbers: Sequence[int]) -> Claims:
        """The claims of these sequences, in this order: a call may have a part of a step's batch."""
        place = {number: new for new, number in enumerate(numbers)}
        return replace(
            self,
            requests=_chosen(self.requests, numbers),
            positions=_chosen(self.positions, numbers),
            padding=[place[int(number)] for number in self.padding if int(number) in place],
            prefixes=None if self.prefixes is None else _chosen(self.prefixes, numbers),
            slots=None if self.slots is None else _chosen(self.slots, numbers),
            kept=[place[number] for number in self.kept if number in place],
        )

    def padded(self, count: int) -> Claims:
        """These claims with padding sequences behind them, `count` in all: a graph's batch is larger than the
        step's. ValueError if there are more than `count` sequences already, or for fields that are
        tensors."""
        here = len(self.requests)
        if here > count:
            raise ValueError(f"the step has {here} sequences, and the call {count}")
        if here == count:
            return self
        if self.tensors():
            raise ValueError("claims that are tensors cannot be padded")
        more = count - here
        return replace(
            self,
            requests=[*self.requests, *[None] * more],
            positions=[*self.positions, *[None] * more],
            padding=[*self.padding, *range(here, count)],
            prefixes=None if self.prefixes is None else [*self.prefixes, *[None] * more],
            slots=None if self.slots is None else [*self.slots, *[-1] * more],
        )

    def tensors(self) -> dict[str, Tensor]:
        """The fields that are tensors."""
        found: dict[str, Tensor] = {}
        for name in FIELDS:
            value = getattr(self, name)
            if type(value) not in _LISTS and _is_tensor(value):
                found[name] = value
        return found

    def with_host_values(self, holds: Callable[[Tensor], bool]) -> Claims:
        """These claims with tensors on the host, those that `holds` denies, as lists of their values now."""
        here: dict[str, Any] = {name: one.tolist() for name, one in self.tensors().items() if not holds(one)}
        return replace(self, **here) if here else self

    def key(self) -> tuple[Any, ...]:
        """Equal for equal claims, none of which is a tensor."""
        lists = (self.requests, self.positions, self.padding, self.prefixes, self.slots)
        return (*(None if one is None else tuple(one) for one in lists), tuple(self.kept), self.elsewhere)

    def without_values(self) -> Claims | None:
        """The part that stays true when a CUDA graph is replayed: tensors, whose elements each replay has
        anew. None if `requests` are no tensor."""
        if not _is_tensor(self.requests):
            return None
        positions = self.positions if _is_tensor(self.positions) else [None] * len(self.requests)
        padding = self.padding if _is_tensor(self.padding) else ()
        slots = self.slots if _is_tensor(self.slots) else None
        return replace(self, positions=positions, padding=padding, prefixes=None, slots=slots)

    def bundled(self) -> dict[str, Tensor]:
        """The tensors by the names that they have on their way to the host."""
        return {_IN_BUNDLE + name: tensor for name, tensor in self.tensors().items()}

    def as_json(self, arrived: Mapping[str, Tensor]) -> dict[str, Any]:
        """The value of `dispatch["lineage"]`. `arrived` has the tensors on the host, by their bundled
        names."""
        values = {name: getattr(self, name) for name in FIELDS}
        for name in self.tensors():
            values[name] = arrived[_IN_BUNDLE + name].reshape(-1).tolist()
        found: dict[str, Any] = {
            "requests": [_id(one) for one in values["requests"]],
            "positions": [None if one is None or one < 0 else int(one) for one in values["positions"]],
            "padding": [int(one) for one in values["padding"]],
        }
        if values["prefixes"] is not None:
            found["prefixes"] = list(values["prefixes"])
        if values["slots"] is not None:
            found["slots"] = [max(int(one), -1) for one in values["slots"]]
        if self.kept:
            found["kept"] = list(self.kept)
        if self.elsewhere:
            found["elsewhere"] = True
        return found


_LISTS = (list, tuple, type(None))


def _is_tensor(value: object) -> bool:
    """Without importing torch."""
    return hasattr(value, "data_ptr")


def _chosen(values: Any, numbers: Sequence[int]) -> Any:
    return values[list(numbers)] if _is_tensor(values) else [values[number] for number in numbers]


def _id(request: object) -> str | None:
    if request is None or (isinstance(request, int) and request < 0):
        return None
    return str(request)


def prefix_hasher() -> Any:
    """A BLAKE3 hasher to feed with `token_bytes`; `copy()` branches it."""
    from blake3 import blake3

    return blake3()


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Token ids as int64, little-endian."""
    found = array("q", tokens)
    if sys.byteorder == "big":
        found.byteswap()
    return found.tobytes()


def prefix_digits(hasher: Any) -> str:
    """16 hexadecimal digits: the first 8 bytes of the hash so far."""
    return str(hasher.hexdigest(8))
