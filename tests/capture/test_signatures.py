# SPDX-License-Identifier: Apache-2.0
"""What adapters know of functions, held to the packages' own source; what comes of functions that differ."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest
import torch

from gdnbench.capture import capturing
from gdnbench.capture.adapters import fla_signatures, flashinfer_signatures
from gdnbench.capture.adapters.signatures import Signatures
from tests.capture.conftest import ToyFramework
from tests.capture.frameworks import FOLDER, framework
from tests.capture.source_signatures import parameters
from tests.messages import wording

FLA, FLASHINFER = fla_signatures.SIGNATURES, flashinfer_signatures.SIGNATURES
FILES: Mapping[str, tuple[Signatures, str]] = {
    "fla/ops/gated_delta_rule/chunk.py": (FLA, fla_signatures.CHUNK),
    "fla/ops/gated_delta_rule/fused_recurrent.py": (FLA, fla_signatures.RECURRENT),
    "fla/modules/causal_conv1d/ops.py": (FLA, fla_signatures.CONV),
    "flashinfer/gdn_prefill.py": (FLASHINFER, flashinfer_signatures.CHUNK),
    "flashinfer/gdn_decode.py": (FLASHINFER, flashinfer_signatures.DECODE),
}
FUNCTIONS = [
    (path, known, name)
    for path, (known, first) in FILES.items()
    for name in (
        [first] if "decode" not in path else [n for n in known.functions if n != "chunk_gated_delta_rule"]
    )
]


@pytest.mark.parametrize(("path", "known", "name"), FUNCTIONS, ids=[name for _, _, name in FUNCTIONS])
def test_the_packages_own_source(path: str, known: Signatures, name: str) -> None:
    """Of whichever release is installed, its source: it need not be importable here. Where a release that
    changed a signature fails this, read the adapter against it, then bring up the table and its date."""
    package, _, rest = path.partition("/")
    third_party = os.environ.get("GDNBENCH_THIRD_PARTY")
    places = [third_party] if third_party else []
    spec = PathFinder.find_spec(package, places) or PathFinder.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed: pip install 'gdnbench[peers]'")
    source = Path(spec.submodule_search_locations[0]) / rest
    assert parameters(source, name) == known.functions[name].parameters


@pytest.mark.parametrize(("path", "known", "name"), FUNCTIONS, ids=[name for _, _, name in FUNCTIONS])
def test_the_stand_ins_have_the_signatures(path: str, known: Signatures, name: str) -> None:
    assert parameters(FOLDER / path, name) == known.functions[name].parameters


@pytest.mark.parametrize("known", [FLA, FLASHINFER], ids=lambda known: known.distribution)
def test_what_is_needed_is_known(known: Signatures) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", known.read)
    for signature in known.functions.values():
        assert set(signature.needs.split()) <= signature.names


def changed(tmp_path: Path, path: str, *replaced: tuple[str, str]) -> Path:
    """The stand-ins with text of one file replaced."""
    folder = tmp_path / "changed"
    shutil.copytree(FOLDER, folder)
    text = (folder / path).read_text()
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    (folder / path).write_text(text)
    return folder


def packed(**more: Any) -> dict[str, Any]:
    tensors = {name: torch.rand(1, 4, 2, 8) for name in ("q", "k", "v")}
    return {**tensors, "g": -torch.rand(1, 4, 2), "beta": torch.rand(1, 4, 2), **more}


CHUNK = "fla/ops/gated_delta_rule/chunk.py"
HIDING = """
def hiding(function):
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return call


@hiding
def chunk_gated_delta_rule("""
CHUNKED = "fla.ops.gated_delta_rule.chunk.chunk_gated_delta_rule"
VERSIONS = re.compile(
    wording("capture.versions", package="flash-linear-attention", oldest="0.3.0", newest="0.6.0")
)
CHANGES: dict[str, tuple[list[tuple[str, str]], dict[str, Any], str | None]] = {
    "a parameter is renamed": (
        [("initial_state", "h0")],
        {},
        wording(
            "capture.signature",
            function=CHUNKED,
            differences=re.compile(wording("capture.parameter-lacking", parameter="initial_state")),
            versions=VERSIONS,
        ),
    ),
    "another must be given": (
        [("    beta,\n    scale=None", "    beta,\n    decay_base,\n    scale=None")],
        {"decay_base": 2},
        wording(
            "capture.signature",
            function=CHUNKED,
            differences=re.compile(wording("capture.parameter-asked", parameter="decay_base")),
        ),
    ),
    "a new one is given": (
        [("cp_context=None,", "cp_context=None,\n    window=64,")],
        {"window": 128},
        wording("capture.parameter-unknown", function="chunk_gated_delta_rule", parameter="window"),
    ),
    "a new one is left at its default": (
        [("cp_context=None,", "cp_context=None,\n    window=64,")],
        {},
        None,
    ),
    "a new one is given its default": (
        [("cp_context=None,", "cp_context=None,\n    window=64,")],
        {"window": 64},
        None,
    ),
    "the order is another": (
        [
            (
                "    q,\n    k,\n    v,\n    g,",
                "    g,\n    q,\n    k,\n    v,",
            )
        ],
        {},
        None,
    ),
    "a wrapper hides them": (
        [("def chunk_gated_delta_rule(", HIDING)],
        {},
        wording(
            "capture.parameters-hidden",
            function="chunk_gated_delta_rule",
            parameters=re.compile("scale, initial_state, .*"),
            versions=VERSIONS,
        ),
    ),
    "one that an older release lacks": ([("    state_v_first=False,\n", "")], {}, None),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_signature(name: str, tmp_path: Path) -> None:
    replaced, more, reason = CHANGES[name]
    if name == "one that an older release lacks":
        replaced = [*replaced, ("        state_v_first,\n", "        False,\n")]
    if name == "the order is another":
        replaced = [
            (
                "def chunk_gated_delta_rule(\n    q,\n    k,\n    v,\n    g,",
                "def chunk_gated_delta_rule(\n    g,\n    q,\n    k,\n    v,",
            )
        ]
    with framework(changed(tmp_path, CHUNK, *replaced)), capturing(tmp_path / "run.zarr") as counts:
        ops = import_module("fla.ops")
        for _ in range(2):
            o, _ = ops.chunk_gated_delta_rule(**packed(**more))
    assert o.shape == (1, 4, 2, 8)
    assert (counts.failures, counts.first_failure) == (0, None)
    if reason is None:
        assert (counts.records, counts.passed_over) == (2, {})
        return
    assert counts.records == 0
    ((found, calls),) = counts.passed_over.items()
    assert re.fullmatch(reason, found)
    assert calls == 2


PROGRAM = """
    import torch
    from fla.ops import chunk_gated_delta_rule
    torch.manual_seed(0)
    tensors = [torch.rand(1, 4, 2, 8) for _ in range(3)]
    for _ in range(3):
        o, _ = chunk_gated_delta_rule(*tensors, -torch.rand(1, 4, 2), torch.rand(1, 4, 2))
    print(float(o.sum()).hex())
"""


@pytest.mark.slow  # processes that import torch
def test_the_command_says_it_once(toy: ToyFramework, tmp_path: Path) -> None:
    program = toy.script(PROGRAM)
    paths = os.pathsep.join
    whole = {"PYTHONPATH": paths([str(toy.folder), str(FOLDER)])}
    plain = toy.run(program, **whole)
    right = toy.capture(tmp_path / "right.zarr", program, **whole)
    assert (right.status, right.out) == (0, plain.out)
    assert right.err.startswith("gdnbench: 3 records")
    other = changed(tmp_path, CHUNK, ("initial_state", "h0"))
    ran = toy.capture(tmp_path / "changed.zarr", program, PYTHONPATH=paths([str(toy.folder), str(other)]))
    assert ran.out == plain.out
    said = [line for line in ran.err.splitlines() if "initial_state" in line]
    assert len(said) == 1
    reason = re.compile(r"fla\.ops\.gated_delta_rule\.chunk\..*")
    assert re.fullmatch("gdnbench: " + wording("capture.not-recorded", calls=3, reason=reason), said[0])
    assert "problem" not in ran.err
