# SPDX-License-Identifier: Apache-2.0
"""Packages that stand in for frameworks: the modules, names and signatures of theirs, computed by definition.

They are not imported as parts of this one: `framework` puts this folder on the path.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@contextmanager
def framework(folder: Path = FOLDER) -> Iterator[None]:
    """`import fla` and `import flashinfer` find what is in `folder`, whatever is installed."""
    theirs = {path.stem for path in [*FOLDER.iterdir(), *folder.iterdir()]}

    def take_out() -> dict[str, object]:
        return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] in theirs}

    before = take_out()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(folder)
            yield
    finally:
        take_out()
        sys.modules.update(before)  # type: ignore[arg-type]
