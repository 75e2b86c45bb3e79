# SPDX-License-Identifier: Apache-2.0
"""`pytest --gdnbench-virtual MACHINE`: a project's own tests with a virtual GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.subset import quick

CONFTEST = """
import torch

HAS_GPU = torch.cuda.is_available()
"""

TESTS = """
import ctypes
import subprocess
import sys

import pytest
import torch
from conftest import HAS_GPU
from cuda.bindings import driver

PTX = b'''
.version 8.8
.target sm_100a
.address_size 64
.visible .entry store(.param .u64 x, .param .u32 n)
{
  .reg .b32 %r<3>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [x];
  ld.param.u32 %r2, [n];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3], %r2;
  ret;
}
'''

@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
@pytest.mark.parametrize("threads", [32, 64])
def test_store(threads):
    assert torch.cuda.get_device_properties(0).multi_processor_count == 5
    x = torch.zeros(32, dtype=torch.int32, device="cuda")
    _, module = driver.cuModuleLoadData(PTX)
    _, function = driver.cuModuleGetFunction(module, b"store")
    kinds = (ctypes.c_void_p, ctypes.c_uint32)
    driver.cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, 0, ((x.data_ptr(), 7), kinds), 0)
    assert x.eq(7).all()

@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
def test_child():
    program = "import torch; assert torch.cuda.get_device_properties(0).multi_processor_count == 5"
    subprocess.run([sys.executable, "-c", program], check=True)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a conftest.py that looks for a GPU and a test file that needs one."""
    pytest.importorskip("cuda.bindings", reason="cuda-python has wheels for Linux only")
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "test_store.py").write_text(TESTS, encoding="utf-8")
    return tmp_path


def run_pytest(
    project: Path, environment: Mapping[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """pytest in a process of its own, with this tree's plugin whether it is installed or not."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "gdnbench.pytest_plugin", "-q", *arguments],
        capture_output=True,
        text=True,
        env={**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=project,
        check=False,
        timeout=240,
    )


def test_tests_run_as_they_are(project: Path, environment: Mapping[str, str]) -> None:
    ran = run_pytest(project, environment, "--gdnbench-virtual", "b200", "--gdnbench-sms", "5")
    lines = ran.stdout.splitlines()
    assert ran.returncode == 1
    assert lines[-1].startswith("1 failed, 2 passed"), ran.stdout
    assert any("virtual GPU b200, 5 SMs" in line for line in lines)
    assert any(line.startswith("store: 2 launches, ") and ", 1 errors" in line for line in lines), ran.stdout
    assert any("out-of-bounds access" in line for line in lines)


@pytest.mark.slow
def test_there_is_no_gpu_without_the_option(project: Path, environment: Mapping[str, str]) -> None:
    ran = run_pytest(project, environment)
    assert ran.stdout.splitlines()[-1].startswith("3 skipped"), ran.stdout


@pytest.mark.parametrize("arguments", quick([["--gdnbench-virtual", "a100"], ["--gdnbench-sms", "3"]], 0))
def test_options_are_checked(project: Path, environment: Mapping[str, str], arguments: list[str]) -> None:
    ran = run_pytest(project, environment, *arguments)
    assert ran.returncode == pytest.ExitCode.USAGE_ERROR
    assert "gdnbench-virtual" in ran.stderr
