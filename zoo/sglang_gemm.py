# SPDX-License-Identifier: Apache-2.0
"""SGLang's CuTe DSL GEMM for the fused A projection, compared with fp32. Its module is loaded without
SGLang's engine, of which it asks for a decorator, a registry and the compute capability."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch

FILE = "sglang/kernels/ops/gemm/cutedsl_dsv3_fused_a_gemm.py"


def stand_in(name, **members):
    module = ModuleType(name)
    module.__dict__.update(members, __path__=[])
    sys.modules[name] = module


def load():
    (folder,) = (Path(path) for path in sys.path if (Path(path) / "sglang").is_dir())
    for name in ("sglang", "sglang.srt", "sglang.kernels"):
        stand_in(name)
    stand_in("sglang.kernels.kernel_api_logging", debug_kernel_api=lambda function: function)
    stand_in("sglang.srt.utils", get_device_sm=lambda: 100)
    stand_in("sglang.srt.utils.common", direct_register_custom_op=lambda **options: None)
    spec = importlib.util.spec_from_file_location("gemm", folder / FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gemm"] = module
    spec.loader.exec_module(module)
    return module


torch.manual_seed(0)
x, weight = (torch.randn(rows, 1024, device="cuda", dtype=torch.bfloat16) for rows in (16, 128))
out = load()._dsv3_fused_a_gemm_run(x, weight.t())
exact = x.float() @ weight.float().t()
error = (out.float() - exact).abs().max().item()
# Half a unit in the last place of bf16, of the largest element; the sums are in fp32.
assert error <= 2**-8 * exact.abs().max().item(), f"the product is off by {error:.2g}"
