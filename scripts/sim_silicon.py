#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Records on a Hopper GPU what the micro-kernels of tests/sim/silicon answer, for CI to replay.

    python scripts/sim_silicon.py --list
    python scripts/sim_silicon.py --assemble [FAMILY ...]    does ptxas accept every micro-kernel?
    python scripts/sim_silicon.py --record [FAMILY ...]      writes tests/sim/silicon/vectors
    python scripts/sim_silicon.py --compare [FAMILY ...]     is the stored answer still this GPU's?
    python scripts/sim_silicon.py --sweeps                   are the digests of sweeps.py still this GPU's?

The last three need an sm_90 GPU, NumPy and the CUDA driver library: the driver compiles the PTX.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import math
import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.sim.silicon.capture import FOLDER, Capture, load
from tests.sim.silicon.encodings import ADDRESS, all_maps
from tests.sim.silicon.microkernel import Array, Buffer, MicroKernel
from tests.sim.silicon.registry import FAMILIES, OTHERWISE, kernels
from tests.sim.silicon.sweeps import SWEEPS, digest
from tests.sim.silicon.tensormap import TensorMap

TENSOR_MAP_BYTES = 128
ENCODINGS = "encodings"
CLUSTER_DIMENSION, PROGRAMMATIC_SERIALISATION = 4, 6  # of CUlaunchAttributeID
ATTRIBUTE_WORDS = 18  # a CUlaunchAttribute's size: its id, a word of padding, its value
DYNAMIC_SHARED_BYTES, NON_PORTABLE_CLUSTERS = 8, 14  # of CUfunction_attribute; a cluster may have 16 CTAs
SPAWN = multiprocessing.get_context("spawn")
# Allocations are padded so that a kernel's buffers are apart and 512-byte aligned.
GUARD = 4096


class DriverError(RuntimeError):
    """A CUDA driver call that failed."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} returned {code}")
        self.call = call
        self.code = code


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig: grid, block and dynamic shared memory, stream, launch attributes."""

    _fields_ = (
        ("sizes", ctypes.c_uint * 7),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


class Driver:
    """The few calls of the CUDA driver API that a launch takes."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self.lib, name)(*arguments):
            raise DriverError(name, code)

    def about(self) -> dict[str, str]:
        name = ctypes.create_string_buffer(100)
        version = ctypes.c_int()
        self.call("cuDeviceGetName", name, 100, self.device)
        self.call("cuDriverGetVersion", ctypes.byref(version))
        driver = Path("/proc/driver/nvidia/version")
        words = driver.read_text().split() if driver.exists() else []
        release = next((w for w in words if w.count(".") >= 1 and w.replace(".", "").isdigit()), "unknown")
        cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        return {"gpu": name.value.decode(), "driver": release, "cuda": cuda, "recorded": date}

    def encode(self, map_: TensorMap, address: int) -> tuple[int, bytes]:
        """cuTensorMapEncodeTiled: the return code and the 128 bytes."""
        storage = ctypes.create_string_buffer(TENSOR_MAP_BYTES + 64)
        start = -ctypes.addressof(storage) % 64
        opaque = ctypes.byref(storage, start)
        dims = (ctypes.c_uint64 * map_.rank)(*map_.dims)
        strides = (ctypes.c_uint64 * 5)(*map_.strides)
        box = (ctypes.c_uint32 * map_.rank)(*map_.box)
        steps = (ctypes.c_uint32 * map_.rank)(*map_.element_strides)
        modes = (int(map_.interleave), int(map_.swizzle), int(map_.l2), int(map_.fill))
        code = self.lib.cuTensorMapEncodeTiled(
            opaque, int(map_.dtype), map_.rank, ctypes.c_void_p(address), dims, strides, box, steps, *modes
        )
        return code, storage.raw[start : start + TENSOR_MAP_BYTES]

    def allocate(self, data: Array) -> int:
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(data.nbytes + GUARD))
        self.call("cuMemsetD8_v2", pointer, 0xEE, ctypes.c_size_t(data.nbytes + GUARD))
        host = np.ascontiguousarray(data)
        self.call(
            "cuMemcpyHtoD_v2", pointer, host.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(data.nbytes)
        )
        return pointer.value

    def read(self, pointer: int, like: Array) -> Array:
        host = np.empty_like(like, order="C")
        size = ctypes.c_size_t(host.nbytes)
        self.call("cuMemcpyDtoH_v2", host.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(pointer), size)
        return host

    def launch(self, kernel: MicroKernel, module: ctypes.c_void_p, entry: str, table: Any) -> None:
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
        if kernel.smem:
            self.call("cuFuncSetAttribute", function, DYNAMIC_SHARED_BYTES, kernel.smem)
        shape = (*kernel.grid_shape, kernel.block, 1, 1)
        given: list[tuple[int, ...]] = []
        if kernel.cluster != 1:
            self.call("cuFuncSetAttribute", function, NON_PORTABLE_CLUSTERS, 1)
            given.append((CLUSTER_DIMENSION, 0, *kernel.cluster_shape))
        if entry == kernel.dependent:
            given.append((PROGRAMMATIC_SERIALISATION, 0, 1))
        if not given:
            self.call("cuLaunchKernel", function, *shape, kernel.smem, None, table, None)
            return
        attributes = ((ctypes.c_uint * ATTRIBUTE_WORDS) * len(given))()
        for attribute, words in zip(attributes, given, strict=True):
            attribute[: len(words)] = words
        config = LaunchConfig((*shape, kernel.smem), None, ctypes.addressof(attributes), len(given))
        self.call("cuLaunchKernelEx", ctypes.byref(config), function, table, None)

    def run(self, kernel: MicroKernel) -> dict[str, Array]:
        """Launches; the answers by buffer."""
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), kernel.ptx.encode() + b"\0")
        pointers = {buffer.name: self.allocate(buffer.data) for buffer in kernel.buffers()}
        arguments: list[Any] = []
        for param in kernel.params:
            if isinstance(param, Buffer):
                if param.argument:
                    arguments.append(ctypes.c_uint64(pointers[param.name]))
                continue
            code, encoded = self.encode(param.map, pointers[param.buffer])
            if code:
                raise DriverError("cuTensorMapEncodeTiled", code)
            arguments.append(ctypes.create_string_buffer(encoded, TENSOR_MAP_BYTES))
        table = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        for entry in kernel.entries:
            self.launch(kernel, module, entry, table)
        self.call("cuCtxSynchronize")
        answers = {buffer.name: self.read(pointers[buffer.name], buffer.data) for buffer in kernel.results()}
        for pointer in pointers.values():
            self.call("cuMemFree_v2", ctypes.c_uint64(pointer))
        self.call("cuModuleUnload", module)
        return answers


def run_until_fault(family: str, names: list[str], answers: Connection) -> None:
    """In a process of its own: a fault of the GPU leaves no call of that process working."""
    driver = Driver()
    for name in names:
        try:
            answers.send((name, driver.run(kernels(family)[name])))
        except DriverError as error:
            answers.send((name, error.code if error.call == "cuCtxSynchronize" else str(error)))
            return


def recorded(family: str) -> tuple[Capture, list[str]]:
    """The family's answers, and the kernels that could not be launched. A kernel's fault is an answer too."""
    driver = Driver()
    capture = Capture({**driver.about(), "kernels": {}, "faults": {}})
    if family == ENCODINGS:
        encoded = [driver.encode(map_, ADDRESS) for map_ in all_maps()]
        capture.answers["codes"] = np.array([[code for code, _ in encoded]], np.uint32)
        capture.answers["maps"] = np.frombuffer(b"".join(data for _, data in encoded), np.uint8).reshape(
            -1, 128
        )
        return capture, []
    failed = []
    remaining = list(kernels(family))
    while remaining:
        ours, theirs = SPAWN.Pipe(duplex=False)
        process = SPAWN.Process(target=run_until_fault, args=(family, remaining, theirs))
        process.start()
        theirs.close()
        while remaining:
            name, answer = ours.recv()
            remaining.remove(name)
            if isinstance(answer, str):
                failed.append(f"{name}: {answer}")
                break
            kernel = kernels(family)[name]
            capture.about["kernels"][name] = kernel.fingerprint()
            for param in kernel.tensor_maps():
                _, data = driver.encode(param.map, ADDRESS)
                capture.tensor_maps[f"{name}/{param.name}"] = bytes(8) + data[8:]
            if isinstance(answer, int):
                capture.about["faults"][name] = answer
                break
            capture.answers |= {f"{name}/{buffer}": rows for buffer, rows in answer.items()}
        process.join()
    return capture, failed


def record(families: list[str], folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    wrong = 0
    for family in families:
        capture, failed = recorded(family)
        path = folder / f"{family}.npz"
        capture.save(path)
        print(f"{family}: {len(capture.answers)} answers, {path.stat().st_size} bytes")
        for name, code in capture.about["faults"].items():
            print(f"  {name} faults with CUDA error {code}")
        for line in failed:
            print(f"  failed {line}")
        wrong += len(failed)
    return int(wrong > 0)


def compare(families: list[str], folder: Path) -> int:
    wrong = 0
    for family in families:
        capture, failed = recorded(family)
        stored = load(family, folder)
        differing = [
            name
            for name, rows in capture.answers.items()
            if not np.array_equal(rows, stored.answers.get(name, ()))
        ]
        if capture.about["faults"] != stored.about["faults"]:
            differing.append(f"faults: {capture.about['faults']} and stored {stored.about['faults']}")
        print(f"{family}: {len(capture.answers)} answers, {len(differing)} differences")
        for line in (*failed, *differing):
            print(f"  {line}")
        wrong += len(failed) + len(differing)
    return int(wrong > 0)


def sweeps(families: list[str], folder: Path) -> int:
    driver = Driver()
    wrong = 0
    for sweep in SWEEPS:
        found = digest(driver.run(sweep.kernel())["out"])
        if found != sweep.digest:
            wrong += 1
            print(f"{sweep.name}: {found}, stored {sweep.digest}")
    print(f"{wrong} of {len(SWEEPS)} sweeps differ")
    return int(wrong > 0)


def assemble(families: list[str], folder: Path) -> int:
    """Exit status 1 if ptxas refuses a kernel."""
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "kernel.ptx"
        for family in families:
            for name, kernel in kernels(family).items() if family != ENCODINGS else ():
                source.write_text(kernel.ptx)
                command = ["ptxas", "-arch=sm_90a", str(source), "-o", f"{scratch}/kernel.cubin"]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    wrong += 1
                    print(f"{family} {name}: {done.stderr.strip()}")
    print(f"{wrong} refused")
    return int(wrong > 0)


def listed(families: list[str], folder: Path) -> int:
    for family in families:
        for name, kernel in kernels(family).items() if family != ENCODINGS else ():
            rows = sum(len(buffer.labels) for buffer in kernel.results())
            threads = math.prod(kernel.grid_shape) * kernel.block
            print(f"{family:15} {name:40} {rows:4} answers of {threads} threads")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    action = parser.add_mutually_exclusive_group(required=True)
    actions: dict[str, Callable[[list[str], Path], int]] = {
        "list": listed,
        "assemble": assemble,
        "record": record,
        "compare": compare,
        "sweeps": sweeps,
    }
    for name, function in actions.items():
        action.add_argument(f"--{name}", dest="action", action="store_const", const=function)
    stored = [*FAMILIES, ENCODINGS]
    told = f"of {', '.join(stored)}; default: all; apart: {', '.join(OTHERWISE)}"
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=told)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the answers are stored")
    arguments = parser.parse_args()
    if unknown := set(arguments.families) - {*stored, *OTHERWISE}:
        parser.error(f"no family {', '.join(sorted(unknown))}")
    status: int = arguments.action(arguments.families or stored, arguments.folder)
    return status


if __name__ == "__main__":
    sys.exit(main())
