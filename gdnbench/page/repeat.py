# SPDX-License-Identifier: Apache-2.0
"""The shell command that runs one record of a run again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gdnbench.judge.by_tensor import replay_options_of

# Options of `gdnbench replay` that results do not contain, each with a value.
_CARRIED = ("--timeout", "--accept", "--schedule", "--shape")


def repeat_command(
    header: Mapping[str, str], record: Mapping[str, Any], arguments: Sequence[str] = ()
) -> str:
    """The command that replays `record`, or compares it again. `arguments`: the original command line."""
    return " ".join(shell_quote(word) for word in ("gdnbench", *_words(header, record, arguments)))


def shell_quote(word: str) -> str:
    """`word` quoted for a shell, on one line: unprintable characters as $'...' of bash and zsh."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(_escaped(character) for character in word) + "'"


def _escaped(character: str) -> str:
    if character in "\\'":
        return "\\" + character
    if character.isprintable():
        return character
    # Python decodes a non-UTF-8 byte of a path to one of these surrogates; other surrogates encode no byte.
    how = "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", how))


def _words(header: Mapping[str, str], record: Mapping[str, Any], arguments: Sequence[str]) -> Iterator[str]:
    rule = replay_options_of(header.get("rule", "")) or []
    if header.get("command") == "diff":
        yield from ("diff", header["a"], header["b"], "--op", str(record["op"]))
        yield from (["--oracle"] if "torch's" in header.get("rule", "") else [])
        yield from (word for word in rule if word != "--bitwise")  # a diff's default
        return
    yield from ("replay", header["store"], str(record["number"]))
    yield from ("--kernel", header["kernel"], "--against", header["against"], "--on", header["on"])
    yield from rule
    yield from ["--stages"] if any(tensor.get("stage") for tensor in record["tensors"]) else []
    yield from ["--check"] if record.get("findings") is not None else []
    yield from _carried(arguments)


def _carried(arguments: Sequence[str]) -> Iterator[str]:
    """Options of a `gdnbench replay` or `trace` command line that affect a record's run and are in no
    result."""
    command = next((word for word in arguments if word in ("replay", "trace")), None)
    if command is None:
        return
    words = iter(arguments[arguments.index(command) + 1 :])
    for word in words:
        name, given, value = word.partition("=")
        if name in _CARRIED:
            following = value if given else next(words, None)
            yield from () if following is None else (name, following)
        elif word in ("--isolate", "--no-isolate"):
            yield word
