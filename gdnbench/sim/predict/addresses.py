# SPDX-License-Identifier: Apache-2.0
"""The addresses of a kernel's machine instructions, each with its text and the PTX instruction it is for."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.predict.code import at_accesses
from gdnbench.sim.predict.machine_code import Machined, run_tool, tool, with_lines
from gdnbench.sim.ptx.ir import Kernel, Module

WHAT = "addresses of machine instructions"
_LINE = re.compile(r'//## File "[^"]*", line (\d+)')
_CODE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+((?:@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)[^;]*?)\s*;\s+/\* 0x")


@dataclass(frozen=True, slots=True)
class Placed(Machined):
    """A machine instruction at `address`, in bytes from the kernel's begin; `text` as nvdisasm prints it,
    without the semicolon. Its control bits are not read."""

    address: int
    text: str


def need_tools() -> None:
    """Raises UnsupportedError if ptxas or nvdisasm is missing."""
    for name in ("ptxas", "nvdisasm"):
        tool(name, WHAT)


def addresses(module: Module, kernel: Kernel, arch: str) -> tuple[Placed, ...]:
    """The kernel as ptxas assembles it for `arch`, loops unrolled as ptxas likes. Raises UnsupportedError
    without ptxas and nvdisasm, for PTX that ptxas refuses, and where lines of its own for every PTX
    instruction change what ptxas makes of the kernel."""
    as_given = tuple(_placed(_listing(module.text, arch), kernel.name))
    marked = tuple(_placed(_listing(with_lines(module, kernel, unrolled=True), arch), kernel.name))
    if [(one.address, one.text) for one in as_given] != [(one.address, one.text) for one in marked]:
        raise UnsupportedError(f"{WHAT} of {kernel.name}: ptxas makes other code of it when lines are marked")
    return tuple(at_accesses(kernel, marked))


def _listing(text: str, arch: str) -> str:
    with tempfile.TemporaryDirectory(prefix="gdnbench-code-") as folder:
        source, cubin = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(text, encoding="utf-8")
        run_tool([tool("ptxas", WHAT), "-arch", arch, "-lineinfo", "-o", str(cubin), str(source)], WHAT)
        return run_tool([tool("nvdisasm", WHAT), "-g", "-c", "-hex", str(cubin)], WHAT)


def _placed(listing: str, kernel: str) -> Iterator[Placed]:
    inside, pc = False, -1
    for line in listing.splitlines():
        if line.startswith(("\t.section", ".section")):
            inside = re.split(r"[\s,]+", line.strip())[1] == f".text.{kernel}"
            continue
        if not inside:
            continue
        marked = _LINE.search(line)
        if marked:
            pc = int(marked.group(1)) - 1
        code = _CODE.search(line)
        if code:
            text = " ".join(code.group(2).split())
            yield Placed(pc, code.group(3), 0, 0, None, None, int(code.group(1), 16), text)
