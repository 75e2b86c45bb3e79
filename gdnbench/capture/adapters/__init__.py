# SPDX-License-Identifier: Apache-2.0
"""Finds the adapters: those of this package, of entry points of the group `gdnbench.adapters`, and `--table`
files."""

from __future__ import annotations

import importlib.metadata
from fnmatch import fnmatchcase

from gdnbench.capture.adapter import Adapter, Target
from gdnbench.capture.adapters.deep_gemm import DeepGemmAdapter
from gdnbench.capture.adapters.deepseek_v4 import DeepseekV4Adapter
from gdnbench.capture.adapters.fla import FlaAdapter
from gdnbench.capture.adapters.flash_mla import FlashMlaAdapter
from gdnbench.capture.adapters.flashinfer import FlashinferAdapter
from gdnbench.capture.adapters.flashinfer_sparse_mla import FlashinferSparseMlaAdapter
from gdnbench.capture.adapters.sglang import SglangAdapter
from gdnbench.capture.adapters.sglang_compressor import SglangCompressorAdapter
from gdnbench.capture.adapters.sglang_deepseek_v4 import SglangDeepseekV4Adapter
from gdnbench.capture.adapters.sglang_indexer import SglangIndexerAdapter
from gdnbench.capture.adapters.transformers import ADAPTER as TRANSFORMERS
from gdnbench.capture.adapters.uncaptured import UNCAPTURED, UncapturedFunctions
from gdnbench.capture.adapters.vllm import VllmAdapter
from gdnbench.capture.adapters.vllm_compressor import VllmCompressorAdapter
from gdnbench.capture.adapters.vllm_deepseek_v4 import VllmDeepseekV4Adapter
from gdnbench.capture.adapters.vllm_indexer import VllmIndexerAdapter
from gdnbench.capture.options import CaptureOptions
from gdnbench.capture.steps import steps_of
from gdnbench.errors import BadInputError

GROUP = "gdnbench.adapters"


def load_adapters(options: CaptureOptions | None = None) -> tuple[list[Adapter], list[str]]:
    """All adapters, and one line for each entry point that fails to load; the others load all the same.

    BadInputError if a table file named by the options cannot be read.
    """
    options = options or CaptureOptions()
    adapters: list[Adapter] = [
        TRANSFORMERS,
        DeepseekV4Adapter(options.cache_layout, options.block_size),
        FlaAdapter(),
        FlashMlaAdapter(),
        DeepGemmAdapter(),
        FlashinferAdapter(),
        FlashinferSparseMlaAdapter(),
        VllmAdapter(),
        VllmDeepseekV4Adapter(),
        VllmIndexerAdapter(),
        VllmCompressorAdapter(),
        SglangAdapter(),
        SglangDeepseekV4Adapter(),
        SglangIndexerAdapter(),
        SglangCompressorAdapter(),
    ]
    for path in options.table:
        from gdnbench.capture.adapter_config import read_tables

        adapters += read_tables(path)
    problems = []
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            adapters.append(_checked(entry.load()))
        except (Exception, SystemExit) as error:
            problems.append(f"adapter {entry.name!r} ({entry.value}) does not load: {error!r}")
    return adapters, problems


def _checked(adapter: Adapter) -> Adapter:
    """`adapter`, after reading its tables once. TypeError, or what reading them raises, if they are
    invalid."""
    if not isinstance(adapter.framework, str):
        raise TypeError(f"its framework is {adapter.framework!r}, not a name")
    named = (*adapter.targets, *adapter.scopes, *steps_of(adapter))
    if not all(isinstance(target, Target) for target in named):
        raise TypeError("its targets, scopes and steps must be Target objects")
    return adapter


def frameworks_of(adapter: Adapter) -> tuple[str, ...]:
    """The names by which `--target` selects the adapter's functions: its framework, and the packages that
    call them, which an adapter may list in an optional attribute `callers`."""
    return (adapter.framework, *getattr(adapter, "callers", ()))


def names_target(pattern: str, framework: str, target: Target) -> bool:
    """Whether `pattern` names this function, its module, a part of the module's path or its framework."""
    names = (framework, target.function, target.module, target.name, *target.module.split("."))
    return any(fnmatchcase(name, pattern) for name in names)


def select_targets(adapters: list[Adapter], patterns: tuple[str, ...]) -> list[tuple[Adapter, Target]]:
    """The functions that `patterns` name; all of them without patterns. BadInputError for a pattern that
    names none.

    A pattern `module:function` may also name a function decorated with `record`, unknown until the program
    runs.
    """
    known = [(adapter, target) for adapter in adapters for target in adapter.targets]
    for pattern in unknown_targets(adapters, patterns):
        if ":" not in pattern:
            frameworks = ", ".join(sorted({adapter.framework for adapter in adapters}))
            raise BadInputError(
                f"--target {pattern!r} names no known function; known frameworks are {frameworks}, and "
                f"{known[0][1].name} is an example"
            )
    return [
        (adapter, target)
        for adapter, target in known
        if not patterns or any(_names(pattern, adapter, target) for pattern in patterns)
    ]


def _names(pattern: str, adapter: Adapter, target: Target) -> bool:
    return any(names_target(pattern, framework, target) for framework in frameworks_of(adapter))


def select_uncaptured(operations: tuple[str, ...]) -> tuple[UncapturedFunctions, ...]:
    """The functions whose calls are counted: all of them, or those beside operations that `--op` names."""
    return tuple(
        entry for entry in UNCAPTURED if not operations or not set(operations).isdisjoint(entry.operations)
    )


def unknown_targets(adapters: list[Adapter], patterns: tuple[str, ...]) -> list[str]:
    """The patterns that name no function of any adapter."""
    known = [(adapter.framework, target) for adapter in adapters for target in adapter.targets]
    return [p for p in patterns if not any(names_target(p, framework, target) for framework, target in known)]
