"""What is known of SGLang's signatures held to its source, and its own Python under capture with its kernels
replaced by references. Where SGLang is not installed these are skipped, as its requirements take gigabytes;
its Python alone goes beside what it imports into an environment that has this package, a wheel of 39 MB:

    pip install --no-deps sglang==0.5.23

GDNBENCH_SGLANG_PYTHON names the interpreter of that environment, if it is not this one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gdnbench.capture.adapters import sglang_signatures as names
from tests.capture.frameworks import FOLDER
from tests.capture.source_signatures import parameters

KNOWN = names.SIGNATURES.functions
KERNELS, OPS = "srt/layers/attention/linear/kernels", "kernels/ops/attention"
FILES = {
    **{name: f"{KERNELS}/gdn_triton.py" for name in KNOWN if name.startswith(names.TRITON)},
    **{name: f"{KERNELS}/gdn_flashinfer.py" for name in KNOWN if name.startswith(names.FLASHINFER)},
    **{name: f"{KERNELS}/gdn_cutedsl.py" for name in KNOWN if name.startswith(names.CUTEDSL)},
    names.CHUNK: f"{OPS}/fla/chunk.py",
    names.PACKED: f"{OPS}/fla/fused_recurrent.py",
    names.SIGMOID: f"{OPS}/linear/fused_sigmoid_gating_recurrent.py",
    names.FLASH_MLA: f"{OPS}/flash_mla_interface.py",
}


def python() -> str:
    return os.environ.get("GDNBENCH_SGLANG_PYTHON", sys.executable)


@pytest.fixture(scope="module")
def source() -> Path:
    """SGLang's folder; it is not imported for that."""
    find = "import importlib.util as u; s = u.find_spec('sglang'); print(s.origin if s else '')"
    ran = subprocess.run([python(), "-c", find], capture_output=True, text=True, timeout=120, check=True)
    if not ran.stdout.strip():
        pytest.skip("SGLang is not installed; GDNBENCH_SGLANG_PYTHON names an interpreter that has it")
    return Path(ran.stdout.strip()).parent


@pytest.mark.parametrize("name", FILES)
def test_the_packages_own_source(name: str, source: Path) -> None:
    """Where a release that changed a signature fails this, read the adapter against it, then bring up the
    table and its date."""
    assert parameters(source / FILES[name], name) == KNOWN[name].parameters


@pytest.mark.parametrize("name", FILES)
def test_the_stand_ins_have_the_signatures(name: str) -> None:
    assert parameters(FOLDER / "sglang" / FILES[name], name) == KNOWN[name].parameters


def test_what_is_known() -> None:
    assert FILES.keys() == KNOWN.keys()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", names.SIGNATURES.read)
    for signature in KNOWN.values():
        assert set(signature.needs.split()) <= signature.names
