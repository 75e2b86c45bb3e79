# SPDX-License-Identifier: Apache-2.0
"""The configurations of Triton's autotuned kernels on a virtual GPU, where no kernel is timed.

The first configuration that the GPU can launch is taken. The environment variable GDNBENCH_TRITON_CONFIG
names another: "2" for all kernels, "2,my_kernel=0" for all but one; the numbers are positions, from 0, in the
kernel's own list after its pruning.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from gdnbench.sim.errors import LaunchError
from gdnbench.sim.virtual.patches import Patches

CONFIG_VARIABLE = "GDNBENCH_TRITON_CONFIG"


@contextmanager
def fixed_configurations() -> Iterator[None]:
    """Inside this block an autotuned kernel runs with one configuration, and nothing is timed. Triton's cache
    of timings on disk is left alone, and what kernels remember of their tuning is forgotten at the end."""
    from triton.runtime.autotuner import Autotuner

    tuned: WeakSet[Any] = WeakSet()
    prune = Autotuner.prune_configs

    def prune_configs(self: Any, kwargs: dict[str, Any], *more: Any) -> list[Any]:
        tuned.add(self)
        configs = prune(self, kwargs, *more)
        at, chosen = _choose(self, configs, kwargs)
        name = self.base_fn.__name__
        note = f"triton: autotuned kernel {name}: configuration {at} of {len(configs)}: {chosen}"
        if note not in _printed:
            _printed.add(note)
            print(note, file=sys.stderr)
        return [chosen]

    def bench(self: Any, *args: Any, **kwargs: Any) -> list[float]:
        return [0.0, 0.0, 0.0]

    def check_disk_cache(self: Any, key: Any, configs: Any, tune: Callable[[], None]) -> bool:
        tune()
        return False

    patches = Patches()
    patches.replace(Autotuner, "prune_configs", prune_configs)
    patches.replace(Autotuner, "_bench", bench)
    patches.replace(Autotuner, "check_disk_cache", check_disk_cache)
    try:
        yield
    finally:
        patches.restore()
        for autotuner in tuned:
            autotuner.cache.clear()


_printed: set[str] = set()  # the notes on kernels' configurations: each is printed once in a process


def wanted_configuration(name: str, setting: str) -> int | None:
    """The number that `setting`, a value of GDNBENCH_TRITON_CONFIG, has for the kernel `name`. Raises
    LaunchError for one that is not understood."""
    numbers: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in setting.split(","))):
        kernel, _, number = part.rpartition("=")
        if not number.strip().isdecimal():
            raise LaunchError(
                f"{CONFIG_VARIABLE}={setting}: {part!r} is neither a number nor KERNEL=NUMBER; write 2 or"
                " 2,my_kernel=0"
            )
        numbers[kernel.strip()] = int(number)
    return numbers.get(name, numbers.get(""))


def _choose(autotuner: Any, configs: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, Any]:
    """Position and configuration of the one to run: the one asked for, or else the first that the GPU can
    launch, or that fails with a reason if there is none."""
    name = autotuner.base_fn.__name__
    wanted = wanted_configuration(name, os.environ.get(CONFIG_VARIABLE, ""))
    if wanted is not None:
        if wanted >= len(configs):
            raise LaunchError(
                f"{CONFIG_VARIABLE}: kernel {name} has configurations 0 to {len(configs) - 1}, not {wanted}"
            )
        return wanted, configs[wanted]
    for at, config in enumerate(configs):
        if _launchable(autotuner, config, kwargs):
            return at, config
    return 0, configs[0]


def _launchable(autotuner: Any, config: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether the kernel compiles with `config` and fits the GPU."""
    from triton.compiler.errors import CompileTimeAssertionFailure
    from triton.runtime.errors import OutOfResources

    current = {**kwargs, **config.all_kwargs()}
    if config.pre_hook is not None:
        config.pre_hook({**autotuner.nargs, **current})
    try:
        kernel = autotuner.fn.run(*autotuner.nargs.values(), **{**current, "warmup": True})
        if hasattr(kernel, "result"):  # it is compiled in another thread
            kernel = kernel.result()
        kernel._init_handles()
    except (OutOfResources, CompileTimeAssertionFailure):
        return False
    return True
