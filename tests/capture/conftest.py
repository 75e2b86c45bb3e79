# SPDX-License-Identifier: Apache-2.0
"""A toy framework with an entry-point adapter, and Python processes that use it, captured or not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gdnbench.capture.launch import run_captured
from gdnbench.capture.options import CaptureOptions

TOY = '''
"""Layers that decode into a shared pool of states; what is computed does not matter, its bits do."""
import torch
from torch import nn

def step(q, k, v, g, beta, pool, *, slots, scale=0.5):
    """o [B, 1, Hv, V]; rows `slots` [B, 1] of `pool` [slots, Hv, V, K] are updated in place."""
    rows = slots.flatten().long()
    ratio = v.shape[2] // k.shape[2]
    keys = k[:, 0].repeat_interleave(ratio, dim=1)
    decayed = pool[rows] * g[:, 0].exp()[..., None, None]
    pool[rows] = decayed + (beta[:, 0, :, None] * v[:, 0])[..., None] * keys[:, :, None, :]
    queries = q[:, 0].repeat_interleave(ratio, dim=1)
    return (scale * (pool[rows] * queries[:, :, None, :]).sum(-1)).unsqueeze(1).to(v.dtype)

class Mixer(nn.Module):
    def __init__(self, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
    def forward(self, *args, **kwargs):
        return step(*args, **kwargs)

class Block(nn.Module):
    def __init__(self, layer_idx):
        super().__init__()
        self.mixer = Mixer(layer_idx)

class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.blocks = nn.ModuleList(Block(index) for index in range(layers))
        self.pools = [torch.zeros(5, 4, 8, 8) for _ in range(layers)]
    def forward(self, seed, slots=(1, 3)):
        make = torch.Generator().manual_seed(seed)
        total = torch.zeros(())
        for block, pool in zip(self.blocks, self.pools):
            B = len(slots)
            q, k = (torch.randn(B, 1, 2, 8, generator=make) for _ in range(2))
            v = torch.randn(B, 1, 4, 8, generator=make)
            g = -torch.rand(B, 1, 4, generator=make)
            beta = torch.rand(B, 1, 4, generator=make)
            index = torch.tensor(slots, dtype=torch.int32).unsqueeze(1)
            total = total + block.mixer(q, k, v, g, beta, pool, slots=index).sum()
        return total
'''

TOY_ADAPTER = """
from dataclasses import dataclass
from gdnbench.capture.adapter import Observation, Seen, Target

@dataclass(frozen=True)
class ToyAdapter:
    framework: str = "toy"
    targets: tuple = (Target("toyframe", "step"), Target("toyframe", "absent"))
    scopes: tuple = (Target("toyframe", "Mixer.forward"),)
    def before(self, target, arguments, layer):
        names = ("q", "k", "v", "g", "beta")
        tensors = {name: Seen(arguments[name]) for name in names}
        tensors |= {"state": Seen(arguments["pool"]), "state_indices": Seen(arguments["slots"])}
        return Observation(
            op="gdn_decode",
            tensors=tensors,
            scalars={"scale": arguments["scale"], "beta_max": 1.0},
            conventions={"gate": "log", "state_layout": "VK", "qk": "normalised"},
        )
    def after(self, seen, arguments, result):
        return {"o": Seen(result), "state": Seen(arguments["pool"])}
    def implementation(self, function):
        return None

ADAPTER = ToyAdapter()
"""


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str


class ToyFramework:
    """A folder on PYTHONPATH with the framework, its adapter and the metadata that announces the adapter."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str], adapter: str = TOY_ADAPTER) -> None:
        self.folder = folder
        self._capfd = capfd
        folder.mkdir()
        (folder / "toyframe.py").write_text(TOY)
        (folder / "toy_adapter.py").write_text(adapter)
        metadata = folder / "toyframe-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toyframe\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text("[gdnbench.adapters]\ntoy = toy_adapter:ADAPTER\n")

    def environment(self, **variables: str) -> dict[str, str]:
        inherited = {n: value for n, value in os.environ.items() if not n.startswith("GDNBENCH_")}
        return {**inherited, "PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1", **variables}

    def script(self, text: str, name: str = "program.py") -> Path:
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return path

    def run(self, script: Path, **variables: str) -> Ran:
        """Run `script` as it is, in an environment with `variables`; uncaptured, each text once a session."""
        text = script.read_text()
        if variables or text not in _plain_runs:
            ran = _run([sys.executable, str(script)], self.environment(**variables))
            if variables:
                return ran
            _plain_runs[text] = ran
        return _plain_runs[text]

    def capture(
        self,
        store: Path,
        command: list[str] | Path,
        options: Mapping[str, Any] | None = None,
        **variables: str,
    ) -> Ran:
        """What the capture command does; in this process, to save its imports."""
        if isinstance(command, Path):
            command = [sys.executable, str(command)]
        self._capfd.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment(**variables).items():
                patch.setenv(name, value)
            patch.syspath_prepend(self.folder)
            # Beside busy test processes a nice sealer is starved for many seconds.
            patch.setattr("gdnbench.capture.sealing._NICENESS", 0)
            status = run_captured(store, command, CaptureOptions.from_json(json.dumps(options or {})))
        sys.modules.pop("toy_adapter", None)
        return Ran(status, *self._capfd.readouterr())


_plain_runs: dict[str, Ran] = {}


def _run(line: list[str], environment: Mapping[str, str]) -> Ran:
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def toy(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> ToyFramework:
    return ToyFramework(tmp_path / "toy", capfd)


@pytest.fixture
def toy_with(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[[str, str], ToyFramework]:
    """The toy framework with a part of its adapter's text replaced."""

    def make(old: str, new: str) -> ToyFramework:
        assert old in TOY_ADAPTER
        return ToyFramework(tmp_path / "toy", capfd, TOY_ADAPTER.replace(old, new))

    return make


PROGRAM = """
    import toyframe, torch
    model = toyframe.Model()
    with torch.no_grad():
        for step in range(4):
            print(float(model(step)).hex())
    print("done")
"""


@pytest.fixture
def program(toy: ToyFramework) -> Path:
    """Four steps of two layers: eight calls; prints the bits of its results."""
    return toy.script(PROGRAM)
