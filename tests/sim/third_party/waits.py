"""FlashInfer's kernels use what tcgen05.ld loads without a tcgen05.wait::ld: here they get one."""

from __future__ import annotations

import re
from typing import Any

_LOAD = re.compile(r"(tcgen05\.ld\.[^;]*;)")


def add_waits(compiled: Any) -> None:
    """A tcgen05.wait::ld behind each tcgen05.ld of a compiled kernel's PTX."""
    compiled.artifacts.PTX = _LOAD.sub(r"\1\ntcgen05.wait::ld.sync.aligned;", compiled.artifacts.PTX)
