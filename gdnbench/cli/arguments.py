# SPDX-License-Identifier: Apache-2.0
"""Arguments that several commands take, read from their text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gdnbench.errors import BadInputError

UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def byte_count(text: str, option: str) -> int:
    """ "512MiB" -> 536870912; a bare number counts bytes. BadInputError names the option."""
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].lower() not in UNITS:
        raise BadInputError(f"{option} {text!r} is no size; write bytes, or a number with KiB, MiB or GiB")
    return int(float(match[1]) * UNITS[match[2].lower()])


def zstd_level(text: str) -> int | None:
    """ "1" to "9" -> the level, "off" -> None; BadInputError for anything else."""
    if text == "off":
        return None
    if not re.fullmatch(r"[1-9]", text):
        raise BadInputError(f"--zstd {text!r} is no level; write 1 to 9, or off")
    return int(text)


def option_texts(arguments: Sequence[str]) -> dict[str, str]:
    """`["--heads", "2,4", "--initial-state"]` -> {"heads": "2,4", "initial_state": "true"}."""
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        flag, given, value = rest.pop(0).partition("=")
        if not flag.startswith("--"):
            raise BadInputError(f"{flag!r} is no option; options of an operation are written --name VALUE")
        if not given:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        options[flag.removeprefix("--").replace("-", "_")] = value
    return options
