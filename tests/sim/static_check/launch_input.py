# SPDX-License-Identifier: Apache-2.0
"""A kept launch as the input of SentryWard: its JSON and its PTX.

SentryWard takes the values of scalars, but of pointers only which storage they are in, so tensors are named.
A 64-bit word of a parameter is a pointer if it lies in a tensor of the launch. A parameter of 128 bytes is a
tensor map if it can be decoded as one and its address lies in such a tensor.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.host import TENSORMAP_BYTES, TensorMap, decode_tensormap
from gdnbench.sim.mutants import KeptLaunch, Tensor
from gdnbench.sim.ptx import Address, Instruction, Kernel, Symbol

SCHEMA = "spverify.kernel-input/v1"
POINTER_BYTES = 8
# A hint of tcgen05.mma on how long the tensor core keeps a matrix, and its parser knows no such suffix.
HINTS = (".collector::a::discard",)
FLOATS = {"f32": "<f", "f64": "<d"}  # a parameter declared so takes no other type
# Lengths, offsets and indices: small tensors of words between -SMALL and SMALL.
TABLE_BYTES = 4096
SMALL = 1 << 20

Record = dict[str, Any]


def plain_ptx(text: str) -> str:
    """The text without hints that its parser does not take; every line keeps its number."""
    for hint in HINTS:
        text = text.replace(hint, "")
    return text


def launch_input(launch: KeptLaunch, after: Sequence[bytes]) -> Record:
    """`spverify.kernel-input/v1` for this launch, which leaves its tensors as `after`: those that it only
    reads and that look like tables of indices are given with their values, for branches depend on them.

    Raises UnsupportedError for a pointer into the middle of a tensor, which it has no field for."""
    request = launch.request
    declarations: list[Record] = []
    arguments: list[Record] = []
    maps: list[Record] = []
    shapes: list[Record] = []
    kernel = launch.module.kernels[request.entry]
    names = _names(launch.tensors)
    tables = _tables(launch.tensors, after)
    for index, data in enumerate(request.params):
        found = _tensor_map(data, launch.tensors)
        if found is not None:
            descriptor, tensor = found
            declarations.append({"parameter": index, "type": "tensor_map", "object": names[tensor.address]})
            offset = descriptor.address - tensor.address
            maps.append(_described(index, names[tensor.address], offset, descriptor))
            continue
        for offset, size in sorted(set(_words(kernel, index))):
            word = int.from_bytes(data[offset : offset + size], "little")
            where: Record = {"parameter": index, "offset": offset}
            tensor_of = _owner(launch.tensors, word) if size == POINTER_BYTES else None
            if tensor_of is None:
                float_code = FLOATS.get(_declared(launch, index))
                scalar = {"type": f"u{8 * size}", "value": word}
                if float_code is not None:
                    (value,) = struct.unpack(float_code, data)
                    scalar = {"type": _declared(launch, index), "value": value}
                arguments.append({**where, **scalar})
            elif word != tensor_of.address:
                raise UnsupportedError(
                    f"parameter {index} points into {tensor_of.name}, not to its first byte"
                )
            else:
                pointer = {"type": "pointer", "space": "global", "object": names[word]}
                declarations.append({**where, **pointer})
                if word in tables:
                    shapes.append({**where, "element_type": "u32", "shapes": [tables[word]]})
    sizes: Record = {"grid_dim": list(request.grid), "block_dim": list(request.block)}
    sizes["dynamic_shared_bytes"] = request.shared_bytes
    return {
        "schema": SCHEMA,
        "entry": request.entry,
        "launch": sizes,
        "declarations": declarations,
        "arguments": arguments,
        "shape_arrays": shapes,
        "tma_descriptors": maps,
    }


def _declared(launch: KeptLaunch, index: int) -> str:
    """The type that the PTX declares a parameter with."""
    name = launch.module.kernels[launch.request.entry].params[index].name
    found = re.search(rf"\.param[^,)]*\.(\w+)\s+{re.escape(name)}\b", launch.module.text)
    return found.group(1) if found is not None else ""


def _names(tensors: Iterable[Tensor]) -> dict[int, str]:
    """By address, names that differ: tensors of two calls may be called the same."""
    return {tensor.address: f"{tensor.name}.{index}" for index, tensor in enumerate(tensors)}


def _tables(tensors: Sequence[Tensor], after: Sequence[bytes]) -> dict[int, list[int]]:
    """By address, the words of tables that the launch leaves alone. Zeros alone may be anything."""
    found = {}
    for tensor, left in zip(tensors, after, strict=True):
        data = tensor.before
        if data != left or len(data) > TABLE_BYTES or len(data) % 4 or not any(data):
            continue
        if all(-SMALL < word < SMALL for (word,) in struct.iter_unpack("<i", data)):
            found[tensor.address] = [word for (word,) in struct.iter_unpack("<I", data)]
    return found


def _owner(tensors: Iterable[Tensor], address: int) -> Tensor | None:
    return next((one for one in tensors if one.address <= address < one.address + len(one.before)), None)


def _tensor_map(data: bytes, tensors: Iterable[Tensor]) -> tuple[TensorMap, Tensor] | None:
    if len(data) != TENSORMAP_BYTES:
        return None
    try:
        descriptor = decode_tensormap(data)
    except UnsupportedError:
        return None
    tensor = _owner(tensors, descriptor.address)
    return None if tensor is None else (descriptor, tensor)


def _described(index: int, name: str, offset: int, descriptor: TensorMap) -> Record:
    """Dimension 0 is the contiguous one on both sides."""
    return {
        "parameter": index,
        "object": name,
        "base_byte_offset": offset,
        "element_type": "tf32" if descriptor.tf32 else descriptor.dtype,
        "rank": descriptor.rank,
        "global_shape": list(descriptor.dims),
        "box_shape": list(descriptor.box),
        "coordinate_strides_bytes": list(descriptor.strides),
        "element_strides": list(descriptor.element_strides),
        "swizzle": f"{descriptor.swizzle}B" if descriptor.swizzle else "none",
        "interleave": "none",
        "oob_fill": "nan" if descriptor.fill_nan else "zero",
    }


def _words(kernel: Kernel, index: int) -> Iterator[tuple[int, int]]:
    """Offset and bytes of each word that the kernel loads of its parameter."""
    for ins in kernel.instructions:
        if ins.op == "ld" and ins.has("param", "param::entry"):
            source = ins.sources[0]
            assert isinstance(source, Address)
            if isinstance(source.base, Symbol) and source.base.variable == kernel.params[index]:
                size = _bytes(ins)
                start = source.base.offset + source.offset
                yield from ((start + each * size, size) for each in range(ins.vec))


def _bytes(ins: Instruction) -> int:
    return int("".join(sign for sign in ins.types[-1] if sign.isdigit())) // 8
