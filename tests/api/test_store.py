# SPDX-License-Identifier: Apache-2.0
"""Stores from Python: tensors bit for bit, errors in one line, no printing, and closed at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

import gdnbench
from gdnbench.bits import DTYPES, logical, to_bits
from gdnbench.errors import exit_code_of
from gdnbench.store.writer import StoreWriter
from tests.cli.conftest import Invoke
from tests.store.store_samples import record, write_one

HOSTILE = "<script>alert(1)</script>'\"&\x1b[31m\u202e"
TENSORS = {
    dtype: torch.arange(64, dtype=torch.uint8).view(logical(dtype).torch_dtype)
    for dtype in DTYPES
    if dtype != "bool"
} | {"scalar": torch.tensor(-0.0).bfloat16()}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("stores") / "run.zarr"
    write_one(found, TENSORS)
    return found


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_in_three_forms(path: Path, name: str) -> None:
    held = TENSORS[name]
    with gdnbench.open(path) as store:
        tensor = store[0].before[name]
    assert (tensor.dtype, tensor.shape) == (str(held.dtype).removeprefix("torch."), tuple(held.shape))
    assert tensor.torch().dtype == held.dtype
    array, bits = tensor.numpy(), tensor.bits()
    assert array.dtype.name == tensor.dtype
    assert to_bits(tensor.torch()).tobytes() == array.tobytes() == bits.tobytes() == to_bits(held).tobytes()
    assert bits.dtype == logical(tensor.dtype).storage
    assert np.asarray(tensor).dtype == array.dtype


def test_a_store_is_a_sequence(path: Path, tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "five.zarr", kind="synth") as out:
        out.write("0", [record({"t": torch.ones(2)}, {"t": torch.zeros(2)}, call) for call in range(5)])
    with gdnbench.open(tmp_path / "five.zarr") as store:
        assert [one.number for one in store] == [0, 1, 2, 3, 4]
        assert [one.step for one in store[1:-1:2]] == [1, 3]
        assert store[-5].number == 0
        assert store[4].after["t"].torch().tolist() == [0, 0]
        assert (store.kind, store.problems, store.notes) == ("synth", (), ())
        assert repr(store) == f"<Store {tmp_path / 'five.zarr'}: 5 records, synth>"
        for index in (5, -6):
            with pytest.raises(gdnbench.NoRecordError) as error:
                store[index]
            assert isinstance(error.value, IndexError)
            assert str(error.value) == f"there is no record {index}; the store has records 0 to 4"
        with pytest.raises(KeyError) as missing:
            store[0].before["u"]
        assert str(missing.value) == "record 0, before the call, has no tensor 'u'; there are t"
        assert "u" not in store[0].before


def test_an_error_is_the_line_of_the_command(
    path: Path, tmp_path: Path, command: Invoke, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kernel.toml").write_text("[[accept]]\n")
    accept = tmp_path / "folder" / "kernel.toml"
    cases: dict[tuple[object, ...], Callable[[], object]] = {
        ("ls", tmp_path / "none"): lambda: gdnbench.open(tmp_path / "none"),
        ("replay", path, "--op", "gdn"): lambda: gdnbench.replay(path, op="gdn"),
        ("replay", path, "0,9"): lambda: gdnbench.replay(path, "0,9"),
        ("replay", path, "--on", "sim"): lambda: gdnbench.replay(path, on="sim"),
        ("diff", path, path, "--k", "2"): lambda: gdnbench.diff(path, path, k=2),
        ("sim", "none.ptx:k", "--grid", "1"): lambda: gdnbench.sim("none.ptx:k", grid=1),
        ("sim", "none:k", "--check", "--accept", accept): lambda: gdnbench.sim(
            "none:k", check=True, accept=accept
        ),
    }
    for words, call in cases.items():
        with pytest.raises(gdnbench.Error) as raised:
            call()
        done = command(*words)
        assert done.err.splitlines()[-1] == f"gdnbench: {raised.value}"
        assert done.code == exit_code_of(raised.value)  # type: ignore[arg-type]
    capfd.readouterr()
    with pytest.raises(gdnbench.StoreError) as error:
        gdnbench.open(tmp_path / "folder")
    assert isinstance(error.value, gdnbench.Error)
    assert isinstance(error.value, OSError)
    assert str(error.value) == f"{tmp_path / 'folder'} is not a gdnbench store: it has no zarr.json"
    with pytest.raises(gdnbench.BadInputError, match="give one of k, tol and bitwise"):
        gdnbench.replay(tmp_path / "none", rule={"o": {"k": 2, "tol": 1}})
    assert capfd.readouterr() == ("", "")


def test_a_missing_package_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("pandas", "ml_dtypes"):
        monkeypatch.setitem(sys.modules, package, None)
    with gdnbench.open(path) as store:
        with pytest.raises(gdnbench.CannotRunError) as error:
            store.to_pandas()
        said = "this needs pandas, which is not installed: pip install 'gdnbench[notebook]'"
        assert str(error.value) == said
        with pytest.raises(gdnbench.CannotRunError, match="this needs ml_dtypes"):
            store[0].before["bfloat16"].numpy()
        assert store[0].before["float32"].numpy().dtype == np.float32


class Safe(HTMLParser):
    """Fails for anything but tables, text and images that are in the page."""

    TAGS = frozenset(["div", "p", "b", "br", "span", "table", "thead", "tbody", "tr", "th", "td", "img"])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.TAGS
        for name, value in attrs:
            assert name in ("style", "alt", "src")
            assert name != "src" or (value or "").startswith("data:image/png;base64,")

    def handle_data(self, data: str) -> None:
        assert data.isprintable()


def check_html(text: str) -> str:
    parser = Safe()
    parser.feed(text)
    parser.close()
    return text


def test_hostile_text_is_escaped(tmp_path: Path) -> None:
    draft = record({"t": torch.ones(2)})
    info = replace(draft.info, layer=HOSTILE, scalars={HOSTILE: HOSTILE}, conventions={HOSTILE: HOSTILE})
    before = {HOSTILE: draft.before["t"]}
    with StoreWriter(tmp_path / "run.zarr", kind="capture") as out:
        out.write("0", [replace(draft, info=info, before=before)])
    with gdnbench.open(tmp_path / "run.zarr") as store:
        for shown in (store, store[0]):
            assert "&lt;script&gt;" in check_html(shown._repr_html_())
        result = gdnbench.diff(store, store)
        assert HOSTILE in result[0].layer
        refused = gdnbench.replay(store)  # it has none of the operation's tensors
        assert not refused.ok
        for found in (result, refused):
            check_html(found._repr_html_())
        for printed in (store[0], store[0].before, store[0].before[HOSTILE], result[0]):
            assert repr(printed).isprintable()
            assert r"\x1b[31m\u202e" in repr(printed)
        assert "&lt;script&gt;" in refused._repr_html_()
