# SPDX-License-Identifier: Apache-2.0
"""docs/store.md against the store: its examples run as they stand, and its names are those on disk."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gdnbench.bits import DTYPES, to_bits
from gdnbench.store.layout import FORMAT_VERSION
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter
from tests.store.store_samples import randn, record

DOCS = Path(__file__).parents[2] / "docs" / "store.md"


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_the_examples_read_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """By zarr-python, and by tensorstore."""
    q, state = randn(3, 4).bfloat16(), randn(600, 2048)
    with StoreWriter(tmp_path / "run.zarr", kind="capture") as out:
        out.write("0", [record({"state": state, "q": q})])
    monkeypatch.chdir(tmp_path)
    reading, by_tensorstore, _ = examples()
    path = "run.zarr"
    if form == "zip":
        path = "run.zip"
        shutil.make_archive("run", "zip", "run.zarr")
        reading = reading.replace('"run.zarr"', '"run.zip"')
    names: dict[str, Any] = {}
    exec(compile(reading + by_tensorstore, str(DOCS), "exec"), names)
    # What the loop left: the last tensor it met, which is q.
    assert np.array_equal(names["values"], q.float().numpy())
    (found,) = names["records"](names["store"])
    for tensor in (names["read"](names["store"], found["before"]["state"]),):
        assert torch.equal(torch.from_numpy(tensor), state)
    assert np.array_equal(names["read_by_tensorstore"](path, found["before"]["state"]), state.numpy())
    assert np.array_equal(names["read_by_tensorstore"](path, found["before"]["q"]), to_bits(q))


@pytest.mark.parametrize("capture", ["decode", pytest.param("swa_fp8_ds_mla", marks=pytest.mark.slow)])
def test_a_record_in_xarray(capture: str) -> None:
    pytest.importorskip("xarray", reason="xarray is not installed: pip install xarray")
    names: dict[str, Any] = {}
    reading, _, xarrays = examples()
    path = DOCS.parents[1] / "captures" / f"{capture}.zarr.zip"
    exec(compile(reading.replace("run.zarr", str(path)) + xarrays, str(DOCS), "exec"), names)
    assert len(re.findall(r"\n {4,}\S", xarrays)) <= 10
    first = next(names["records"](names["store"]))
    found = names["dataset"](names["store"], first)
    with Store.open(path) as store:
        stored = store.records[0]
        assert found.attrs["op"] == stored.info.op
        handles = {f"{name}_before": one for name, one in stored.before.items()}
        handles |= {f"{name}_after": one for name, one in stored.after.items()}
        assert set(found.data_vars) == handles.keys()
        for name, handle in handles.items():
            assert found[name].dims == handle.meta.axes
            held = handle.read()
            held = held.float() if held.is_floating_point() and held.dtype != torch.float64 else held
            assert np.array_equal(found[name].values, held.numpy(), equal_nan=held.is_floating_point())


def test_dtypes_and_version_are_those_of_the_code() -> None:
    text = DOCS.read_text()
    assert f"(format version {FORMAT_VERSION})" in text
    for name, dtype in DTYPES.items():
        if dtype.view is not None:
            assert re.search(
                rf"^\|.*\b{name}\b.*\| {dtype.storage.name}, the bits \|$", text, re.MULTILINE
            ), name
