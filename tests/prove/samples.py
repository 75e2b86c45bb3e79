# SPDX-License-Identifier: Apache-2.0
"""Few and small made records in place of suites/made.toml, and a capture of small calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdnbench.prove import records, run
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise

SMALL = """
[[record]]
name = "lengths"
op = "gdn_prefill"
seed = 0
sim = true
laws = true
[record.options]
seqlens = [70, 0, 20]
heads = [1, 2]
head_dim = [16, 16]
initial_state = true
gate_span = 0.05

[[record]]
name = "float16"
op = "gdn_prefill"
seed = 1
options = { seqlens = [5, 30], heads = [1, 1], head_dim = [16, 16], dtype = "float16", initial_state = true }

[[record]]
name = "drafts"
op = "gdn_decode"
seed = 2
sim = true
laws = true
options = { batch = 3, steps = 3, heads = [1, 2], head_dim = [16, 16], speculative = true, slots = 14 }

[[record]]
name = "one token"
op = "gdn_decode"
seed = 3
options = { batch = 2, heads = [1, 2], head_dim = [16, 16] }
"""


def replace_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write `SMALL` and let it take the place of suites/made.toml. There are no shipped captures."""
    path = folder / "made.toml"
    path.write_text(SMALL)
    monkeypatch.setattr(records, "MADE", path)
    monkeypatch.setattr(run, "CAPTURES", folder / "none")
    return path


def write_captures(folder: Path) -> Path:
    """A folder with one capture, of one prefill and one decode record."""
    folder.mkdir()
    prefill = synthesise("gdn_prefill", seqlens=(40,), heads=(1, 1), head_dim=(16, 16), initial_state=True)
    decode = synthesise("gdn_decode", batch=2, heads=(1, 1), head_dim=(16, 16))
    with StoreWriter(folder / "served.zarr", kind="synth", durable=False) as writer:
        writer.write("0", [draft("gdn_prefill", prefill), draft("gdn_decode", decode, index=1)])
    return folder
