# SPDX-License-Identifier: Apache-2.0
"""The requests of transformers' calls: one for each row of each cache object, counted from what the cache
has seen.

A model's forward method is a step. Its rows are those of the cache that it gets. Methods that move, remove or
forget rows or tokens of a cache are watched too. A row that goes on from another one (beam search) or from an
earlier token (assisted decoding) becomes a new request that begins in the middle.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import Observation, Target
from gdnbench.capture.claims import Claims, prefix_digits, prefix_hasher, token_bytes

if TYPE_CHECKING:
    from torch import Tensor

MODELS = {
    "transformers.models.qwen3_next.modeling_qwen3_next": "Qwen3NextModel",
    "transformers.models.qwen3_5.modeling_qwen3_5": "Qwen3_5TextModel",
    "transformers.models.qwen3_5_moe.modeling_qwen3_5_moe": "Qwen3_5MoeTextModel",
    "transformers.models.olmo_hybrid.modeling_olmo_hybrid": "OlmoHybridModel",
    "transformers.models.kimi_linear.modeling_kimi_linear": "KimiLinearModel",
    "transformers.models.bailing_hybrid.modeling_bailing_hybrid": "BailingHybridModel",
    "transformers.models.glm5_next.modeling_glm5_next": "Glm5NextTextModel",
}
_FORWARDS = tuple(Target(module, f"{model}.forward") for module, model in MODELS.items())
_CACHES = "transformers.cache_utils"
_CREATED = Target(_CACHES, "DynamicCache.__init__")
_CHANGES = ("crop", "reset", "reorder_cache", "batch_repeat_interleave", "batch_select_indices")
STEPS = (*_FORWARDS, _CREATED, *(Target(_CACHES, f"Cache.{name}") for name in _CHANGES))


@dataclass(slots=True)
class _Row:
    request: str
    hasher: Any = None  # of its tokens so far; None where they are unknown


@dataclass(slots=True)
class _Rows:
    """What is known of one cache object."""

    number: int  # of the cache in this process
    seen: int | None  # tokens that its states have consumed; None: unknown
    first_slot: int = 0
    rows: list[_Row] = field(default_factory=list)


class _First(threading.local):
    """The cache that this thread's running forward pass fills from its first token on, and of how many."""

    cache: weakref.ref[Any] | None = None
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Known:
    requests: list[str]
    position: int | None
    prefixes: list[str | None] | None
    first_slot: int


class CacheSteps:
    """Follows the caches of this process. It reads input ids on the CPU only, as others would have the host
    wait."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, _Rows] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count()
        self._forks = itertools.count(1)
        self._slots = 0
        self._without_cache: _Rows | None = None  # of a forward pass that will make its own cache
        self._first = _First()

    def first_cache(self, tokens: int) -> Any:
        """The cache that the running forward pass fills from its first token on, with so many a row; None if
        it is not known."""
        first = self._first
        return None if first.cache is None or first.tokens != tokens else first.cache()

    def step(self, target: Target, arguments: Mapping[str, Any]) -> _Known | None:
        if target == _CREATED:
            if self._without_cache is not None:
                self._known[arguments["self"]] = self._without_cache
                self._first.cache = weakref.ref(arguments["self"])
                self._without_cache = None
            return None
        name = target.function.rpartition(".")[2]
        if name in _CHANGES:
            rows = self._known.get(arguments["self"])
            if rows is not None:
                self._change(name, rows, arguments)
            return None
        return self._forward(arguments)

    def _forward(self, arguments: Mapping[str, Any]) -> _Known | None:
        self._without_cache = self._first.cache = None
        ids = arguments.get("input_ids")
        given = ids if ids is not None else arguments.get("inputs_embeds")
        if given is None or arguments.get("use_cache") is False:
            return None
        cache = arguments.get("cache")
        if cache is None:
            cache = arguments.get("past_key_values")
        batch, tokens = given.shape[:2]
        self._first.tokens = tokens
        if cache is None:
            rows = self._without_cache = self._new(0)
        elif cache in self._known:
            rows = self._known[cache]
        else:
            rows = self._known[cache] = self._new(_length(cache))
        if len(rows.rows) != batch:
            self._begin(rows, batch)
        if rows.seen == 0 and cache is not None:
            self._first.cache = weakref.ref(cache)
        known = _Known([row.request for row in rows.rows], rows.seen, _prefixes(rows.rows), rows.first_slot)
        _hash(rows.rows, ids)
        if rows.seen is not None:
            rows.seen += tokens
        return known

    def _new(self, seen: int | None) -> _Rows:
        return _Rows(next(self._numbers), seen)

    def _begin(self, rows: _Rows, batch: int) -> None:
        """New requests in all rows. Their tokens are known only if there are none yet."""
        rows.first_slot = self._slots
        self._slots += batch
        again = f".{next(self._forks)}" if rows.rows else ""
        fresh = rows.seen == 0
        rows.rows = [
            _Row(f"cache{rows.number}/row{n}{again}", prefix_hasher() if fresh else None)
            for n in range(batch)
        ]

    def _change(self, name: str, rows: _Rows, arguments: Mapping[str, Any]) -> None:
        if name == "reset":
            rows.seen = 0
            self._begin(rows, len(rows.rows))
        elif name == "crop":
            self._crop(rows, arguments)
        elif name == "reorder_cache" and _on_cpu(arguments["beam_idx"]):
            self._reorder(rows, arguments["beam_idx"].tolist())
        else:
            for row in rows.rows:
                self._fork(row, None)
            if name != "reorder_cache":
                rows.rows = []  # their number changes: the next forward pass begins new ones

    def _crop(self, rows: _Rows, arguments: Mapping[str, Any]) -> None:
        removed = arguments.get("tokens_to_remove")
        if removed is None:  # releases whose argument is a length; negative, it is what to remove
            length = arguments.get("max_length", arguments.get("maximum_length"))
            if not isinstance(length, int) or rows.seen is None:
                removed = None
            else:
                removed = -length if length < 0 else max(rows.seen - length, 0)
        if removed == 0:
            return
        rows.seen = rows.seen - removed if isinstance(removed, int) and rows.seen is not None else None
        for row in rows.rows:
            self._fork(row, None)

    def _reorder(self, rows: _Rows, sources: Sequence[int]) -> None:
        if len(sources) != len(rows.rows):
            rows.rows = []
            return
        before = [_Row(row.request, row.hasher) for row in rows.rows]
        for number, source in enumerate(sources):
            if source != number:
                self._fork(rows.rows[number], before[source])

    def _fork(self, row: _Row, source: _Row | None) -> None:
        """`row` becomes a new request, which goes on from `source`; None: its tokens are unknown."""
        row.request = f"{row.request.partition('.')[0]}.{next(self._forks)}"
        row.hasher = None if source is None or source.hasher is None else source.hasher.copy()


def claims(known: _Known, observation: Observation) -> Claims | None:
    """One sequence of a call for each row of the batch; None for a batch that is packed in another way."""
    count = len(known.requests)
    if _sequences(observation) != count:
        return None
    return Claims(
        requests=known.requests,
        positions=[known.position] * count,
        prefixes=known.prefixes,
        slots=range(known.first_slot, known.first_slot + count),
    )


def _sequences(observation: Observation) -> int | None:
    bounds = observation.tensors.get("cu_seqlens")
    if bounds is not None:
        return bounds.tensor.shape[0] - 1
    states = (observation.tensors.get(name) for name in ("state", "initial_state", "conv_state"))
    state = next((one for one in states if one is not None), None)
    return None if state is None else state.tensor.shape[0]


def _prefixes(rows: Sequence[_Row]) -> list[str | None] | None:
    if all(row.hasher is None for row in rows):
        return None
    return [None if row.hasher is None else prefix_digits(row.hasher) for row in rows]


def _hash(rows: Sequence[_Row], ids: Tensor | None) -> None:
    """Add the tokens that a forward pass consumes."""
    if ids is None or not _on_cpu(ids):
        for row in rows:
            row.hasher = None
        return
    for row, tokens in zip(rows, ids.tolist(), strict=True):
        if row.hasher is not None:
            row.hasher.update(token_bytes(tokens))


def _on_cpu(tensor: Any) -> bool:
    return bool(getattr(tensor, "is_cpu", False))


def _length(cache: Any) -> int | None:
    """The tokens of a cache that we have not seen begin; None if it does not say, or not without a device."""
    try:
        found = cache.get_seq_length()
    except Exception:
        return None
    return found if isinstance(found, int) else None
