"""The laws of swa_decode: independence and order of requests, order of pages, and slots that no request
attends to."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, Operation, Piece, Variant
from gdnbench_kernels.latent_pool import rows_of_slots, with_pages
from gdnbench_kernels.shrinking import select_units, take_units, with_tensors
from gdnbench_kernels.swa_decode.window import attended, flat_indices, shaped_indices

LOUDER = -4.0
"""Factor of the changed queries: their scores differ by several times as much."""


def variants(operation: Operation, call: Call) -> Iterator[Variant]:
    """One request changed; requests in another order; pages in another order; and other values where no
    request attends.

    - requests: no request depends on another one's query, length or entries.
    - order: a batch says only where its requests are.
    - pages: entries name the same rows in the same order, wherever their pages are. So the bits are the same.
    - unread slots: a slot that no request attends to is not read, and neither is what an entry past a row's
      length names, be it the live slot of another request. So the bits are the same.
    """
    requests = len(call.tensors["swa_lens"])
    if not requests:
        return
    if requests > 1:
        yield _one_request(operation, call)
        yield _reordered(operation, call)
    if len(call.tensors["cache"]) > 1:
        yield _pages(operation, call)
    if bool(_attended(call).any()):
        yield _unread(operation, call)


def _shape(call: Call) -> str:
    return call.conventions.get("index_shape", "TW")


def _flat(call: Call) -> Tensor:
    return flat_indices(call.tensors["swa_indices"], _shape(call))


def _attended(call: Call) -> Tensor:
    return attended(_flat(call), call.tensors["swa_lens"])


def _pieces(operation: Operation, call: Call, order: list[int]) -> Iterator[Piece]:
    """Each request of the first call in `order`, and the request at its place in the other call."""
    for place, request in enumerate(order):
        for name in operation.outputs(call):
            yield Piece(name, f"request {request}", (request,), (place,), head_axis=0)


def _one_request(operation: Operation, call: Call) -> Variant:
    """The longest request attends to half of its slots, with another query."""
    lens = call.tensors["swa_lens"].clone()
    chosen = int(lens.argmax())
    lens[chosen] //= 2
    q = call.tensors["q"].clone()
    q[chosen] = q[chosen].roll(1, 0) * LOUDER
    other = with_tensors(call, {**call.tensors, "q": q, "swa_lens": lens})
    pieces = _pieces(operation, call, list(range(len(lens))))
    kept = tuple(piece for piece in pieces if piece.one != (chosen,))
    return Variant("requests", f"request {chosen} changed", other, kept)


def _reordered(operation: Operation, call: Call) -> Variant:
    order = list(range(len(call.tensors["swa_lens"])))[::-1]
    other = with_tensors(call, select_units(call, operation.tensors, {"T": order}))
    pieces = tuple(_pieces(operation, call, order))
    return Variant("order", "requests in reverse order", other, pieces)


def _pages(operation: Operation, call: Call) -> Variant:
    cache = call.tensors["cache"]
    blocks, size = cache.shape[:2]
    indices, counts = _flat(call).clone(), _attended(call)
    slots = indices[counts]
    indices[counts] = (blocks - 1 - slots // size) * size + slots % size
    tensors = {**call.tensors, "swa_indices": shaped_indices(indices, _shape(call)).contiguous()}
    tensors["cache"] = with_pages(cache, take_units(cache, 0, range(blocks)[::-1]))
    if "inv_scale" in tensors:
        tensors["inv_scale"] = tensors["inv_scale"].view(blocks, size).flip(0).flatten()
    same = list(range(len(indices)))
    pieces = tuple(_pieces(operation, call, same))
    return Variant("pages", "pages in reverse order", with_tensors(call, tensors), pieces, exact=True)


def _unread(operation: Operation, call: Call) -> Variant:
    """Slots that no request attends to hold the rows of attended ones, which are finite; entries past a row's
    length name attended slots, of whichever request."""
    cache = call.tensors["cache"]
    blocks, size = cache.shape[:2]
    indices, counts = _flat(call).clone(), _attended(call)
    live = indices[counts].long()
    unread = torch.ones(blocks * size, dtype=torch.bool)
    unread[live] = False
    target = unread.nonzero().squeeze(1)
    source = live[torch.arange(len(target)) % len(live)]
    tensors = dict(call.tensors)
    tensors["cache"] = held = with_pages(cache, cache)
    layout = call.conventions.get("cache_layout", operation.default_conventions["cache_layout"])
    for of_slot in rows_of_slots(held, layout):
        of_slot[target // size, target % size] = of_slot[source // size, source % size]
    if "inv_scale" in tensors:
        tensors["inv_scale"] = tensors["inv_scale"].clone()
        tensors["inv_scale"][target] = tensors["inv_scale"][source]
    past = torch.arange(indices.shape[1]) >= call.tensors["swa_lens"].unsqueeze(1)
    indices[past] = live[torch.arange(int(past.sum())) % len(live)].to(indices.dtype)
    tensors["swa_indices"] = shaped_indices(indices, _shape(call)).contiguous()
    pieces = tuple(_pieces(operation, call, list(range(len(indices)))))
    what = "slots that no request attends to, and entries past the lengths"
    return Variant("unread slots", what, with_tensors(call, tensors), pieces, exact=True)
