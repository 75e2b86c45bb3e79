# SPDX-License-Identifier: Apache-2.0
"""Which target a device takes: compute capabilities are those of CUDA's table for Hopper and Blackwell."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
import torch

from gdnbench_kernels.gdn_prefill.launch_args import compiled
from gdnbench_kernels.gdn_prefill.sources import output_source
from gdnbench_kernels.programs import BLACKWELL, SM90, SM100, SM103, arch_of
from tests.messages import wording

DEVICE = torch.device("cuda", 0)


def be(capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """DEVICE is a GPU of that compute capability."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA Something")


@pytest.mark.parametrize(
    ("capability", "archs", "wanted"),
    [
        ((9, 0), (SM90, SM100, SM103), "sm_90a"),
        ((10, 0), (SM90, SM100, SM103), "sm_100a"),
        ((10, 3), (SM90, SM100, SM103), "sm_103a"),
        ((10, 3), ("sm_100f", SM103), "sm_100f"),
        ((10, 3), (SM103, "sm_100f"), "sm_103a"),
        ((10, 0), BLACKWELL, "sm_100a"),
    ],
)
def test_the_first_target_that_runs_there(
    capability: tuple[int, int], archs: Sequence[str], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    be(capability, monkeypatch)
    assert arch_of(DEVICE, archs, "this kernel") == wanted
    assert arch_of(torch.device("cpu"), archs, "this kernel") == "sm_100a"


def test_a_prefill_kernel_names_the_gpus_that_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is compiled; each compute capability once."""
    be((9, 0), monkeypatch)

    def refusal(kernel: str) -> str:
        gpu = "NVIDIA Something"
        return wording("kernels.capability", kernel=kernel, wanted="10.0, 10.3", gpu=gpu, major=9, minor=0)

    with pytest.raises(NotImplementedError) as refused:
        compiled(DEVICE, output_source)
    assert re.fullmatch(refusal("this kernel of gdn_prefill"), str(refused.value))
    with pytest.raises(NotImplementedError) as refused:
        arch_of(DEVICE, ("sm_100f", *BLACKWELL), "that kernel")
    assert re.fullmatch(refusal("that kernel"), str(refused.value))
