# SPDX-License-Identifier: Apache-2.0
"""A GDN decode kernel with one bug: value head hv reads key head hv % H; the model means hv // (Hv // H).

It is what a user hands to `gdnbench replay --kernel FILE:FUNCTION`: the contract's tensors by name, `o` to be
filled, `state` updated in place.
"""

from torch import Tensor


def gdn_decode(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, state_indices: Tensor,
    scale: float, o: Tensor,
) -> None:  # fmt: skip
    repeats = v.shape[2] // k.shape[2]
    q, k = (x[:, 0].repeat(1, repeats, 1).float() for x in (q, k))  # wrong: should be repeat_interleave
    slots = state_indices[:, 0].long()
    s = state[slots] * g[:, 0].exp()[..., None, None]
    update = beta[:, 0, :, None] * (v[:, 0] - (s @ k[..., None])[..., 0])
    s = s + update[..., None] * k[..., None, :]
    state[slots] = s
    o[:, 0] = (scale * (s @ q[..., None])[..., 0]).to(o.dtype)
