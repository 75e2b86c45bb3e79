# SPDX-License-Identifier: Apache-2.0
"""What a shell completes: commands, kernels, operations, devices, stores and their records.

An argument or option is completed by its name, as it means the same in every command that has it. Nothing is
printed, and nothing is written: a store that cannot be read has no records to complete. Names of files and
texts of stores come from others: what a shell would run, or insert as something else, is escaped or left out.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdnbench.errors import EXPECTED_ERRORS, BadInputError
from gdnbench.printable import printable

if TYPE_CHECKING:
    from gdnbench.store.index import IndexEntry

Words = Iterable[tuple[str, str]]
"""Words and what they mean, "" where that needs no saying."""
MOST = 100  # completions that a terminal still shows
MOST_FILES = 2000  # entries of a folder that are looked at
DEVICES = (("cpu", ""), ("cuda", "a GPU of this machine"), ("sim", "a simulated GPU"))
MACHINES = (("b200", "148 SMs"), ("b300", "148 SMs"), ("h200", "132 SMs"), ("h100", "132 SMs"))
RECORDED = ("recorded", "the outputs that the record holds")
COMPLETING = "_GDNBENCH_COMPLETE"
"""The variable by which a shell asks for the completion of a line: `complete_zsh`."""
_PLAIN = re.compile(r"[\w@%+=:,./~-]*")  # what no shell gives a meaning
_GLOB = re.compile(r"[*?\[]")  # bash expands the words that it is given
_QUOTES = re.compile(r"""['"\\]""")


@dataclass(frozen=True, slots=True)
class Item:
    """A completion as typer's shells format it: of a word and not of a file, with its help."""

    value: str
    help: str | None = None
    type: str = "plain"


def items(found: Words, incomplete: str) -> list[Item]:
    """The words that begin as what was typed, as the shell that asks inserts them."""
    shell = os.environ.get(COMPLETING, "").removeprefix("complete_")
    begun = ((word, text) for word, text in found if word.startswith(incomplete))
    shown = ((_insertable(word, shell), text) for word, text in begun)
    return [Item(word, _told_to(shell, text) or None) for word, text in shown if word is not None]


def _insertable(word: str, shell: str) -> str | None:
    """`word` as `shell` is to insert it; None if it would insert another word, or run a part of it.

    fish quotes words itself. zsh does too, after it has evaluated typer's answer, in which typer escapes `$`
    and backquotes but neither a backslash ahead of them nor quotes. bash inserts words as they are, behind
    the quote if one is open.
    """
    if not word.isprintable():
        return None
    if shell == "fish" or _PLAIN.fullmatch(word):
        return word
    if shell == "zsh":
        return None if _QUOTES.search(word) or "  " in word else word
    if shell != "bash" or _GLOB.search(word):
        return None
    typed = os.environ.get("COMP_WORDS", "").rpartition("\n")[2]
    if typed.startswith(("'", '"')):
        return None if re.search(r"""['"\\$`!]""", word) else word
    return re.sub(r"([^\w@%+=:,./-])", r"\\\1", word)


def _told_to(shell: str, text: str) -> str:
    """What zsh is told of a word is evaluated as the word is."""
    return text.replace("\\", "/") if shell == "zsh" else text


def complete_parameters(parameters: Iterable[Any]) -> None:
    """Has the arguments and options of typer's tree complete what `COMPLETERS` does by their names."""
    for one in parameters:
        if one.name in COMPLETERS:
            one.shell_complete = _method(COMPLETERS[one.name])


def _method(completer: Callable[[Mapping[str, Any], str], Words]) -> Callable[[Any, str], list[Item]]:
    def shell_complete(context: Any, incomplete: str) -> list[Item]:
        try:
            return items(list(completer(context.params, incomplete)), incomplete)
        except (*EXPECTED_ERRORS, OSError):
            return []

    return shell_complete


def _operations(line: Mapping[str, Any], incomplete: str) -> Words:
    from gdnbench.kernel_names import operation_names

    return [(name, "") for name in operation_names()]


def _kernels(line: Mapping[str, Any], incomplete: str) -> Words:
    """The listed kernels, of the operation if the line has one, with the operations that have them. A
    kernel of one's own has none of their names: the shell completes its file."""
    from gdnbench.kernel_names import kernel_names, operation_names

    chosen = line.get("op")
    found: dict[str, list[str]] = {}
    for operation in [chosen] if isinstance(chosen, str) else operation_names():
        for name in kernel_names(operation):
            found.setdefault(name, []).append(operation)
    return [(name, ", ".join(operations)) for name, operations in sorted(found.items())]


def _against(line: Mapping[str, Any], incomplete: str) -> Words:
    return [RECORDED, *_kernels(line, incomplete)]


def _stores(line: Mapping[str, Any], incomplete: str) -> Iterator[tuple[str, str]]:
    """Stores beside what was typed, and those in the folders beside it. Without one the shell completes
    files and folders as it always does."""
    typed, slash, start = incomplete.rpartition("/")
    folder = Path(os.path.expanduser(f"{typed}{slash}" or "."))
    for name in _names(folder, start):
        if _is_store(folder / name):
            yield f"{typed}{slash}{name}", ""
        elif (folder / name).is_dir():
            inner = (one for one in _names(folder / name, "") if _is_store(folder / name / one))
            yield from ((f"{typed}{slash}{name}/{one}", "") for one in inner)


def _names(folder: Path, start: str) -> list[str]:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in itertools.islice(entries, MOST_FILES)]
    hidden = start.startswith(".")
    return sorted(name for name in names if name.startswith(start) and name.startswith(".") == hidden)


def _is_store(path: Path) -> bool:
    return path.name.endswith(".zip") or (path / "zarr.json").is_file()


def _record(line: Mapping[str, Any], incomplete: str) -> Words:
    """The numbers of the records of the store on the line."""
    return _first(_numbered(line), incomplete)


def _records(line: Mapping[str, Any], incomplete: str) -> Words:
    """Numbers, and ranges to the last record, behind what was typed up to a comma or a hyphen."""
    typed = re.fullmatch(r"((?:.*,)?)(?:(\d+)-)?(\d*)", incomplete)
    if typed is None:
        return []
    before, low, start = typed.groups()
    numbered = list(_numbered(line))
    if low is not None:
        found = _first(numbered[int(low) + 1 :], start)
        return [(f"{before}{low}-{number}", text) for number, text in found]
    words = [(f"{before}{number}", text) for number, text in _first(numbered, start)]
    first, last = int(start or 0), len(numbered) - 1
    if first < last:
        words.append((f"{before}{first}-{last}", f"{last - first + 1} records"))
    return words


def _first(numbered: Words, start: str) -> list[tuple[str, str]]:
    """Those whose number begins as `start`, as many as a terminal shows."""
    return list(itertools.islice((one for one in numbered if one[0].startswith(start)), MOST))


def _numbered(line: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The records of the store on the line by number, with what its indexes say of each. The store is left as
    it is: the journals of programs that died are for a command to seal. BadInputError for a URL, which would
    be asked for over the network at every key."""
    from gdnbench.store.address import is_url
    from gdnbench.store.batches import list_batches, list_segments
    from gdnbench.store.files import open_files
    from gdnbench.store.index import parse_index

    place = line.get("store")
    if not isinstance(place, str) or is_url(place):
        raise BadInputError("there is no local store on the line")
    number = itertools.count()
    with contextlib.closing(open_files(os.path.expanduser(place))) as files:
        for batch in list_batches(files, list(list_segments(files, [])), [], [], []):
            told = parse_index(batch.index, batch.count)
            texts = [""] * batch.count if told is None else map(_told, told)
            yield from ((str(next(number)), text) for text in texts)


def _told(entry: IndexEntry) -> str:
    kind, step, _ = entry
    return printable(f"{kind.op} {kind.layer} step {step}")


COMPLETERS: Mapping[str, Callable[[Mapping[str, Any], str], Words]] = {
    "op": _operations,
    "kernel": _kernels,
    "against": _against,
    "store": _stores,
    "stores": _stores,
    "runs": _stores,
    "a": _stores,
    "b": _stores,
    "record": _record,
    "records": _records,
    "on": lambda line, incomplete: DEVICES,
    "machine": lambda line, incomplete: MACHINES,
}
