# SPDX-License-Identifier: Apache-2.0
"""Kernels that each make one mistake that users have met, or end in one of the ways a kernel can end."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent
from gdnbench_kernels.gdn_prefill.torch_chunked import torch_chunked

PREFILL = (
    "q",
    "k",
    "v",
    "g",
    "beta",
    "cu_seqlens",
    "initial_state",
    "scale",
    "chunk_size",
    "output_final_state",
)
DECODE = ("q", "k", "v", "g", "beta", "state", "state_indices", "num_accepted", "scale")


def correct(**call: Any) -> dict[str, Tensor]:
    """Torch's kernel of either operation; prints, as kernels do."""
    print("a kernel talks on stdout")
    if "state" in call:
        return torch_recurrent(**{name: call[name] for name in DECODE if name in call})
    return torch_chunked(**{name: call[name] for name in PREFILL if name in call})


def fills_buffers(*, o: Tensor, **call: Any) -> None:
    """Correct, writing where it was told to instead of returning."""
    results = correct(**call)
    o.copy_(results["o"])
    if "final_state" in call:
        call["final_state"].copy_(results["final_state"])


def returns_tuple(**call: Any) -> tuple[Tensor, ...]:
    return tuple(correct(**call).values())


def linear_gate_kv(**call: Any) -> dict[str, Tensor]:
    """Correct, in conventions that are not the default."""
    call["g"] = call["g"].log()
    for name in ("state", "initial_state"):
        if name in call:
            call[name] = call[name].transpose(-1, -2).contiguous()
    results = correct(**call)
    for name in ("final_state", "state"):
        if name in results or name in call:
            results[name] = results.get(name, call.get(name)).transpose(-1, -2).contiguous()
    return results


linear_gate_kv.conventions = {"gate": "linear", "state_layout": ("KV",)}  # type: ignore[attr-defined]


def rounds_beta_to_bf16(**call: Any) -> dict[str, Tensor]:
    call["beta"] = call["beta"].bfloat16().float()
    return correct(**call)


def maps_heads_wrongly(**call: Any) -> dict[str, Tensor]:
    """Value head hv uses key head hv % H."""
    heads, value_heads = call["q"].shape[-2], call["v"].shape[-2]
    order = torch.arange(value_heads) % heads
    call["q"], call["k"] = call["q"][..., order, :].contiguous(), call["k"][..., order, :].contiguous()
    return correct(**call)


def transposes_the_state(**call: Any) -> dict[str, Tensor]:
    results = correct(**call)
    if "final_state" in results:
        results["final_state"] = results["final_state"].transpose(-1, -2).contiguous()
    else:
        call["state"].copy_(call["state"].transpose(-1, -2).clone())
    return results


def gets_a_tail_wrong(**call: Any) -> dict[str, Tensor]:
    """The last token of the batch reads the previous one's output."""
    results = correct(**call)
    results["o"][-1] = results["o"][-2]
    return results


def leaves_rows_unwritten(*, o: Tensor, **call: Any) -> dict[str, Tensor]:
    results = correct(**call)
    o[:-1] = results.pop("o")[:-1]
    return results


def writes_to_an_input(**call: Any) -> dict[str, Tensor]:
    results = correct(**call)
    call["k"].view(-1)[5] += 1
    return results


def asks_for_a_gpu(q: Tensor) -> None:
    raise RuntimeError("No CUDA GPUs are available")


def writes_a_stale_slot(**call: Any) -> dict[str, Tensor]:
    """Also writes the first slot that no sequence has."""
    results = correct(**call)
    used = set(call["state_indices"].flatten().tolist())
    free = next(slot for slot in range(len(call["state"])) if slot not in used)
    call["state"][free] = 0
    return results


def reads_a_neighbour(**call: Any) -> dict[str, Tensor]:
    """Correct only if q has the strides and the storage that the caller's had."""
    q = call["q"]
    if q.stride() != (512, 32, 1) or q.storage_offset() != 7:
        raise RuntimeError(f"q came with strides {q.stride()} and offset {q.storage_offset()}")
    return correct(**call)


def wants_int64(**call: Any) -> dict[str, Tensor]:
    name = "state_indices" if "state" in call else "cu_seqlens"
    if call[name].dtype != torch.int64:
        raise TypeError(f"{name} is {call[name].dtype}")
    return correct(**call)


wants_int64.conventions = {"offsets": "int64"}  # type: ignore[attr-defined]


def returns_too_much(**call: Any) -> tuple[Tensor, ...]:
    o = correct(**call)["o"]
    return o, o, o, o


def does_nothing(q: Tensor) -> None:
    pass


def raises(q: Tensor) -> None:
    raise RuntimeError("something broke\nand said more")


def refuses(q: Tensor) -> None:
    raise NotImplementedError("head dim 128 only")


def lacks_a_package(q: Tensor) -> None:
    raise ImportError("needs nosuch: pip install nosuch")


def does_not_compile(q: Tensor) -> None:
    from gdnbench.replay.failure import CompileFailure

    raise CompileFailure("ptxas: register file exhausted")


def aborts(q: Tensor) -> None:
    os.abort()


def segfaults(q: Tensor) -> None:
    ctypes.string_at(0)


def exits(q: Tensor) -> None:
    os._exit(7)


def exits_politely(q: Tensor) -> None:
    raise SystemExit(0)


def forks(**call: Any) -> dict[str, Tensor]:
    """Correct; the process that it forks returns too, with wrong results, and earlier."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return correct(**call)
    return {name: torch.zeros_like(tensor) for name, tensor in correct(**call).items()}


class Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError("no message")


def raises_the_unreadable(q: Tensor) -> None:
    raise Unreadable


def hangs(q: Tensor) -> None:
    time.sleep(600)


def aborts_on_decode(**call: Any) -> dict[str, Tensor]:
    """Correct for prefills; says by Python and by the C library, in red, what it does."""
    if "state" in call:
        print("\x1b[31maborts\x1b[0m", flush=True)
        ctypes.CDLL(None).printf(b"as C says\n")
        ctypes.CDLL(None).fflush(None)
        os.abort()
    return correct(**call)


def wants_more(nonsense: Tensor) -> None:
    pass
