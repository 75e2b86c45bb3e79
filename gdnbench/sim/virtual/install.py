# SPDX-License-Identifier: Apache-2.0
"""Shows the virtual GPU to the libraries that a program uses, now or when it imports them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from types import ModuleType

from gdnbench.sim.virtual.import_hook import hooked, is_loaded

# The modules of CuPy into which a CUDA runtime is linked. All but the first have kernels in machine code.
CUPY = (
    "cupy_backends.cuda.api.runtime",
    "cupy.cuda.cub",
    "cupy.cuda.jitify",
    "cupy.cuda.thrust",
    "cupy.random._generator_api",
)

# What shows the GPU to a library, once the module of the library has been imported: module -> (our module,
# the function in it, which takes the GPU and returns a context manager, or None if it undoes nothing). Our
# module is imported then: it imports the library.
LIBRARIES = {
    "torch": ("gdnbench.sim.virtual.torch_cuda", "torch_sees"),
    "cutlass": ("gdnbench.sim.virtual.cutlass_calls", "cutlass_sees"),
    "triton": ("gdnbench.sim.virtual.triton_driver", "triton_sees"),
    "cuda.bindings.driver": ("gdnbench.sim.virtual.cuda_driver", "driver_sees"),
    "cuda.bindings.runtime": ("gdnbench.sim.virtual.cuda_runtime", "runtime_sees"),
    **dict.fromkeys(CUPY, ("gdnbench.sim.virtual.linked_runtime", "cupy_sees")),
}


@contextmanager
def installed(gpu: object) -> Iterator[None]:
    """Inside this block the libraries see `gpu`, a VirtualGpu, those too that are imported inside it."""
    import_module("gdnbench.sim.virtual.libcuda").provide_libcuda()
    with ExitStack() as stack:
        stack.enter_context(import_module("gdnbench.sim.virtual.libnvrtc").nvrtc_gives_ptx())

        def show(name: str) -> Callable[[ModuleType], None]:
            done: list[str] = []

            def after_import(module: ModuleType) -> None:
                if not done:  # a reload, which keeps what was replaced in other modules
                    done.append(name)
                    shown = _show(name, gpu)
                    if shown is not None:
                        stack.enter_context(shown)

            return after_import

        hooks = {name: show(name) for name in LIBRARIES}
        stack.enter_context(hooked(hooks))
        for name, after_import in hooks.items():
            if is_loaded(name):
                after_import(sys.modules[name])
        yield


def _show(name: str, gpu: object) -> AbstractContextManager[object] | None:
    module, function = LIBRARIES[name]
    shown = getattr(import_module(module), function)(gpu)
    return shown if hasattr(shown, "__enter__") else None
