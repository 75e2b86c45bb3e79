# SPDX-License-Identifier: Apache-2.0
"""Selection, layer names, repeated heads, pool checksums, options: each rule by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from gdnbench.capture.head_dedup import collapse_repeated_heads
from gdnbench.capture.layers import Layer, LayerNames
from gdnbench.capture.options import CaptureOptions
from gdnbench.capture.selection import Selection, layer_matches
from gdnbench.errors import BadInputError
from gdnbench.pools import checksum, digits, mixed, row_sums, untouched_rows
from tests.messages import wording


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ({"first": 3}, [0, 1, 2]),
        ({"every": 4}, [0, 4, 8]),
        ({"every": 4, "first": 2}, [0, 4]),
        ({"op": ("gdn_decode",)}, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ({"op": ("gdn_decode",), "every": 3}, [1, 4, 7]),
    ],
)
def test_steps_kept_of_one_prefill_and_nine_decodes(options: dict[str, object], kept: list[int]) -> None:
    selection = Selection(CaptureOptions(**options))  # type: ignore[arg-type]
    layers = [Layer("a", 0), Layer("b", 1)]
    found = []
    for step in range(10):
        op = "gdn_prefill" if step == 0 else "gdn_decode"
        which = [selection.keeps(op, layer) for layer in layers]
        assert len(set(which)) == 1, "a kept step has every layer"
        if which[0]:
            found.append(step)
    assert found == kept


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("3", True),
        ("0-3", True),
        ("4-9", False),
        ("0-2", False),
        ("*.3.*", True),
        ("model.*", True),
        ("3*", False),
    ],
)
def test_layer_patterns(pattern: str, matches: bool) -> None:
    assert layer_matches(pattern, Layer("model.layers.3.linear_attn", 3)) is matches


def test_lists_of_layers() -> None:
    selection = Selection(CaptureOptions(layer=("0,2", "7-8")))
    assert [n for n in range(10) if selection.keeps("op", Layer(f"l{n}", n))] == [0, 2, 7, 8]


def test_a_layer_is_named_by_its_path_and_without_parents_by_its_class() -> None:
    class Block(nn.Module):
        def __init__(self, index: int) -> None:
            super().__init__()
            self.layer_idx = index

    model = nn.Sequential()
    model.add_module("layers", nn.ModuleList([Block(5), Block(6)]))
    names = LayerNames()
    layer = names.layer_of(model.layers[1])  # type: ignore[index]
    assert (layer.name, layer.index) == ("layers.1", 6)
    assert names.layer_of(model.layers[1]) is layer  # type: ignore[index]
    alone = Block(7)
    assert (names.layer_of(alone).name, names.layer_of(alone).index) == ("Block.7", 7)


def heads(tokens: int, count: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(2, tokens, count, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("count", "ratio"), [(4, 1), (4, 2), (2, 3), (3, 4), (1, 8)])
def test_repeated_heads_are_kept_once(count: int, ratio: int, dtype: torch.dtype) -> None:
    q, k = (heads(5, count, 16, seed).to(dtype) for seed in (0, 1))
    called = {"q": q.repeat_interleave(ratio, dim=2), "k": k.repeat_interleave(ratio, dim=2), "v": q}
    kept, dispatch = collapse_repeated_heads(called)
    assert dispatch == {"repeated": ratio}
    assert torch.equal(kept["q"], q)
    assert torch.equal(kept["k"], k)
    assert kept["v"] is q


def test_one_different_bit_anywhere_keeps_every_head() -> None:
    q = heads(5, 2, 16, 0).repeat_interleave(2, dim=2)
    for place in [(0, 0, 1, 0), (1, 4, 3, 15), (0, 2, 2, 7)]:
        changed = q.clone()
        changed[place] = torch.nextafter(changed[place], torch.tensor(torch.inf))
        assert collapse_repeated_heads({"q": q, "k": changed})[1] == {"repeated": 1}
        assert collapse_repeated_heads({"q": changed, "k": q})[1] == {"repeated": 1}


def test_equality_is_of_bits() -> None:
    q = torch.full((1, 1, 2, 4), torch.nan)
    assert collapse_repeated_heads({"q": q, "k": q})[1] == {"repeated": 2}
    signs = torch.zeros(1, 1, 2, 4)
    signs[0, 0, 1] = -0.0
    assert collapse_repeated_heads({"q": signs, "k": q})[1] == {"repeated": 1}


def test_heads_of_no_tokens_are_left_alone() -> None:
    empty = torch.empty(1, 0, 4, 8)
    assert collapse_repeated_heads({"q": empty, "k": empty})[1] == {"repeated": 1}


def independent_checksum(pool: torch.Tensor, rows: list[int]) -> int:
    """The documented sum, in Python's integers."""
    odd, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1
    rows_of_bytes = np.ascontiguousarray(pool.numpy()).reshape(pool.shape[0], -1).view(np.uint8)
    word = next(w for w in (np.int32, np.int16, np.uint8) if not rows_of_bytes.shape[1] % w().nbytes)
    words = rows_of_bytes.view(word).astype(object)
    total = 0
    for row in rows:
        s = sum(int(word) * (2 * j + 1) * odd for j, word in enumerate(words[row])) & mask
        signed = s - (1 << 64) if s >> 63 else s
        total += ((signed ^ (signed >> 29)) * odd) * (2 * row + 1)
    return total & mask


def pools() -> dict[str, torch.Tensor]:
    make = torch.Generator().manual_seed(0)
    fresh = torch.randn(6, 4, 6, generator=make)
    return {
        "words of 4": fresh,
        "words of 4, of two elements": fresh.half(),
        "elements of two words": fresh.double(),
        "words of 2": fresh[:, :3, :5].half(),
        "bytes": fresh[:, :3, :5].clamp(-1, 1).mul(100).to(torch.int8),
        "rows apart": torch.randn(6, 9, 6, generator=make)[:, 2:6],
        "beginning inside a word": torch.randn(6 * 24 + 1, generator=make).half()[1:].view(6, 4, 6),
        "rows apart by half a word": torch.randn(6, 25, generator=make).half()[:, :24],
        "columns first": fresh.transpose(1, 2),
    }


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("name", pools())
def test_checksum_is_the_documented_sum(name: str, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pools()[name]
    words = pool[0].numel()
    monkeypatch.setattr("gdnbench.pools._BLOCK_WORDS", words * 2 if blocks > 1 else words * 100)
    for rows in ([0, 1, 2, 3, 4, 5], [2], [1, 5], []):
        assert digits(checksum(pool, torch.tensor(rows, dtype=torch.int64))) == (
            f"{independent_checksum(pool, rows):016x}"
        )


def test_sums_of_all_rows_are_those_of_each() -> None:
    for pool in pools().values():
        every = torch.arange(len(pool))
        sums = torch.full((len(pool),), 7)
        row_sums(pool, sums)
        assert digits(mixed(sums, every).sum()) == f"{independent_checksum(pool, every.tolist()):016x}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_checksum_sees_every_single_bit_and_rows_that_change_places(dtype: torch.dtype) -> None:
    pool = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    rows = torch.arange(4)
    words = pool.view(torch.int32 if dtype == torch.float32 else torch.int16)
    seen = {digits(checksum(pool, rows))}
    bits = 8 * pool.element_size()
    for index in range(words.numel()):
        for bit in range(bits):
            flipped = words.clone()
            flipped.view(-1)[index] ^= torch.tensor(1 << bit).to(words.dtype)
            seen.add(digits(checksum(flipped.view(dtype), rows)))
    assert len(seen) == 1 + words.numel() * bits
    assert digits(checksum(pool[[1, 0, 2, 3]], rows)) not in seen


def test_untouched_rows_are_the_others() -> None:
    assert untouched_rows(6, torch.tensor([4, 1], dtype=torch.int32)).tolist() == [0, 2, 3, 5]
    assert untouched_rows(2, torch.tensor([0, 1])).tolist() == []


def test_options_survive_the_environment() -> None:
    options = CaptureOptions(target=("a", "b:c"), layer=("0-3",), every=16, sync=True, when_full="drop")
    assert CaptureOptions.from_json(options.to_json()) == options
    assert CaptureOptions.from_environment({}) == CaptureOptions()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", wording("file.not-json", path="GDNBENCH_CAPTURE_OPTIONS")),
        ("[1]", wording("capture.options-not-object", value=[1])),
        (
            '{"frist": 1}',
            wording(
                "capture.option-unknown", name="frist", known="around, block_size, break_graphs, cache_layout"
            ),
        ),
        ('{"first": 0}', wording("capture.option-above-zero", name="first", value=0)),
        ('{"every": true}', wording("capture.option-above-zero", name="every", value=True)),
        ('{"every": "2"}', wording("capture.option-above-zero", name="every", value="2")),
        ('{"layer": "3"}', wording("capture.option-strings", name="layer", value="3")),
        ('{"layer": [3]}', wording("capture.option-strings", name="layer", value=(3,))),
        ('{"layer": ["0,3-1"]}', wording("capture.layer-reversed", part="3-1", low=1, high=3)),
        ('{"layer": [","]}', wording("capture.layer-empty", layer=[","])),
        ('{"sync": 1}', wording("capture.option-flag", name="sync", value=1)),
        ('{"when_over": "drop"}', wording("capture.when-over", when_over="drop")),
        ('{"when_over": "drop-oldest"}', wording("capture.when-over-alone")),
        ('{"when_full": "wait"}', wording("capture.when-full", when_full="wait")),
    ],
)
def test_broken_options_are_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(BadInputError, match=said) as caught:
        CaptureOptions.from_json(text)
    assert "\n" not in str(caught.value)
