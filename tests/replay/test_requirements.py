# SPDX-License-Identifier: Apache-2.0
"""What a user's function requires of its inputs, which replay prepares and says; taps; stand-ins."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.errors import BadInputError
from gdnbench.replay.call import call_kernel
from gdnbench.replay.kernels import LoadedKernel, of_function
from gdnbench.replay.requirements import prepared
from gdnbench.replay.taps import replacing, tap
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_prefill.contract import OPERATION
from gdnbench_kernels.stand_ins import StandIns
from tests.messages import wording


def call() -> Call:
    """Two sequences, of 70 tokens and 1, without states and chunk tables; bf16 gates, k not contiguous."""
    made = OPERATION.synth(seqlens=[70, 1], heads=(1, 2), head_dim=(32, 32))
    tensors = {**made.tensors, "beta": made.tensors["beta"].bfloat16()}
    tensors["k"] = tensors["k"].transpose(0, 2).contiguous().transpose(0, 2)
    for name in ("initial_state", "chunk_indices", "chunk_offsets"):
        tensors.pop(name, None)
    return Call(tensors, made.scalars, made.conventions)


def kernel(**requires: str) -> LoadedKernel:
    def mine(**tensors: Any) -> None: ...

    mine.requires = requires  # type: ignore[attr-defined]
    return of_function(mine, "mine")


def test_missing_tensors_are_made() -> None:
    given = call()
    names = ("initial_state", "chunk_indices", "chunk_offsets")
    made, texts = prepared(given, OPERATION, kernel(**dict.fromkeys(names, "present")))
    assert texts == tuple(f"{name} made: the call leaves it out" for name in names)
    assert torch.equal(made.tensors["initial_state"], torch.zeros(2, 2, 32, 32))
    assert made.tensors["chunk_indices"][:3].tolist() == [[0, 0], [0, 1], [1, 0]]  # 64 + 6 tokens, and 1
    assert made.tensors["chunk_offsets"].tolist() == [0, 2, 3]
    OPERATION.validate(made)


def test_inputs_are_copied_and_widened_once() -> None:
    given = call()
    kernel_of_both = kernel(**{"*": "contiguous", "beta": "float32"})
    made, texts = prepared(given, OPERATION, kernel_of_both)
    assert "beta as float32" in texts
    assert "k copied: contiguous, aligned to 32 bytes" in texts
    assert made.tensors["k"].is_contiguous()
    assert torch.equal(made.tensors["k"], given.tensors["k"])
    assert made.tensors["beta"].dtype is torch.float32
    assert prepared(made, OPERATION, kernel_of_both)[1] == ()


def test_a_dtype_that_rounds_is_refused() -> None:
    given = call()
    with pytest.raises(NotImplementedError, match=wording("replay.requires-dtype", name="q")):
        prepared(given, OPERATION, kernel(q="int64"))


@pytest.mark.parametrize(
    ("requires", "said"),
    [
        ({"q": "short"}, wording("replay.requires-word", name="q", word="short")),
        ({"o": "contiguous"}, wording("replay.requires-tensor", name="o", operation="gdn_prefill")),
    ],
)
def test_what_means_nothing_is_refused(requires: dict[str, str], said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        prepared(call(), OPERATION, kernel(**requires))


@pytest.fixture
def host_code() -> Iterator[ModuleType]:
    module = ModuleType("host_code_of_a_kernel")
    exec("def launch_uw(k, u, w):\n    u += 1\n    w += 2", vars(module))
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def tapped_kernel(module: ModuleType, **stages: int | str) -> LoadedKernel:
    def mine(k: Tensor, v: Tensor) -> Tensor:
        module.launch_uw(k, torch.zeros(192, 2, 32), w=torch.zeros(192, 2, 32))
        return v

    mine.taps = (tap(module.__name__, "launch_uw", **stages),)  # type: ignore[attr-defined]
    return of_function(mine, "mine")


def test_taps_show_arguments_as_stages(host_code: ModuleType) -> None:
    stages: dict[str, Tensor] = {}
    before = host_code.launch_uw
    call_kernel(call(), OPERATION, tapped_kernel(host_code, U=1, W="w"), stages)
    assert stages.keys() == {"U", "W"}
    assert torch.equal(stages["U"], torch.ones(192, 2, 32))
    assert torch.equal(stages["W"], torch.full((192, 2, 32), 2.0))
    assert host_code.launch_uw is before


def test_a_stage_is_replaced_before_the_host_code_goes_on(host_code: ModuleType) -> None:
    stages: dict[str, Tensor] = {}
    left: list[Tensor] = []
    launch = host_code.launch_uw

    def outer(k: Tensor, u: Tensor, *, w: Tensor) -> None:
        launch(k, u, w=w)
        left.extend((u, w))

    host_code.launch_uw = outer  # type: ignore[attr-defined]
    with replacing({"U": lambda u: 5 * u}):
        call_kernel(call(), OPERATION, tapped_kernel(host_code, U=1, W="w"), stages)
    assert torch.equal(left[0], torch.full((192, 2, 32), 5.0))
    assert torch.equal(stages["U"], left[0])
    assert torch.equal(left[1], torch.full((192, 2, 32), 2.0))


def test_a_tap_on_what_is_no_tensor(host_code: ModuleType) -> None:
    with pytest.raises(NotImplementedError, match=wording("replay.tap-argument", stage="U")):
        call_kernel(call(), OPERATION, tapped_kernel(host_code, U=7), {})


def test_a_tap_on_a_function_that_is_not_there(host_code: ModuleType) -> None:
    kernel_with_tap = tapped_kernel(host_code, U=1)
    del host_code.launch_uw
    said = wording("replay.tap-function", function="launch_uw", module=host_code.__name__)
    with pytest.raises(NotImplementedError, match=said):
        call_kernel(call(), OPERATION, kernel_with_tap, {})


def test_unknown_stand_ins_are_refused() -> None:
    def mine(v: Tensor) -> Tensor:
        return v

    mine.stand_ins = "an_engine"  # type: ignore[attr-defined]
    with pytest.raises(BadInputError, match=wording("replay.stand-ins-unknown", package="an_engine")):
        of_function(mine, "mine")


def test_stand_ins_leave_out_what_a_package_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a package whose `__init__` fails, a module is imported with another one replaced; outside of the
    block the package is as it was."""
    folder = tmp_path / "an_engine" / "kernels"
    folder.mkdir(parents=True)
    (tmp_path / "an_engine" / "__init__.py").write_text("import a_compiled_extension")
    (folder / "one.py").write_text("from an_engine.platforms import DEVICE")
    monkeypatch.syspath_prepend(tmp_path)
    made: dict[str, Callable[[], dict[str, Any]]] = {"an_engine.platforms": lambda: {"DEVICE": "cuda"}}
    stand_ins = StandIns("an_engine", ("an_engine.kernels", "not_there_at_all"), made)
    assert stand_ins.module("an_engine.kernels.one").DEVICE == "cuda"
    assert "an_engine" not in sys.modules
    with pytest.raises(ModuleNotFoundError, match="a_compiled_extension"):
        __import__("an_engine")


def test_stand_ins_of_a_package_that_is_not_there() -> None:
    with pytest.raises(ModuleNotFoundError, match="no package not_there_at_all"):
        StandIns("not_there_at_all", ()).module("not_there_at_all.one")
