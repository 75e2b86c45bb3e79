# SPDX-License-Identifier: Apache-2.0
"""Embeds values in an HTML page as text, so that nothing from a store can execute.

JSON goes into `<script type="application/json">`, which browsers treat as data. Only `</script` and `<!--`
could end or confuse it, so `<`, `>` and `&` are written as JSON escapes. All non-ASCII characters are escaped
too, so that U+2028 and unpaired surrogates are plain text, and every character is one byte.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


def script_json(value: Any) -> str:
    """`value` as JSON that is safe inside a script element; NaN and infinities are text, as in `--json`."""
    return _json(value).translate(_ESCAPES)


def packed_json(value: Any) -> str:
    """`value` as JSON, compressed (gzip without a time) and in base64: ASCII without escapes."""
    packer = zlib.compressobj(6, wbits=31)
    packed = packer.compress(_json(value).encode("ascii")) + packer.flush()
    return base64.b64encode(packed).decode("ascii")


def csp_hash(text: str) -> str:
    """The hash of an inline script or style, as a Content-Security-Policy writes it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:  # rare: NaN or infinity in a store's own values
        return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
