"""Shows the virtual GPU to the libraries that a program uses, now or when it imports them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from types import ModuleType

from gdnbench.sim.virtual.gpu import VirtualGpu
from gdnbench.sim.virtual.import_hook import hooked, is_loaded

# What shows the GPU to a library, once the module of the library has been imported: module -> (our module,
# the context manager in it, which takes the GPU). They are imported then: importing them imports the library.
LIBRARIES = {
    "torch": ("gdnbench.sim.virtual.torch_cuda", "torch_sees"),
    "cutlass": ("gdnbench.sim.virtual.cutlass_calls", "cutlass_sees"),
    "cuda.bindings.driver": ("gdnbench.sim.virtual.cuda_driver", "driver_sees"),
    "cuda.bindings.runtime": ("gdnbench.sim.virtual.cuda_runtime", "runtime_sees"),
}


@contextmanager
def installed(gpu: VirtualGpu) -> Iterator[None]:
    """Inside this block the libraries see `gpu`, those too that are imported inside it."""
    with ExitStack() as stack:

        def show(name: str) -> Callable[[ModuleType], None]:
            done: list[str] = []

            def after_import(module: ModuleType) -> None:
                if not done:  # a reload, which keeps what was replaced in other modules
                    done.append(name)
                    stack.enter_context(_view(name, gpu))

            return after_import

        hooks = {name: show(name) for name in LIBRARIES}
        stack.enter_context(hooked(hooks))
        for name, after_import in hooks.items():
            if is_loaded(name):
                after_import(sys.modules[name])
        yield


def _view(name: str, gpu: VirtualGpu) -> AbstractContextManager[None]:
    module, function = LIBRARIES[name]
    shown: AbstractContextManager[None] = getattr(import_module(module), function)(gpu)
    return shown
