# SPDX-License-Identifier: Apache-2.0
"""The sentences of gdnbench that tests assert, each under a code, in one file: `messages.toml`.

    with pytest.raises(StoreError, match=wording("store.batch-exists", segment="seg", batch=0)):

A sentence then changes in two places, the source and `messages.toml`, and in no test.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Formatter
from typing import Any

PATH = Path(__file__).with_name("messages.toml")


def _sentences(table: Mapping[str, Any], area: str = "") -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        if isinstance(value, str):
            yield area + name, value
        else:
            yield from _sentences(value, f"{area}{name}.")


SENTENCES = dict(_sentences(tomllib.loads(PATH.read_text(encoding="utf-8"))))


def placeholders(sentence: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(sentence) if name is not None}


def wording(code: str, /, **values: object) -> str:
    """A regular expression of the sentence with this code, for `match=`, `re.search` or `re.fullmatch`.

    Every placeholder that is given must have exactly that value (a compiled pattern: match it); one that is
    not given may have any. Raises KeyError for an unknown code, TypeError for an unknown placeholder.
    """
    sentence = SENTENCES[code]
    if unknown := values.keys() - placeholders(sentence):
        raise TypeError(f"{code} has no placeholder {', '.join(sorted(unknown))}: {sentence}")
    parts = []
    for text, name, _, conversion in Formatter().parse(sentence):
        parts.append(_escape(text))
        if name is None:
            continue
        value = values.get(name, re.compile(".*"))
        if isinstance(value, re.Pattern):
            parts.append(value.pattern)
        else:
            parts.append(_escape(repr(value) if conversion == "r" else str(value)))
    return "".join(parts)


def _escape(text: str) -> str:
    """As re.escape, but of special characters alone: pytest shows the expressions in the names of tests."""
    return re.sub(r"[\\.^$*+?{}\[\]|()]", r"\\\g<0>", text)
