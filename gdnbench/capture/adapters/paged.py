# SPDX-License-Identifier: Apache-2.0
"""Adapter for any caller of sliding-window decode attention over a paged cache, described by a small table.

The table names a function and where its arguments hold each tensor of swa_decode:

    ADAPTER = Paged(
        function="engine.attention:sparse_decode",
        q="q", cache="kv_cache", swa_indices="metadata.indices", swa_lens="metadata.lengths",
        attn_sink="self.sinks", scale="softmax_scale", o="return[0]",
        cache_layout="fp8_ds_mla",
    )

A place is a parameter, or `return`, followed by attributes, keys and indices: `metadata.decode.indices`,
`kv_caches[0]`, `return.out`. An output that the function writes into a buffer is at the parameter of that
buffer.

Tensors are recorded as views of the caller's: q and o [..., H, 512] with any leading axes; indices [T, W],
[T, 1, W], [1, T, W] or [B, S, W]; the cache [blocks, block_size, row] with additional axes of size 1, or
[slots, 512], or [blocks, bytes] of fp8_ds_mla pages (these two need `block_size`), with the caller's page
stride; inv_scale in any shape that can be viewed as [slots].
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import Observation, Seen, Target
from gdnbench.capture.adapters.contract_forms import check_forms
from gdnbench.capture.claims import FIELDS, Claims
from gdnbench.capture.options import CACHE_LAYOUTS
from gdnbench.errors import BadInputError
from gdnbench_kernels.swa_decode.sizes import BLOCK_SIZES

if TYPE_CHECKING:
    from torch import Tensor

RETURN = "return"
INDEX_SHAPES = ("TW", "T1W", "1TW")
_INPUTS = ("q", "cache", "inv_scale", "swa_indices", "swa_lens", "attn_sink")
_OUTPUTS = ("o", "lse")
_CLAIMED = ("requests", "positions", "padding")
_REQUIRED = ("q", "cache", "swa_indices", "swa_lens", "o")
_NAMES = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_FUNCTION = re.compile(f"{_NAMES}:{_NAMES}")
_PLACE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*|\[-?\d{1,9}\])*")
_LARGEST_SCALE = 3.4e38
_STEP = re.compile(r"\.([A-Za-z_]\w*)|\[(-?\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Paged:
    """The table, which is also the adapter. BadInputError, one line, for an invalid table.

    `function` and `layers` are written `module:function` and `module:Class.forward`. `inv_scale` belongs to
    per_token_scale only. `scale` is a place or a number, by default 512 ** -0.5. `lse` is the natural log of
    the sum without the sink: omit it if the caller's lse is defined otherwise.
    """

    function: str
    q: str
    cache: str
    swa_indices: str
    swa_lens: str
    o: str
    cache_layout: str
    inv_scale: str | None = None
    attn_sink: str | None = None
    scale: str | float | None = None
    lse: str | None = None
    requests: str | None = None  # an id for each query: a list or an integer tensor
    positions: str | None = None  # of each query's token in its request
    padding: str | None = None  # numbers of queries that only fill the batch
    block_size: int | None = None  # required if the cache's shape does not show it
    index_shape: str | None = None  # required if the shape of swa_indices is ambiguous: [1, 1, W]
    layers: tuple[str, ...] = ()
    framework: str = "paged"  # its name for --target

    def __post_init__(self) -> None:
        for name in ("function", "framework", "cache_layout"):
            if not isinstance(getattr(self, name), str):
                raise BadInputError(f"{name} is {short_repr(getattr(self, name))}; it must be text")
        if not re.fullmatch(r"[\w.-]+", self.framework):
            raise BadInputError(
                f"framework is {short_repr(self.framework)}; it must be a name without blanks"
            )
        if not isinstance(self.layers, tuple):
            raise BadInputError(
                f"layers is {short_repr(self.layers)}; it must be a list of module:Class.forward"
            )
        for name, texts in (("function", (self.function,)), ("layers", self.layers)):
            for text in texts:
                if not isinstance(text, str) or not _FUNCTION.fullmatch(text):
                    raise BadInputError(
                        f"{name} {short_repr(text)} is no function; write it as module:function"
                    )
        for name in (*_INPUTS, *_OUTPUTS, *_CLAIMED):
            self._check_place(name, getattr(self, name))
        self._check_scale()
        if self.requests is None and (self.positions or self.padding):
            raise BadInputError("lineage says whose sequences a call has: it must have requests")
        for name, known in (("cache_layout", CACHE_LAYOUTS), ("index_shape", (*INDEX_SHAPES, None))):
            if getattr(self, name) not in known:
                words = ", ".join(word for word in known if word is not None)
                raise BadInputError(f"{name} is {short_repr(getattr(self, name))}; it must be one of {words}")
        if self.block_size is not None and (
            type(self.block_size) is not int or self.block_size not in BLOCK_SIZES
        ):
            sizes = ", ".join(map(str, BLOCK_SIZES))
            raise BadInputError(f"block_size is {short_repr(self.block_size)}; it must be one of {sizes}")
        if (self.inv_scale is not None) != (self.cache_layout == "per_token_scale"):
            what = "missing" if self.inv_scale is None else "given"
            raise BadInputError(
                f"inv_scale is {what} with cache_layout {self.cache_layout}; it belongs to per_token_scale"
            )

    def _check_place(self, name: str, place: object) -> None:
        if place is None and name not in _REQUIRED:
            return
        if not isinstance(place, str) or not _PLACE.fullmatch(place):
            raise BadInputError(
                f"{name} is {short_repr(place)}; it must be a place such as q, metadata.indices, caches[0] or"
                " return[0]"
            )
        if _root(place) == RETURN and name not in _OUTPUTS:
            raise BadInputError(f"{name} is {place!r}; an input is among the arguments, not in what returns")

    def _check_scale(self) -> None:
        if isinstance(self.scale, str):
            self._check_place("scale", self.scale)
        elif self.scale is not None and type(self.scale) not in (int, float):
            raise BadInputError(f"scale is {short_repr(self.scale)}; it must be a number or a place")
        elif self.scale is not None and not abs(self.scale) <= _LARGEST_SCALE:
            raise BadInputError(f"scale is {short_repr(self.scale)}; it must be finite, in float32 too")

    @property
    def targets(self) -> tuple[Target, ...]:
        return (_target(self.function),)

    @property
    def scopes(self) -> tuple[Target, ...]:
        return tuple(_target(layer) for layer in self.layers)

    def before(self, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        found = {name: self._tensor(name, arguments) for name in _INPUTS}
        held = {name: tensor.detach() for name, tensor in found.items() if tensor is not None}
        seen = {"q": Seen(held["q"], (_leading(held["q"], 2), *held["q"].shape[-2:]))}
        seen["cache"] = Seen(paged_view(held["cache"], self.cache_layout, self.block_size))
        if "inv_scale" in held:
            seen["inv_scale"] = Seen(_flat("inv_scale", held["inv_scale"]))
        index_shape, seen["swa_indices"] = self._indices(held["swa_indices"])
        seen["swa_lens"] = Seen(_flat("swa_lens", held["swa_lens"]))
        if "attn_sink" in held:
            seen["attn_sink"] = Seen(_flat("attn_sink", held["attn_sink"]).float())
        conventions = {"cache_layout": self.cache_layout, "index_shape": index_shape}
        check_forms("swa_decode", seen, conventions, zeros=("swa_lens", "swa_indices"))
        scalars = {"scale": self._scale(arguments), "output_lse": self.lse is not None}
        dispatch = {"path": "paged", "cache_as_called": list(held["cache"].shape)}
        places = {name: getattr(self, name) for name in _CLAIMED}
        claims = claims_at({name: place for name, place in places.items() if place is not None}, arguments)
        return Observation("swa_decode", seen, scalars, conventions, dispatch, claims=claims)

    def after(self, seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
        places = {**arguments, RETURN: result}
        shape, o = seen.shape_of("q"), self._tensor("o", places)
        assert o is not None
        outputs = {"o": Seen(o, _expected("o", o, shape))}
        lse = self._tensor("lse", places)
        if lse is not None:
            if lse.ndim > 2 and lse.shape[-1] == 1:
                lse = lse.squeeze(-1)  # FlashMLA's lse is [B, H, 1 token]
            outputs["lse"] = Seen(lse, _expected("lse", lse, shape[:2]))
        return outputs

    def operations(self, target: Target) -> tuple[str, ...]:
        return ("swa_decode",)

    def implementation(self, function: Callable[..., Any]) -> str | None:
        module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
        return f"{module}.{name}" if module and name else None

    def _tensor(self, name: str, places: Mapping[str, Any]) -> Tensor | None:
        """The tensor at the place of `name`; None if the table has no place for it, or attn_sink is None.

        A caller that gives an lse only sometimes needs a table without one: outputs are declared before the
        call.
        """
        import torch

        place = getattr(self, name)
        if place is None:
            return None
        value = at_place(place, places)
        if value is None and name == "attn_sink":
            return None
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name}: {place} is a {type(value).__name__}, not a tensor")
        return value

    def _scale(self, arguments: Mapping[str, Any]) -> float | None:
        value = at_place(self.scale, arguments) if isinstance(self.scale, str) else self.scale
        return None if value is None else float(value)

    def _indices(self, indices: Tensor) -> tuple[str, Seen]:
        """The name of the shape convention of the indices, and the indices in it; [B, S, W] becomes [B*S,
        W]."""
        shape = indices.shape
        if self.index_shape is not None:
            return self.index_shape, Seen(indices)
        if len(shape) == 3 and 1 in shape[:2]:
            return "T1W" if shape[1] == 1 else "1TW", Seen(indices)
        return "TW", Seen(indices, (_leading(indices, 1), shape[-1]))


def short_repr(value: object) -> str:
    """`value`, shortened to fit a one-line message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def at_place(place: str, values: Mapping[str, Any]) -> Any:
    """The value at `place`, starting from `values` by name. LookupError or AttributeError, naming the place,
    if missing."""
    root = _root(place)
    if root not in values:
        raise LookupError(f"{place}: the call has no argument {root!r}; it has {', '.join(values)}")
    value = values[root]
    for name, index in _STEP.findall(place[len(root) :]):
        if index:
            value = value[int(index)]
        elif isinstance(value, Mapping):
            value = value[name]
        else:
            value = getattr(value, name)
    return value


def check_claim_places(places: Mapping[str, str]) -> None:
    """BadInputError for a name that no field of `Claims` has, or if `requests` is missing."""
    for name, place in places.items():
        if name not in FIELDS:
            raise BadInputError(f"lineage has {name!r}; it may have {', '.join(FIELDS)}")
        check_place(name, place)
    if places and "requests" not in places:
        raise BadInputError("lineage says whose sequences a call has: it must have requests")


def check_place(name: str, place: object) -> None:
    """BadInputError for what is no place."""
    if not isinstance(place, str) or not _PLACE.fullmatch(place):
        raise BadInputError(
            f"lineage: {name} is {short_repr(place)}; it must be a place such as metadata.ids"
        )


def claims_at(places: Mapping[str, str], values: Mapping[str, Any]) -> Claims | None:
    """The claims at these places, by field; None without places. LookupError or AttributeError as for
    `at_place`."""
    if not places:
        return None
    found = {name: at_place(place, values) for name, place in places.items()}
    count = len(found["requests"])
    return Claims(**{"positions": [None] * count, **found})


def paged_view(cache: Tensor, layout: str, block_size: int | None) -> Tensor:
    """A view of `cache` in the contract's shape [blocks, block_size, row]. ValueError if there is none."""
    import torch

    from gdnbench_kernels.swa_decode.layouts import CacheLayout

    row = CacheLayout(layout).row_size
    if cache.dtype == torch.int8 or (layout == CacheLayout.FP8_DS_MLA and cache.element_size() == 1):
        cache = cache.view(torch.uint8)
    if cache.ndim == 2:
        return _pages_of_two_axes(cache, layout, row, block_size)
    for axis in range(cache.ndim - 2, 0, -1):
        if cache.ndim > 3 and cache.shape[axis] == 1:
            cache = cache.squeeze(axis)
    while cache.ndim > 3 and cache.shape[0] == 1:
        cache = cache.squeeze(0)
    if cache.ndim != 3 or (block_size is not None and cache.shape[1] != block_size):
        said = "block_size" if block_size is None else str(block_size)
        raise ValueError(f"cache has shape {list(cache.shape)}; it must be [blocks, {said}, {row}]")
    return cache


def _pages_of_two_axes(cache: Tensor, layout: str, row: int, block_size: int | None) -> Tensor:
    if block_size is None:
        raise ValueError(f"cache has shape {list(cache.shape)}, two axes: the table must give its block_size")
    size, width = cache.shape
    if layout == "fp8_ds_mla":
        if width < block_size * row or cache.stride(1) != 1:
            raise ValueError(
                f"cache has shape {list(cache.shape)}; a page of {block_size} takes {block_size * row} bytes"
            )
        return cache.as_strided((size, block_size, row), (cache.stride(0), row, 1), cache.storage_offset())
    if size % block_size:
        raise ValueError(f"cache has {size} slots, not a multiple of its block_size {block_size}")
    return cache.view(size // block_size, block_size, width)


def _root(place: str) -> str:
    return re.split(r"[.\[]", place, maxsplit=1)[0]


def _target(name: str) -> Target:
    module, _, function = name.partition(":")
    return Target(module, function)


def _leading(tensor: Tensor, last: int) -> int:
    """The number of elements of all axes but the last `last`."""
    return tensor.shape[: tensor.ndim - last].numel()


def _flat(name: str, tensor: Tensor) -> Tensor:
    try:
        return tensor.view(-1)
    except RuntimeError:
        raise ValueError(
            f"{name}: no view of shape {list(tensor.shape)}, strides {list(tensor.stride())}, is flat"
        ) from None


def _expected(name: str, tensor: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """`shape`, if `tensor` has it, with its first axis possibly split in several; ValueError if not."""
    rest = shape[1:]
    if tensor.shape[-len(rest) :] != rest or _leading(tensor, len(rest)) != shape[0]:
        raise ValueError(f"{name} has shape {list(tensor.shape)}; it must be {list(shape)}")
    return shape
