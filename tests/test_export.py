# SPDX-License-Identifier: Apache-2.0
"""`gdnbench export`: each format's own reader finds every bit, and no file is replaced without a word."""

from __future__ import annotations

import errno
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors import safe_open

from gdnbench.bits import DTYPES, logical, to_bits
from gdnbench.errors import BadInputError
from gdnbench.export import export_record
from gdnbench.export_format import Format
from gdnbench.store.reader import Store
from tests.cli.conftest import Invoke, gdnbench  # noqa: F401 (a fixture)
from tests.messages import wording
from tests.store.store_samples import write_one

FNUZ = ("float8_e4m3fnuz", "float8_e5m2fnuz")


def every_pattern(dtype: str) -> torch.Tensor:
    """All 256 patterns of a byte, or of the upper byte of each element: NaN payloads, -0.0, denormals."""
    storage = logical(dtype).storage
    values = np.arange(256, dtype=np.uint8).repeat(storage.itemsize)
    if dtype == "bool":
        values &= 1
    return torch.from_numpy(values).view(logical(dtype).torch_dtype).reshape(2, 128)


TENSORS = {dtype: every_pattern(dtype) for dtype in DTYPES} | {
    "scalar": torch.tensor(1.5),
    "empty": torch.empty(0, 3),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of one record, and that record in each format as record.FORMAT."""
    folder = tmp_path_factory.mktemp("exported")
    write_one(folder / "run.zarr", TENSORS)
    with Store.open(folder / "run.zarr") as store:
        for to in Format:
            export_record(store.records[0], folder / f"record.{to}", to)
    return folder


def described(found: dict[str, Any]) -> None:
    assert (found["op"], found["step"], found["key"][-2:]) == ("gdn_decode", 0, "/0")
    assert found["scalars"] == {"scale": 0.125, "use_qk_l2norm": True, "chunk_size": None}
    assert found["dtypes"] == {
        f"before.{name}": str(tensor.dtype).removeprefix("torch.") for name, tensor in TENSORS.items()
    }
    assert found["axes"]["before.bfloat16"] == ["d0", "d1"]


def test_safetensors(exported: Path) -> None:
    with safe_open(exported / "record.safetensors", "pt") as file:
        described(json.loads(file.metadata()["gdnbench"]))
        assert set(file.keys()) == {f"before.{name}" for name in TENSORS}
        for name, tensor in TENSORS.items():
            found = file.get_tensor(f"before.{name}")
            assert found.dtype == (torch.uint8 if name in FNUZ else tensor.dtype)
            assert found.shape == tensor.shape
            assert to_bits(found).tobytes() == to_bits(tensor).tobytes(), name


def test_npz(exported: Path) -> None:
    with np.load(exported / "record.npz", allow_pickle=False) as file:
        about = json.loads(str(file["gdnbench"]))
        described(about)
        for name, tensor in TENSORS.items():
            bits = file[f"before.{name}"]
            assert bits.dtype == logical(about["dtypes"][f"before.{name}"]).storage
            assert np.array_equal(bits, to_bits(tensor), equal_nan=bits.dtype.kind == "f"), name
        viewed = file["before.bfloat16"].view(about["dtypes"]["before.bfloat16"])
    assert viewed.dtype == ml_dtypes.bfloat16


def test_pt(exported: Path) -> None:
    found = torch.load(exported / "record.pt", weights_only=True)
    described(found["gdnbench"])
    for name, tensor in TENSORS.items():
        assert found[f"before.{name}"].dtype == tensor.dtype
        assert to_bits(found[f"before.{name}"]).tobytes() == to_bits(tensor).tobytes(), name


def test_the_command_replaces_nothing_without_force(
    exported: Path,
    gdnbench: Invoke,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(exported)
    done = gdnbench("export", "run.zarr", 0, "--to", "npz")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"record-0.npz: {len(TENSORS)} tensors, ")
    Path("record-0.npz").write_text("mine")
    again = gdnbench("export", "run.zarr", 0, "--to", "npz")
    assert (again.code, again.out) == (2, "")
    assert re.fullmatch(f"gdnbench: {wording('cli.export-exists', path='record-0.npz')}\n", again.err)
    assert Path("record-0.npz").read_text() == "mine"
    assert gdnbench("export", "run.zarr", 0, "--to", "npz", "--force").code == 0
    assert np.load("record-0.npz")["before.int8"].shape == (2, 128)


@pytest.mark.parametrize("to", list(Format))
def test_a_full_disk_is_one_line_and_leaves_no_file(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: Format
) -> None:
    """torch's writer ends with an error of its own, which does not name the disk."""

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            if self.tell() > 1000:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    monkeypatch.setattr(Path, "open", lambda path, mode: Full(path, mode))
    with Store.open(exported / "run.zarr") as store, pytest.raises(BadInputError) as refused:
        export_record(store.records[0], tmp_path / "t", to)
    assert str(refused.value) == f"{tmp_path / 't'} cannot be written: No space left on device"
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_tensor_leaves_no_file(tmp_path: Path, gdnbench: Invoke) -> None:  # noqa: F811
    write_one(tmp_path / "run.zarr", {"t": torch.ones(100, 41)})
    next((tmp_path / "run.zarr").rglob("blobs/*/c/0/0")).write_bytes(b"short")
    done = gdnbench("export", tmp_path / "run.zarr", 0, "--to", "npz", "-o", tmp_path / "t.npz")
    assert done.code == 2
    assert re.fullmatch(r"gdnbench: record \S+/0, t before the call: .*\n", done.err)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.zarr"]
    nowhere = gdnbench("export", tmp_path / "run.zarr", 0, "--to", "npz", "-o", tmp_path / "no" / "t.npz")
    assert nowhere.code == 2
    assert (
        nowhere.err == f"gdnbench: {tmp_path / 'no' / 't.npz'} cannot be written: No such file or directory\n"
    )
    assert gdnbench("export", tmp_path / "run.zarr", 1, "--to", "npz").code == 2
