# SPDX-License-Identifier: Apache-2.0
"""Arguments of `gdnbench sim` as text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gdnbench.sim.argspec import DTYPES, Argument, TensorSpec, make_tensor, parse_argument
from gdnbench.sim.errors import InputError
from tests.messages import wording


def made(text: str, seed: int = 0) -> Tensor:
    value = parse_argument(text).value
    assert isinstance(value, TensorSpec)
    return make_tensor(value, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-7", -7),
        ("0x10", 16),
        ("3.5", 3.5),
        ("1e-3", 1e-3),
        ("inf", float("inf")),
        ("true", True),
        ("False", False),
        ("none", None),
        ("(64, 8)", (64, 8)),
        ("[1, 2]", (1, 2)),
        ("'mean'", "mean"),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert parse_argument(text) == Argument(None, value)
    assert parse_argument(f"some_name={text}") == Argument("some_name", value)
    assert type(parse_argument(text).value) is type(value)


@pytest.mark.parametrize(
    ("text", "shape", "strides", "dynamic"),
    [
        ("bf16[128,64]", (128, 64), (64, 1), (False, False)),
        ("bf16[?300, 1,128]", (300, 1, 128), (128, 128, 1), (True, False, False)),
        ("u8[5]:randint", (5,), (1,), (False,)),
        ("f32[]", (), (), ()),
        ("f32[0,4]", (0, 4), (4, 1), (False, False)),
        ("f16[64,8:1,64]", (64, 8), (1, 64), (False, False)),
        ("f16[3,8:20,1]:ones", (3, 8), (20, 1), (False, False)),
    ],
)
def test_tensors(
    text: str, shape: tuple[int, ...], strides: tuple[int, ...], dynamic: tuple[bool, ...]
) -> None:
    spec = parse_argument(text).value
    assert isinstance(spec, TensorSpec)
    assert (spec.shape, spec.strides, spec.dynamic) == (shape, strides, dynamic)
    tensor = made(text)
    assert (tuple(tensor.shape), tensor.stride()) == (shape, strides)
    assert tensor.dtype is DTYPES[spec.dtype]


@pytest.mark.parametrize("name", DTYPES)
def test_every_type_can_be_made(name: str) -> None:
    assert made(f"{name}[4,2]").dtype is DTYPES[name]
    assert made(f"{name}[4,2]:ones").double().eq(1).all()


def test_contents() -> None:
    assert made("f32[2,3]:arange").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert made("i32[3]:-7").tolist() == [-7, -7, -7]
    assert made("i64[1]:9007199254740993").tolist() == [9007199254740993]  # 2**53 + 1: not through a float
    assert made("f32[2]:0.5").tolist() == [0.5, 0.5]
    assert made("bf16[2]:nan").isnan().all()
    assert made("i32[3]").tolist() == [0, 0, 0]
    assert made("f32[100]:rand").ge(0).all()
    small = made("i8[1000]:randint")
    assert (small.min(), small.max()) == (0, 99)


def test_random_contents_come_from_the_seed() -> None:
    assert torch.equal(made("f32[64]", seed=1), made("f32[64]", seed=1))
    assert not torch.equal(made("f32[64]", seed=1), made("f32[64]", seed=2))


def test_strides_do_not_change_the_contents() -> None:
    assert torch.equal(made("f32[4,6:1,5]", seed=3), made("f32[4,6]", seed=3))


def test_files(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.float32).reshape(2, 3))
    torch.save(torch.ones(4, dtype=torch.bfloat16), tmp_path / "y.pt")
    x = parse_argument(f"x=@{tmp_path / 'x.npy'}")
    assert x.name == "x"
    assert isinstance(x.value, Tensor)
    assert x.value.tolist() == [[0, 1, 2], [3, 4, 5]]
    y = parse_argument(f"@{tmp_path / 'y.pt'}").value
    assert isinstance(y, Tensor)
    assert y.dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f32[3", wording("sim.argument-wrong")),
        ("abc", wording("sim.argument-wrong")),
        ("{[]: 1}", wording("sim.argument-wrong")),
        (f"{'-' * 9999}1", wording("sim.argument-wrong")),
        ("f33[3]", wording("sim.argument-type", dtype="f33", known="f64")),
        ("f32[3,x]", "extent 'x'"),
        ("f32[-3]", "extent '-3'"),
        ("f32[3,4:1]", wording("sim.argument-strides")),
        ("f32[3:a]", wording("sim.argument-strides")),
        (f"f32[3:{'9' * 5000}]", wording("sim.argument-strides")),
        ("i32[3]:randn", wording("sim.argument-fill-float")),
        ("f32[3]:gauss", wording("sim.argument-fill", fill="gauss")),
        ("@missing.npy", wording("file.unreadable", path="missing.npy", reason="No such file")),
        ("@x.txt", wording("sim.argument-file-type")),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_argument(text)
    assert re.search(message, str(caught.value))
    assert repr(text) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "f32[99999999999999]",
        "i8[99999999999999]:arange",
        "f32[999999999999999999,999999999999999999]",
        "f32[2:9223372036854775807]:0",
        "f32[2:99999999999999999999999]:0",
        "i32[2]:1e300",
    ],
)
def test_a_tensor_that_cannot_be_made(text: str) -> None:
    with pytest.raises(InputError, match="^" + wording("sim.tensor-not-made")) as caught:
        made(text)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_array(tmp_path: Path) -> None:
    for name in ("x.npy", "x.pt"):
        (tmp_path / name).write_bytes(b"nothing")
        with pytest.raises(InputError, match=wording("sim.argument-file-empty")):
            parse_argument(f"@{tmp_path / name}")
