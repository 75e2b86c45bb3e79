# SPDX-License-Identifier: Apache-2.0
"""Decode loops that call what each adapter captures, layer by layer; used by bench_capture_adapters.py."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from gdnbench.capture.adapters import (
    fla_signatures,
    flashinfer_signatures,
    sglang_signatures,
    vllm_signatures,
)
from gdnbench.capture.adapters.signatures import Signatures

DIM, SLOTS, SLOT, WINDOW = 128, 8, 5, 128
HIDDEN = 2048
"""Of the plain products that fill a step."""


@dataclass(frozen=True, slots=True)
class Sizes:
    device: str
    layers: int
    heads: int
    value_heads: int

    @classmethod
    def of(cls, device: str, layers: int) -> Sizes:
        """Those that are served on a GPU, a quarter of them on a CPU."""
        return cls(device, layers, 16, 32) if device == "cuda" else cls(device, layers, 4, 8)

    def random(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(*shape, device=self.device).to(dtype)

    def ints(self, *values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)


class Layer(nn.Module):
    """Calls a framework's function, looked up each time as its callers do."""

    def __init__(self, index: int, call: Callable[[], object]) -> None:
        super().__init__()
        self.layer_idx = index
        self._call = call

    def forward(self) -> object:
        return self._call()


@dataclass(slots=True)
class Loop:
    """`own`: the framework's functions, not stand-ins. `table`: of a paged caller, as --table takes it."""

    name: str
    own: bool
    layers: Sequence[Layer]
    device: str
    table: str = ""
    forward: Callable[[Layer], object] = Layer.forward
    _products: int = 0
    _x: Tensor = field(init=False)
    _weight: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self._x = torch.randn(16, HIDDEN, device=self.device)
        self._weight = torch.randn(HIDDEN, HIDDEN, device=self.device) / HIDDEN**0.5

    def step(self) -> None:
        """Ends when the device is through with it."""
        with torch.no_grad():
            for layer in self.layers:
                self.forward(layer)
            x = self._x
            for _ in range(self._products):
                x = x @ self._weight
        if self.device == "cuda":
            torch.cuda.synchronize()

    def fill(self, step_ms: float) -> None:
        """Choose as many products as make a step of about this length."""
        bare = self._milliseconds()
        self._products = 32
        product = (self._milliseconds() - bare) / 32
        self._products = max(0, round((step_ms - bare) / max(product, 1e-4)))

    def _milliseconds(self) -> float:
        for _ in range(3):
            self.step()
        begun = time.perf_counter()
        for _ in range(8):
            self.step()
        return (time.perf_counter() - begun) / 8 * 1e3


def _layers(sizes: Sizes, make: Callable[[], Callable[[], object]]) -> list[Layer]:
    """Each with tensors of its own."""
    return [Layer(index, make()) for index in range(sizes.layers)]


@contextmanager
def _stand_ins(functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Modules with functions in them, by "module:function"; a class's method is "module:Class.method".

    Modules of the same packages, where those are installed and imported, are out of sight meanwhile and come
    back as they were.
    """
    roots = {place.partition(":")[0].partition(".")[0] for place in functions}

    def take_out() -> dict[str, ModuleType]:
        return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in roots}

    before = take_out()
    try:
        for place, function in functions.items():
            name, _, what = place.partition(":")
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                package = ".".join(parts[:end])
                if package not in sys.modules:
                    sys.modules[package] = ModuleType(package)
                    sys.modules[package].__path__ = []
            function.__module__, function.__qualname__ = name, what
            owner, _, function.__name__ = what.rpartition(".")
            module = sys.modules[name]
            if owner:
                setattr(module, owner, type(owner, (), {function.__name__: function, "__module__": name}))
            else:
                setattr(module, what, function)
        yield
    finally:
        take_out()
        sys.modules.update(before)


def _stand_in(known: Signatures, name: str, *returned: str) -> Callable[..., Any]:
    """Has the parameters that the adapter knows of function `name`, which its tests hold to the framework's
    source. Takes them by name, computes nothing, and gives what it was given as `returned`."""

    def stand_in(*_: object, **given: Any) -> Any:
        found = tuple(given[one] for one in returned)
        return found if len(found) > 1 else found[0]

    parameters = eval(f"lambda {known.functions[name].parameters}: None")
    stand_in.__signature__ = inspect.signature(parameters)  # type: ignore[attr-defined]
    return stand_in


@contextmanager
def _installed_or_not(
    sizes: Sizes, known: Signatures, place: str, name: str
) -> Iterator[tuple[ModuleType, bool]]:
    """The module at `place` and whether it is the framework's own: if that is installed, on a GPU. Else it
    has a stand-in of function `name`, which gives v and its states."""
    own = sizes.device == "cuda" and importlib.util.find_spec(place.partition(".")[0]) is not None
    stand_in = _stand_in(known, name, "v", "initial_state")
    with contextlib.nullcontext() if own else _stand_ins({f"{place}:{name}": stand_in}):
        yield importlib.import_module(place), own


def _rows(sizes: Sizes, *lead: int) -> dict[str, Tensor]:
    h, hv = sizes.heads, sizes.value_heads
    q, k = (sizes.random(*lead, h, DIM) for _ in range(2))
    return {"q": q, "k": k, "v": sizes.random(*lead, hv, DIM)}


def _gates(sizes: Sizes, *lead: int) -> dict[str, Tensor]:
    """Log gates and step sizes, fp32."""
    gate = -torch.nn.functional.softplus(sizes.random(*lead, sizes.value_heads, dtype=torch.float32))
    return {"g": gate, "beta": sizes.random(*lead, sizes.value_heads, dtype=torch.float32).sigmoid()}


def _raw(sizes: Sizes, *lead: int) -> dict[str, Tensor]:
    hv = sizes.value_heads
    wide = {name: sizes.random(hv, dtype=torch.float32) for name in ("A_log", "dt_bias")}
    return {"a": sizes.random(*lead, hv), "b": sizes.random(*lead, hv), **wide}


def _state(sizes: Sizes, count: int) -> Tensor:
    return torch.zeros(count, sizes.value_heads, DIM, DIM, device=sizes.device)


@contextmanager
def transformers(sizes: Sizes) -> Iterator[Loop]:
    modeling = importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")

    def make() -> Callable[[], object]:
        ratio = sizes.value_heads // sizes.heads
        q, k, v = _rows(sizes, 1, 1).values()
        gates = _gates(sizes, 1, 1)
        of = (q.repeat_interleave(ratio, 2), k.repeat_interleave(ratio, 2), v)
        states = [_state(sizes, 1)]
        options = {**gates, "output_final_state": True, "use_qk_l2norm_in_kernel": True}

        def call() -> None:
            _, states[0] = modeling.torch_recurrent_gated_delta_rule(*of, initial_state=states[0], **options)

        return call

    yield Loop("transformers", True, _layers(sizes, make), sizes.device)


@contextmanager
def fla(sizes: Sizes) -> Iterator[Loop]:
    place, name = "fla.ops.gated_delta_rule", fla_signatures.RECURRENT
    with _installed_or_not(sizes, fla_signatures.SIGNATURES, place, name) as (module, own):

        def make() -> Callable[[], object]:
            given = {**_rows(sizes, 1, 1), **_gates(sizes, 1, 1)}
            states = [_state(sizes, 1)]
            options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}

            def call() -> None:
                _, states[0] = getattr(module, name)(**given, initial_state=states[0], **options)

            return call

        yield Loop("fla", own, _layers(sizes, make), sizes.device)


@contextmanager
def flashinfer(sizes: Sizes) -> Iterator[Loop]:
    place, name = "flashinfer.gdn_decode", flashinfer_signatures.PRETRANSPOSE
    with _installed_or_not(sizes, flashinfer_signatures.SIGNATURES, place, name) as (module, own):

        def make() -> Callable[[], object]:
            given = {**_rows(sizes, 1, 1), **_raw(sizes, 1, 1)}
            pool, slots = _state(sizes, SLOTS), sizes.ints(SLOT)
            return lambda: getattr(module, name)(
                **given, state=None, initial_state=pool, initial_state_indices=slots
            )

        yield Loop("flashinfer", own, _layers(sizes, make), sizes.device)


@contextmanager
def vllm(sizes: Sizes) -> Iterator[Loop]:
    place = "vllm.third_party.flash_linear_attention.ops.fused_recurrent"
    name = vllm_signatures.PACKED
    stand_in = _stand_in(vllm_signatures.SIGNATURES, name, "out", "initial_state")
    with _stand_ins({f"{place}:{name}": stand_in}):
        module = sys.modules[place]

        def make() -> Callable[[], object]:
            features = (2 * sizes.heads + sizes.value_heads) * DIM
            given = {"mixed_qkv": sizes.random(1, features), **_raw(sizes, 1)}
            given |= {"initial_state": _state(sizes, SLOTS), "ssm_state_indices": sizes.ints(SLOT)}
            given |= {"out": sizes.random(1, 1, sizes.value_heads, DIM)}
            return lambda: getattr(module, name)(**given, scale=DIM**-0.5, use_qk_l2norm_in_kernel=True)

        yield Loop("vllm", False, _layers(sizes, make), sizes.device)


@contextmanager
def sglang(sizes: Sizes) -> Iterator[Loop]:
    place = "sglang.srt.layers.attention.linear.kernels.gdn_triton"
    name = f"{sglang_signatures.TRITON}.{sglang_signatures.DECODE}"
    stand_in = _stand_in(sglang_signatures.SIGNATURES, name, "v")
    with _stand_ins({f"{place}:{name}": stand_in}):
        kernels = sys.modules[place].TritonGDNKernel()

        def make() -> Callable[[], object]:
            given = {**_rows(sizes, 1, 1), **_raw(sizes, 1)}
            given |= {"ssm_states": _state(sizes, SLOTS), "cache_indices": sizes.ints(SLOT)}
            given |= {"query_start_loc": sizes.ints(0, 1)}
            return lambda: kernels.decode(**given)

        yield Loop("sglang", False, _layers(sizes, make), sizes.device)


TABLE = """
[[paged]]
function = "paged_engine:sparse_decode"
framework = "paged_engine"
q = "q"
cache = "cache"
swa_indices = "indices"
swa_lens = "lengths"
scale = 0.04419417382415922
o = "out"
cache_layout = "fp8_ds_mla"
"""


@contextmanager
def table(sizes: Sizes) -> Iterator[Loop]:
    """A paged caller of DeepSeek-V4's sliding window, of 16 heads on a CPU and 64 on a GPU."""

    def sparse_decode(q: Tensor, cache: Tensor, indices: Tensor, lengths: Tensor, out: Tensor) -> None:
        return None

    heads = 4 * sizes.heads
    with _stand_ins({"paged_engine:sparse_decode": sparse_decode}):
        module = sys.modules["paged_engine"]

        def make() -> Callable[[], object]:
            cache = torch.zeros(8, 64, 584, dtype=torch.uint8, device=sizes.device)
            indices = torch.arange(WINDOW, dtype=torch.int32, device=sizes.device)[None]
            given = {"q": sizes.random(1, heads, 512), "cache": cache, "indices": indices}
            given |= {"lengths": sizes.ints(WINDOW), "out": sizes.random(1, heads, 512)}
            return lambda: module.sparse_decode(**given)

        yield Loop("table", False, _layers(sizes, make), sizes.device, TABLE)


@contextmanager
def record(sizes: Sizes) -> Iterator[Loop]:
    """A function of one's own, decorated with `gdnbench.capture.record`."""
    from gdnbench.capture import record as recorded

    @recorded("gdn_decode", conventions={"qk": "normalised"})
    def delta_rule(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, state_indices: Tensor
    ) -> Tensor:
        return v

    def make() -> Callable[[], object]:
        given = {**_rows(sizes, 1, 1), **_gates(sizes, 1, 1)}
        given |= {"state": _state(sizes, SLOTS), "state_indices": sizes.ints(SLOT)[None]}
        return lambda: delta_rule(**given)

    yield Loop("record", False, _layers(sizes, make), sizes.device)


LOOPS: Mapping[str, Callable[[Sizes], AbstractContextManager[Loop]]] = {
    "transformers": transformers,
    "fla": fla,
    "flashinfer": flashinfer,
    "vllm": vllm,
    "sglang": sglang,
    "table": table,
    "record": record,
}
