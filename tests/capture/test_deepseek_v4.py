# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4 of transformers, tiny and random: its sliding layers recorded as rows of swa_decode.

What a row attends to is checked against the model's own rule for it, computed here from the prompt's lengths
alone, and the recorded output against attention written out here over the model's own rows.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.capture import CaptureOptions, capturing
from gdnbench.capture.adapter import NotCaptured, Target
from gdnbench.capture.adapters.deepseek_v4 import MODULE, DeepseekV4Adapter, window_indices
from gdnbench.ops import operation
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store, StoredRecord
from gdnbench.store.verify import verify
from gdnbench_kernels.contract import Call
from tests.messages import wording
from tests.subset import quick

SLIDING, CSA, HCA = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
TARGET = Target(MODULE, "eager_attention_forward")
HEADS = 4
PADS = (0, 5, 13)
"""Left padding of the prompts of a batch."""
PROMPT = 20
WINDOW = 128


def tiny_model(layers: tuple[str, ...] = (SLIDING, SLIDING), **changes: Any) -> Any:
    from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

    config = DeepseekV4Config(
        **{
            "vocab_size": 64,
            "hidden_size": 64,
            "moe_intermediate_size": 32,
            "num_hidden_layers": len(layers),
            "num_attention_heads": HEADS,
            "q_lora_rank": 32,
            "num_experts_per_tok": 2,
            "n_routed_experts": 4,
            "layer_types": list(layers),
            "mlp_layer_types": ["moe"] * len(layers),
            "o_groups": 2,
            "o_lora_rank": 16,
            "index_n_heads": 2,
            "index_head_dim": 128,
            "index_topk": 8,
            "hc_mult": 2,
            "pad_token_id": 0,
            "bos_token_id": None,
            "eos_token_id": None,
            **changes,
        }
    )
    torch.manual_seed(0)
    model: Any = DeepseekV4ForCausalLM(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    return model.to(torch.bfloat16).eval()


def prompts(seed: int = 0) -> dict[str, Tensor]:
    ids = torch.randint(1, 64, (len(PADS), PROMPT), generator=torch.Generator().manual_seed(seed))
    kept = torch.ones_like(ids)
    for row, pad in enumerate(PADS):
        ids[row, :pad] = kept[row, :pad] = 0
    return {"input_ids": ids, "attention_mask": kept}


def generate(model: Any, tokens: int) -> Tensor:
    found: Tensor = model.generate(**prompts(), max_new_tokens=tokens, do_sample=False)
    return found


@contextmanager
def spying() -> Iterator[list[dict[str, Any]]]:
    """Clones of what goes into the attention of sliding layers and comes out, by hand, below any capture."""
    calls: list[dict[str, Any]] = []
    deepseek_v4 = importlib.import_module(MODULE)
    original = deepseek_v4.eager_attention_forward

    @functools.wraps(original)
    def spied(module: Any, query: Tensor, key: Tensor, *rest: Any, **more: Any) -> Any:
        given = {"q": query.clone(), "rows": key[:, 0].clone(), "sinks": module.sinks.detach().clone()}
        result = original(module, query, key, *rest, **more)
        if module.layer_type == SLIDING:
            calls.append(given | {"o": result[0].clone()})
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deepseek_v4, "eager_attention_forward", spied)
        yield calls


def allowed_keys(step: int, query: int, pad: int) -> range:
    """Positions that a query attends to: itself and up to 127 before it, none of them padding.

    Step 0 is the prompt, step n the n-th new token; a padding query attends to nothing.
    """
    position = query if step == 0 else PROMPT + step - 1
    if position < pad:
        return range(0)
    return range(max(pad, position - WINDOW + 1), position + 1)


def attended_positions(record: StoredRecord, row: int, step: int) -> list[int]:
    """The positions that a row of a record names, from its slots; each must be of the row's own pages."""
    tokens = record.before["q"].meta.shape[0] // len(PADS)
    block_size = record.before["cache"].meta.shape[1]
    pages = record.before["cache"].meta.shape[0] // len(PADS)
    length = int(record.before["swa_lens"].read()[row])
    slots = [slot for slot in record.before["swa_indices"].read()[row, :length].tolist() if slot != -1]
    sequence = row // tokens
    assert all(slot // (pages * block_size) == sequence for slot in slots)
    # transformers holds the last 127 rows and the new ones: key 0 of a call is not always position 0.
    first = 0 if step == 0 else max(0, PROMPT + step - WINDOW)
    return [slot - sequence * pages * block_size + first for slot in slots]


def attention(q: Tensor, rows: Tensor, sinks: Tensor) -> Tensor:
    """fp64 o [H, 512] of q [H, 512] over rows [n, 512]."""
    scores = q.double() @ rows.double().T * 512**-0.5
    weights = torch.softmax(torch.cat([scores, sinks.double()[:, None]], dim=1), dim=1)[:, :-1]
    return weights @ rows.double()


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A left-padded batch whose decode runs past the window, and what a spy saw of it."""
    store = tmp_path_factory.mktemp("captured") / "run.zarr"
    model = tiny_model()
    plain = generate(model, 125)
    with spying() as calls, capturing(store) as counts:
        assert torch.equal(generate(model, 125), plain)
    assert (counts.records, counts.failures, counts.first_failure) == (250, 0, None)
    return store, calls


@pytest.mark.slow
def test_every_row_names_its_window(captured: tuple[Path, Any]) -> None:
    with Store.open(captured[0]) as store:
        for number, record in enumerate(store.records):
            step = number // 2
            assert (record.info.step, record.info.layer) == (step, f"model.layers.{number % 2}.self_attn")
            assert record.info.dispatch["path"] == ("prefill" if step == 0 else "decode")
            rows = record.before["q"].meta.shape[0]
            assert rows == len(PADS) * (PROMPT if step == 0 else 1)
            for row in range(rows):
                sequence, query = divmod(row, rows // len(PADS))
                expected = list(allowed_keys(step, query, PADS[sequence]))
                assert attended_positions(record, row, step) == expected, (step, row)
        lens = store.records[-1].before["swa_lens"].read()
        assert lens.tolist() == [128, 128, 128]  # position 143: past the window, and past all padding
        holes = store.records[100].before["swa_indices"].read()
        assert holes[2, :13].tolist() == [-1] * 13


def test_elements_are_the_models_own(captured: tuple[Path, list[dict[str, Any]]]) -> None:
    path, calls = captured
    with Store.open(path) as store:
        for record, call in zip(store.records, calls, strict=True):
            q, o = (record.before["q"].read(), record.after["o"].read())
            assert torch.equal(q, call["q"].transpose(1, 2).flatten(0, 1))
            assert torch.equal(o, call["o"].flatten(0, 1))
            assert torch.equal(record.before["attn_sink"].read(), call["sinks"].float())
            keys = call["rows"].shape[1]
            pages = record.before["cache"].read().view(len(PADS), -1, 512)
            assert torch.equal(pages[:, :keys], call["rows"])
            assert not pages[:, keys:].any()
            assert record.info.conventions == {"cache_layout": "bfloat16", "index_shape": "TW"}


def test_recorded_outputs_are_attention_over_the_models_rows(
    captured: tuple[Path, list[dict[str, Any]]],
) -> None:
    """Last step: rows from the spy, window by rule, no index of the record.

    Eager attention rounds each score to bfloat16, off by 2^-9 of it, which is up to e = 2^-9 max|s| in a
    weight's logarithm; a weight is rounded too, 2^-9. What rows of magnitude m make of it is at most
    (2 e + 2^-9) m before the output's own 2^-9.
    """
    path, calls = captured
    with Store.open(path) as store:
        o = store.records[-1].after["o"].read()
    call = calls[-1]
    for sequence in range(len(PADS)):
        rows, q = call["rows"][sequence], call["q"][sequence, :, 0]
        assert len(rows) == WINDOW  # the whole window, no padding left
        exact = attention(q, rows, call["sinks"])
        largest = (q.double() @ rows.double().T * 512**-0.5).abs().max()
        bound = (2 * 2**-9 * largest + 2 * 2**-9) * rows.double().abs().max()
        assert (o[sequence].double() - exact).abs().max() <= bound
        assert exact.abs().max() > 10 * bound  # the bound could tell a wrong window


def test_records_replay(captured: tuple[Path, Any]) -> None:
    """By the oracle at k = 2; against what was recorded at k = 4, as the model rounds its scores to bfloat16
    and torch's kernel does not: two roundings of like size more, in a weight and in its sum."""
    some = [0, 1, 2, 21, 100, 230, 249]
    with Store.open(captured[0]) as store:
        for kernel, against, k in (("torch", "reference", 2.0), ("torch", "recorded", 4.0)):
            report = replay(store, kernel=kernel, against=against, k=k, records=some)
            assert [(one.outcome, one.reason) for one in report.records] == [(Outcome.PASS, "")] * len(some)


def test_a_wrong_window_does_not_replay(captured: tuple[Path, Any], tmp_path: Path) -> None:
    """The recorded output tells a window that lacks its newest key."""
    (tmp_path / "late.py").write_text(
        "from gdnbench_kernels.swa_decode.torch_paged import torch_paged\n"
        "def kernel(q, cache, swa_indices, swa_lens, attn_sink, cache_layout):\n"
        "    return torch_paged(q=q, cache=cache, swa_indices=swa_indices, swa_lens=swa_lens - 1,\n"
        "                       attn_sink=attn_sink, cache_layout=cache_layout)\n"
        "kernel.conventions = {'cache_layout': 'bfloat16'}\n"
    )
    with Store.open(captured[0]) as store:
        report = replay(
            store,
            kernel=f"{tmp_path}/late.py:kernel",
            against="recorded",
            k=4.0,
            records=[100],
            isolate=False,
        )
    assert [one.outcome for one in report.records] == [Outcome.MISMATCH]


@pytest.mark.every(2)
@pytest.mark.parametrize("layout", ["per_token_scale", "fp8_ds_mla"])
@pytest.mark.parametrize("block_size", [16, 128])
def test_rows_packed_into_an_fp8_layout(layout: str, block_size: int, tmp_path: Path) -> None:
    """What a row's bytes say is the model's value within the layout's rounding.

    e4m3 keeps 3 bits: half of 2^-3 of a value, or of 2^-6 for one below that (times the scale). A scale of
    per_token_scale is amax / 448; one of fp8_ds_mla is a power of two, up to twice amax / 448 of its 64.
    """
    options = CaptureOptions(cache_layout=layout, block_size=block_size)
    with spying() as calls, capturing(tmp_path / "run.zarr", options) as counts:
        generate(tiny_model((SLIDING,)), 4)
    assert (counts.records, counts.first_failure) == (4, None)
    with Store.open(tmp_path / "run.zarr") as store:
        for record, call in zip(store.records, calls, strict=True):
            assert dict(record.after) == {}
            assert record.info.dispatch["outputs"].startswith("not recorded: ")
            rows = call["rows"].double()
            pages = -(-rows.shape[1] // block_size)
            assert record.before["cache"].meta.shape[:2] == (len(PADS) * pages, block_size)
            values, scales = (x.view(len(PADS), pages * block_size, -1) for x in unpacked(record))
            keys = rows.shape[1]
            error = (values[:, :keys] - rows)[..., : 512 if layout == "per_token_scale" else 448].abs()
            width = error.shape[-1]
            limit = torch.maximum(2.0**-4 * rows[..., :width].abs(), 2.0**-10 * scales[:, :keys, :width])
            assert (error <= limit * (1 + 2.0**-20)).all()  # scale and quotient are fp32
            if layout == "fp8_ds_mla":
                assert torch.equal(values[:, :keys, 448:], rows[..., 448:])
        outcomes = {
            against: {one.outcome for one in replay(store, kernel="torch", against=against).records}
            for against in ("reference", "recorded")
        }
    assert outcomes == {"reference": {Outcome.PASS}, "recorded": {Outcome.NOT_COMPARABLE}}
    assert verify(tmp_path / "run.zarr").ok


def unpacked(record: StoredRecord) -> tuple[Tensor, Tensor]:
    """(values, scale of each value) of every slot of a record, in fp64 [slots, 512], read byte by byte."""
    cache = record.before["cache"].read()
    blocks, block_size, row = cache.shape
    if row == 512:
        scales = record.before["inv_scale"].read().double()[:, None].expand(-1, 512)
        return cache.double().view(-1, 512) * scales, scales
    found, wide = [], []
    for page in cache.reshape(blocks, -1):
        for offset in range(block_size):
            data = page[offset * 576 : (offset + 1) * 576]
            raw = page[block_size * 576 + offset * 8 :][:8].tolist()
            assert raw[7] == 0
            scale = torch.tensor([2.0 ** (byte - 127) for byte in raw[:7]], dtype=torch.float64)
            scale = scale.repeat_interleave(64)
            nope = data[:448].clone().view(torch.float8_e4m3fn).double() * scale
            found.append(torch.cat([nope, data[448:].clone().view(torch.bfloat16).double()]))
            wide.append(torch.cat([scale, torch.zeros(64, dtype=torch.float64)]))
    return torch.stack(found), torch.stack(wide)


def test_layers_with_compressed_keys_are_left_alone_and_said_so(tmp_path: Path) -> None:
    model = tiny_model((CSA, SLIDING, HCA))
    plain = generate(model, 3)
    with capturing(tmp_path / "run.zarr") as counts:
        assert torch.equal(generate(model, 3), plain)
    assert (counts.records, counts.failures) == (3, 0)
    assert sorted(counts.passed_over.values()) == [3, 3]
    for kind in (CSA, HCA):
        compressed = wording("capture.layers-compressed", kind=kind)
        assert any(re.fullmatch(compressed, reason) for reason in counts.passed_over)
    with Store.open(tmp_path / "run.zarr") as store:
        assert {record.info.layer_index for record in store.records} == {1}


PROGRAM = """
import sys
from tests.capture import test_deepseek_v4 as tests
print(tests.generate(tests.tiny_model((tests.SLIDING, tests.CSA)), 3).tolist())
sys.stdout.flush()
if {kill}:
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow  # processes that import torch
@pytest.mark.parametrize("kill", quick([False, True], 1))
def test_the_command(kill: bool, tmp_path: Path) -> None:
    """Summary, status and store; a killed program leaves what it recorded."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(kill=kill))
    words = [
        "capture",
        tmp_path / "run.zarr",
        "--op",
        "swa_decode",
        "--block-size",
        "32",
        "--",
        sys.executable,
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "gdnbench", *map(str, words), str(script)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout.count("\n")) == (128 + 9 if kill else 0, 1), ran.stderr
    assert "gdnbench: 3 records" in ran.stderr
    compressed = re.compile(wording("capture.layers-compressed", kind=CSA))
    said = "gdnbench: " + wording("capture.not-recorded", calls=3, reason=compressed)
    assert bool(re.search(said, ran.stderr)) is not kill  # counts are told at a process's end
    with Store.open(tmp_path / "run.zarr") as store:
        assert {record.before["cache"].meta.shape[1] for record in store.records} == {32}
        report = replay(store, kernel="torch", against="recorded", k=4.0)
    assert {one.outcome for one in report.records} == {Outcome.PASS}


def call_of(batch: int = 2, tokens: int = 1, keys: int = 6, dim: int = 512, **changes: Any) -> dict[str, Any]:
    class Module:
        layer_type = SLIDING
        sinks = torch.zeros(HEADS)
        training = False

    rows = torch.randn(batch, 1, keys, dim).bfloat16()
    return {
        "module": Module(),
        "query": torch.randn(batch, HEADS, tokens, dim).bfloat16(),
        "key": rows,
        "value": rows,
        "attention_mask": None,
        "scaling": 0.1,
        "dropout": 0.0,
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dim": 128}, wording("capture.head-dim", given=128, wanted=512)),
        ({"query": torch.zeros(2, HEADS, 1, 512)}, wording("capture.query-dtype", dtype="float32")),
        (
            {"query": torch.zeros(2, 129, 1, 512).bfloat16()},
            wording("capture.head-count", given=129, most=128),
        ),
        ({"value": torch.zeros(2, 1, 6, 512).bfloat16()}, wording("capture.keys-not-values")),
        ({"attention_mask": torch.ones(2, 1, 1, 6, dtype=torch.bool)}, wording("capture.mask-shape")),
        ({"attention_mask": torch.zeros(2, HEADS, 1, 6)}, wording("capture.mask-shape")),
    ],
)
def test_calls_that_swa_decode_does_not_describe(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotCaptured, match=reason):
        DeepseekV4Adapter().before(TARGET, call_of(**changes), None)


def test_dropout_in_training_is_no_record() -> None:
    given = call_of(dropout=0.1)
    assert DeepseekV4Adapter().before(TARGET, given, None).op == "swa_decode"
    given["module"].training = True
    with pytest.raises(NotCaptured, match=wording("capture.dropout-on")):
        DeepseekV4Adapter().before(TARGET, given, None)


@pytest.mark.parametrize("keys", [1, 6, 128, 200])
def test_calls_are_valid_and_without_a_mask_attend_to_all(keys: int) -> None:
    seen = DeepseekV4Adapter(block_size=16).before(TARGET, call_of(keys=keys), None)
    tensors = {n: s.tensor if s.shape is None else s.tensor.reshape(s.shape) for n, s in seen.tensors.items()}
    if keys > WINDOW:
        assert seen.finish is not None
        with pytest.raises(NotCaptured, match=wording("capture.mask-window")):
            seen.finish(tensors)
        return
    operation("swa_decode").validate(Call(tensors, seen.scalars, seen.conventions))
    assert tensors["swa_lens"].tolist() == [keys, keys]
    pages = -(-keys // 16)
    assert tensors["swa_indices"][1, :keys].tolist() == list(range(pages * 16, pages * 16 + keys))


def test_a_mask_that_adds_something_is_no_window() -> None:
    mask = torch.zeros(2, 1, 1, 6)
    mask[0, 0, 0, 2] = -1.5
    seen = DeepseekV4Adapter().before(TARGET, call_of(attention_mask=mask), None)
    assert seen.finish is not None
    with pytest.raises(NotCaptured, match=wording("capture.mask-values")):
        seen.finish({name: one.tensor for name, one in seen.tensors.items()})


@pytest.mark.parametrize("least", [-torch.inf, torch.finfo(torch.bfloat16).min])
def test_windows_of_a_mask(least: float) -> None:
    """One mask for both sequences, two queries: keys 1 and 4 of 6; none."""
    mask = torch.full((1, 1, 2, 6), least, dtype=torch.bfloat16)
    mask[0, 0, 0, [1, 4]] = 0
    indices, lens = window_indices(mask, 2, 2, 6, 16, "cpu")
    assert lens.tolist() == [5, 0, 5, 0]
    assert indices[0, :6].tolist() == [-1, 1, -1, -1, 4, -1]
    assert indices[2, :6].tolist() == [-1, 17, -1, -1, 20, -1]
    assert (indices[[1, 3]] == -1).all()
    assert indices.dtype == lens.dtype == torch.int32
