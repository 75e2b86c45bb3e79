# SPDX-License-Identifier: Apache-2.0
"""Cells of docs/notebook.ipynb: executed without Jupyter, and their outputs compared."""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.docs.session import difference

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"
_IMAGE = re.compile(r'data:image/png;base64,([^"]*)')

Output = Mapping[str, Any]


def code_cells() -> list[dict[str, Any]]:
    """The code cells of the notebook, with their stored outputs."""
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


def execute(sources: Sequence[str], folder: Path) -> Iterator[list[Output]]:
    """The outputs of each cell, as Jupyter stores them: what it prints, and its last expression's value."""
    names: dict[str, object] = {"__name__": "__main__"}
    for source in sources:
        out = io.StringIO()
        body = ast.parse(source).body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        data: dict[str, str] = {}
        with contextlib.redirect_stdout(out), contextlib.chdir(folder):
            exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
            value = (
                None if last is None else eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
            )
            if value is not None:
                data["text/plain"] = repr(value)
            if hasattr(value, "_repr_html_"):
                data["text/html"] = value._repr_html_()
        outputs: list[Output] = []
        if out.getvalue():
            outputs.append({"output_type": "stream", "name": "stdout", "text": out.getvalue()})
        if data:
            outputs.append({"output_type": "execute_result", "data": data})
        yield outputs


def differences(stored: Sequence[Output], new: Sequence[Output]) -> Iterator[str]:
    """How new outputs of a cell differ from the stored ones. Figures may, and pixels of an image, whose size
    may not."""
    if len(stored) != len(new):
        yield f"{len(new)} outputs, not {len(stored)}"
        return
    for old, one in zip(stored, new, strict=True):
        if old["output_type"] != one["output_type"]:
            yield f"output is {one['output_type']}, not {old['output_type']}"
        for kind, text in _texts(old).items():
            found = _texts(one).get(kind)
            if found is None:
                yield f"there is no {kind}"
            elif wrong := difference(_sizes(text), _sizes(found)):
                yield f"{kind}: {wrong}"


def _texts(output: Output) -> dict[str, str]:
    kinds = output.get("data", {"text": output.get("text", "")})
    return {kind: "".join(text) for kind, text in kinds.items()}


def _sizes(html: str) -> str:
    """`html` with images replaced by their sizes, and a space between tags, where a figure may follow."""

    def size(match: re.Match[str]) -> str:
        width, height = struct.unpack(">II", base64.b64decode(match[1])[16:24])
        return f"{width} by {height}"

    return re.sub(r"[<>;]", r" \g<0> ", _IMAGE.sub(size, html))
