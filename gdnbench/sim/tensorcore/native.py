# SPDX-License-Identifier: Apache-2.0
"""The arithmetic models compiled for this CPU: the same bits as `reference`, at GMAC/s.

A product is compiled at first use and stays loaded until the process ends. Calls release the GIL.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache

import llvmlite.binding as llvm
import numpy as np

from gdnbench.sim.tensorcore import reference
from gdnbench.sim.tensorcore.codegen import ENTRY, module_text
from gdnbench.sim.tensorcore.formats import Codes
from gdnbench.sim.tensorcore.group_sum import group_sum
from gdnbench.sim.tensorcore.product import (
    NAN_BITS,
    IntegerProduct,
    Model,
    Product,
    check_operands,
    integer_result,
    named_model,
    written,
)
from gdnbench.sim.tensorcore.scaled import GROUP_K, ScaledProduct, Scales, check_scaled

Function = Callable[[int, int, int, int, int, int, int | None, int], None]

_PROTOTYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4, *[ctypes.c_void_p] * 4)
_SCALED_PROTOTYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4, *[ctypes.c_void_p] * 6)
_COMPILING = threading.Lock()
_ENGINES: list[llvm.ExecutionEngine] = []  # own the code that the functions point to


def multiply(
    product: Product | IntegerProduct,
    model: str,
    a: Codes,
    b: Codes,
    c: Codes | None,
    out: Codes | None = None,
) -> Codes:
    """D = A B^T + C, on codes (see `product.Multiply`)."""
    if isinstance(product, IntegerProduct):
        # Exact: sums of 32 products below 2^16 fit the 24 bits of a float.
        assert product.k <= 1 << 8
        left, right = (f.values(codes).astype(np.float32) for f, codes in ((product.a, a), (product.b, b)))
        return written(integer_result(product, (left @ right.T).astype(np.int64), c), out)
    chosen = check_operands(product, model, a, b, c, out)
    m, n, storage = len(a), len(b), product.accumulator.storage
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    d = out if out is not None and _rows_are_dense(out) else np.empty((m, n), storage)
    c_data, c_step = None, n
    if c is not None:
        c = c if _rows_are_dense(c) else np.ascontiguousarray(c)
        c_data, c_step = _data(c), c.strides[0] // storage.itemsize
    d_step = d.strides[0] // storage.itemsize
    _function(product, chosen)(m, n, c_step, d_step, _data(a), _data(b), c_data, _data(d))
    return d if d is out else written(d, out)


def _rows_are_dense(matrix: Codes) -> bool:
    """Whether the elements of each row are neighbours, and the rows a whole number of elements apart."""
    between_rows, between_elements = matrix.strides
    return between_elements == matrix.itemsize and between_rows % matrix.itemsize == 0


def multiply_scaled(
    product: ScaledProduct, model: str, a: Codes, scale_a: Codes, b: Codes, scale_b: Codes, c: Codes | None
) -> Codes:
    """D = (A scale_A) (B scale_B)^T + C, on codes (see `scaled.MultiplyScaled`)."""
    check_scaled(product, a, scale_a, b, scale_b, c)
    chosen = named_model(model)
    if product.k == GROUP_K and chosen is Model.EXACT:
        return reference.multiply_scaled(product, model, a, scale_a, b, scale_b, c)
    sa, sb = product.scale.decode(scale_a), product.scale.decode(scale_b)
    if product.k == GROUP_K:
        d = group_sum(product, a, sa, b, sb, np.zeros((len(a), len(b)), np.uint32) if c is None else c)
    else:
        d = _multiply_scaled(product, chosen, a, sa, b, sb, c)
    if sa.nan.any() or sb.nan.any():
        d[sa.nan.any(axis=1), :] = NAN_BITS["f32"]
        d[:, sb.nan.any(axis=1)] = NAN_BITS["f32"]
    return d


def _multiply_scaled(
    product: ScaledProduct, model: Model, a: Codes, sa: Scales, b: Codes, sb: Scales, c: Codes | None
) -> Codes:
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    d = np.empty((len(a), len(b)), np.uint32)
    c_data = None
    if c is not None:
        c = np.ascontiguousarray(c)
        c_data = _data(c)
    rows, columns = (scales.exponent[:, 0].astype(np.int32).view(np.uint32) for scales in (sa, sb))
    function = _scaled_function(product.unscaled, model)
    m, n = d.shape
    function(m, n, n, n, _data(a), _data(b), c_data, _data(d), _data(rows), _data(columns))
    return d


def _data(array: Codes) -> int:
    """The address of the elements; `ndarray.ctypes` would create three objects for it."""
    where: int = array.__array_interface__["data"][0]
    return where


def address(product: Product, model: str) -> int:
    """The address of the function that `codegen` describes, for native callers."""
    return _compiled(product, Model(model), False)


@cache
def _function(product: Product, model: Model) -> Function:
    return _PROTOTYPE(_compiled(product, model, False))


@cache
def _scaled_function(product: Product, model: Model) -> Callable[..., None]:
    return _SCALED_PROTOTYPE(_compiled(product, model, True))


def _compiled(product: Product, model: Model, scaled: bool) -> int:
    with _COMPILING:
        return _compile(product, model, scaled)


@cache
def _compile(product: Product, model: Model, scaled: bool) -> int:
    """Compile and return the address. LLVM's context is shared, so one thread compiles at a time. Code and
    constants may be mapped further apart than 2 GB, which needs the large code model."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(module_text(product, model, scaled))
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="static",
        codemodel="large",
    )
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _ENGINES.append(engine)
    where: int = engine.get_function_address(ENTRY)
    return where
