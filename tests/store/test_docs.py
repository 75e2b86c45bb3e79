"""docs/store.md against the store: its example runs as it stands, and its names are those on disk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gdnbench.bits import DTYPES
from gdnbench.store.layout import FORMAT_VERSION
from gdnbench.store.writer import StoreWriter
from tests.store.store_samples import randn, record

DOCS = Path(__file__).parents[2] / "docs" / "store.md"


def test_the_example_reads_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    q, state = randn(3, 4).bfloat16(), randn(600, 2048)
    with StoreWriter(tmp_path / "run.zarr", kind="capture") as out:
        out.write("0", [record({"state": state, "q": q})])
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, str(DOCS), "exec"), names)
    # What the loop left: the last tensor it met, which is q.
    assert np.array_equal(names["values"], q.float().numpy())
    (found,) = names["records"]("run.zarr")
    assert torch.equal(torch.from_numpy(names["read"]("run.zarr", found["before"]["state"])), state)


def test_dtypes_and_version_are_those_of_the_code() -> None:
    text = DOCS.read_text()
    assert f"(format version {FORMAT_VERSION})" in text
    for name, dtype in DTYPES.items():
        if dtype.view is not None:
            assert re.search(
                rf"^\|.*\b{name}\b.*\| {dtype.storage.name}, the bits \|$", text, re.MULTILINE
            ), name
