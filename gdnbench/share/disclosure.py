# SPDX-License-Identifier: Apache-2.0
"""States in plain sentences what a copy hides, and what can still be inferred from it."""

from __future__ import annotations

from collections.abc import Iterable

HIDDEN: dict[str, tuple[str, ...]] = {
    "nothing": (
        "Elements are the model's own, bit for bit: activations, states and caches can be read from them. Who"
        " has the model's weights can test a guess of the prompt, and search for it token by token.",
    ),
    "rotation": (
        "Queries, keys, values, states and outputs are in bases of the copy's own, one for each process,"
        " layer and head, drawn at random and kept nowhere.",
        "A rotation keeps lengths and angles: norms, the Gram matrix of the keys, products of queries and"
        " keys, which tokens are equal or alike, attention weights, and whether two prompts of this copy"
        " share tokens.",
        "Outputs are left out, unless the failure is that of a recorded one: inputs rounded in another basis"
        " give others.",
        "Who has the model's weights and can guess as many tokens of its prompts as a head has features can"
        " solve for the rotations, and then read all of it; fewer are enough to test a guess.",
    ),
    "permutation": (
        "Features have other places and signs, one permutation for each process, layer and head, drawn at"
        " random and kept nowhere. The magnitudes of all elements are the model's own.",
        "As with a rotation, norms and products of keys and queries stay. A feature that is often large can"
        " be told from the others, so a permutation is undone more easily than a rotation.",
    ),
    "synthetic": (
        "Queries, values and states are random, of the lengths that were recorded. Outputs are left out.",
        "Keys are in a basis of their own for each record and head: their norms and Gram matrix are the"
        " model's, so which tokens are equal or alike can be told, and who has the model's weights can test a"
        " guess of the prompt by them and by the gates.",
    ),
}
"""By the kind of hiding."""

GATES = (
    "Gates and step sizes (g, beta or what they are made of) are the model's own, and so are A_log and"
    " dt_bias, which are weights and name the model.",
)
ALWAYS = (
    "Lengths of sequences, sizes of batches, numbers of heads and feature dimensions, numbers of slots and"
    " pages, shapes, strides and dtypes stay. With the layer's index they tell which family of models it is.",
    "Steps, calls and ranks keep their numbers and their order, not their times. Versions of public packages,"
    " of Python and of CUDA, names of GPUs and of functions in public packages stay.",
    "A pool that was recorded whole (--full-pools), and a page of a cache, may hold rows of other requests.",
)
CHANNELS: dict[str, tuple[str, ...]] = {
    "rotation": (
        "Queries, keys and the key axis of states of kda_* are permuted and negated, not rotated, because"
        " their gates belong to channels of a key: the magnitudes of their elements are the model's own.",
    ),
    "synthetic": (
        "Keys of kda_* are permuted and negated, not rotated, because their gates belong to channels of a"
        " key: the magnitudes of their elements are the model's own.",
    ),
}
"""What else a copy with gates for each channel shows, by the kind of hiding."""
TAPS = ("Taps and biases of convolutions are the model's own, and weights, which name the model.",)
CACHES = ("Sinks and the scales of FP8 caches are the model's own.",)


def sentences(hide: str, operations: Iterable[str]) -> list[str]:
    """The sentences for a copy with records of these operations, hidden in this way."""
    ops = set(operations)
    gates = GATES if any(op.startswith(("gdn_", "kda_")) for op in ops) else ()
    channels = CHANNELS.get(hide, ()) if any(op.startswith("kda_") for op in ops) else ()
    taps = TAPS if any(op.startswith("conv_") for op in ops) else ()
    caches = CACHES if ops & {"swa_decode", "v4_decode"} else ()
    return [*HIDDEN[hide], *channels, *gates, *taps, *ALWAYS, *caches]
