# SPDX-License-Identifier: Apache-2.0
"""One store whose texts and path would take over a terminal: every command prints them as escapes, or not at
all, and half of a surrogate pair is no traceback."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdnbench.cli.console import print_json, print_line, print_wide
from gdnbench.printable import printable, printable_lines
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from tests.subset import quick

Invoke = Callable[..., Any]  # the fixture `gdnbench`

BAD = (
    *("\x1b[2J", "\x1b]0;title\x07", "\a", "\b", "\r", "\n", "\x7f", "\x9b31m"),
    *("\u202a", "\u202b", "\u202c", "\u202d", "\u202e", "\u2066", "\u2067", "\u2068", "\u2069", "\u200b"),
    *("\ud800", "\udcff", "\u2028", "\x85"),
)
TEXT = "x".join(BAD) + "\n0 regressions\nend"
ARGUMENT = TEXT.replace("\ud800", "")
"""An argument of a command: of surrogates it has those alone that stand for bytes."""

NAME = "s\x1b[31m\a\u202e\u2066\udcff"  # as a folder: its last character is the byte 0xff
OPTIONS: dict[str, Any] = {"batch": 1, "heads": (1, 2), "head_dim": (8, 8), "slots": 2}
WRONG = "def kernel(q, k, v, g, beta, state, state_indices, o):\n    o.copy_(v)\n"


def is_shown_safely(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two decode records; the current folder is the one that holds the store."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / NAME
    # States that are not zero at position 0: a break, with the name of its request.
    claims = {"requests": [TEXT, f"{TEXT}2"], "positions": [0, 0]}
    told = {"note": TEXT, TEXT: [TEXT, {TEXT: TEXT}], "trigger": TEXT, "lineage": claims}
    process = {"host": TEXT, TEXT: TEXT, "parallel": {TEXT: [0, 2]}, "rank": 0, "world_size": 2}
    with StoreWriter(
        path, kind="synth", segment="seg", durable=False, process=process, provenance={"git": told}
    ) as out:
        drafts = []
        for index in range(2):
            made = draft("gdn_decode", synthesise("gdn_decode", **OPTIONS, seed=index), index=index)
            drafts.append(replace(made, info=replace(made.info, layer=TEXT, target=TEXT, dispatch=told)))
        out.write("0", drafts)
    (tmp_path / "wrong.py").write_text(WRONG)
    return path


COMMANDS: dict[str, Callable[[Path], list[tuple[object, ...]]]] = {
    "ls": lambda s: [("ls", s), ("ls", s, "--json"), ("ls", s, "--layer", ARGUMENT.replace("[", "[[]"))],
    "show": lambda s: [("show", s, 0), ("show", s, 0, "--json"), ("show", s, 9)],
    "verify": lambda s: [("verify", s), ("verify", s, "--json")],
    "prune": lambda s: [
        ("prune", s, "--max-records", 1),
        ("prune", s, "--layer", ARGUMENT, "--keep", ARGUMENT),
    ],
    "merge": lambda s: [("merge", f"{s}.out", s), ("merge", s, s)],
    "share": lambda s: [
        ("share", s, f"{s}.copy", "--kernel", "wrong.py:kernel"),
        ("share", s, f"{s}.json", "--json"),
    ],
    "replay": lambda s: [
        ("replay", s, "--no-isolate", "--kernel", "wrong.py:kernel", "--junit", f"{s}.xml", "--heatmap"),
        ("replay", s, "--against", "recorded", "--json"),
        ("replay", s, "--kernel", f"{ARGUMENT}:f"),
        ("replay", f"{s}.absent"),
    ],
    "diff": lambda s: [
        ("diff", s, s, "--heatmap", "--junit", f"{s}.xml"),
        ("diff", s, s.parent / "wrong.py"),
    ],
    "time": lambda s: [
        ("time", s, 0, "--kernel", "wrong.py:kernel", "--seconds", "0.1"),
        ("time", s, 0, "--kernel", "wrong.py:kernel", "--seconds", "0.1", "--csv"),
    ],
    "report": lambda s: [
        ("replay", s, "--save", f"{s}.run", "--stages"),
        ("report", f"{s}.run", "-o", f"{s}.html", "--title", ARGUMENT),
        ("ls", f"{s}.run"),
        ("show", f"{s}.run", 0),
        ("diff", s, f"{s}.run"),
    ],
    "suite": lambda s: [
        ("suite", s.parent, "-o", f"{s}.results"),
        ("baseline", "show", s.parent),
        ("suite", f"{s}.toml"),
    ],
    "bisect": lambda s: [
        ("bisect", "record", s, "--kernel", "wrong.py:kernel", "--state", f"{s}.state"),
        ("bisect", "record", s, "--kernel", "wrong.py:kernel", "--layer", ARGUMENT),
        ("bisect", "stage", s, "--kernel", "wrong.py:kernel"),
    ],
    "explore": lambda s: [("explore", s, "--kernel", "wrong.py:kernel", "--schedules", 1, "--shapes", 0)],
    "trace": lambda s: [("trace", s, f"{s}.trace", "0", "--kernel", "wrong.py:kernel")],
    "upload": lambda s: [("upload", s, ARGUMENT), ("upload", s), ("upload", s, f"s3://{ARGUMENT}/run.zarr")],
    "capture": lambda s: [
        ("capture", f"{s}.new", "--", "true"),
        ("capture", s, "--layer", ARGUMENT, "--", ARGUMENT),
    ],
    "lineage": lambda s: [
        ("lineage", s, "--junit", f"{s}.xml"),
        ("lineage", s, "--json"),
        ("lineage", s, "--explain", ARGUMENT),
        ("report", "--lineage", s, "-o", f"{s}.html"),
    ],
    "synth": lambda s: [("synth", f"{s}.synth", "--op", "gdn_decode", "--batch", "1", "--head-dim", "8,8")],
}


@pytest.mark.every(2)
@pytest.mark.parametrize("name", quick(COMMANDS, *range(8), 9, 10, 12, 13, 14, 15, 16, 17))
def test_nothing_reaches_the_terminal(gdnbench: Invoke, hostile: Path, name: str) -> None:
    for arguments in COMMANDS[name](hostile):
        result = gdnbench(*arguments)
        assert is_shown_safely(result.out), result.out
        assert is_shown_safely(result.err), result.err
        assert "Traceback" not in result.err, result.err
        assert "\n0 regressions" not in result.out + result.err
        assert result.code in (0, 1, 2, 3)


def test_damage_is_named_in_escapes(gdnbench: Invoke, hostile: Path) -> None:
    with Store.open(hostile) as store:
        array = hostile / store.records[0].before["q"].location.array
    shutil.rmtree(array / "c")
    (hostile / ".journal" / "\x1b[2J\udcff").mkdir(parents=True)
    (hostile / ".incoming" / "seg" / "\x1b[2J").mkdir(parents=True)
    for command in (("verify", hostile), ("show", hostile, 0), ("replay", hostile), ("ls", hostile)):
        result = gdnbench(*command)
        assert is_shown_safely(result.out), result.out
        assert is_shown_safely(result.err), result.err
        assert "Traceback" not in result.err, result.err
    assert "\\x1b[31m\\x07\\u202e\\u2066\\udcff" in gdnbench("show", hostile, 0).err


def test_what_is_printable() -> None:
    assert is_shown_safely(printable(TEXT))
    assert printable("é λ ─ 漢") == "é λ ─ 漢"
    assert printable_lines("a\x1b\nb\u202e") == "a\\x1b\nb\\u202e"


def test_printing(capsys: pytest.CaptureFixture[str]) -> None:
    print_line(TEXT)
    print_wide(TEXT)
    print_json({TEXT: TEXT})
    assert is_shown_safely(capsys.readouterr().out)


ROOT = Path(__file__).resolve().parents[2]
PRINTING = {"print", "typer.echo", "sys.stderr.write", "sys.stdout.write", "self._stream.write"}
SAFE = {"printable", "printable_lines", "shown", "table", "json.dumps", "describe_options", "human_bytes"}
"""Calls whose text does nothing to a terminal: escapes, numbers, or text of this package."""
KNOWN = {
    "bisect/input/reproduction.py: f\"the process ended by {(f'signal {-ended}'": "numbers",
    "bisect/input/reproduction.py: f'no answer within {seconds:g} s'": "a number",
    "bisect/input/reproduction.py: f'{name}: RMS error {rms:.3g}, largest {large": "a name in the contract",
    "capture/bootstrap.py: f'gdnbench: capture is off: {message}\\n'": "the message is printable",
    "capture/progress.py: f'\\r\\x1b[Kgdnbench: {progress.records} record": "numbers",
    "cli/baseline.py: f'and {len(changes) - SHOWN} more; `gdnbench ": "a number",
    "cli/console.py: shown_line(": "escapes, but for the colours of this package on a terminal",
    "cli/console.py: text.replace('\\x7f', '\\\\u007f')": "JSON, in ASCII",
    "cli/groups.py: ctx.get_help()": "docstrings and options of this package",
    "cli/help.py: explained.get_help()": "docstrings and options of this package",
    "cli/lineage.py: f'... and {len(lines) - MOST_LINES} more; --json": "a number",
    "cli/main.py: f\"gdnbench: {'; '.join(filter(None, lines))}\"": "the lines are printable",
    "cli/main.py: f'gdnbench {__version__}'": "the version",
    "cli/progress.py: CLEAR": "an escape of this package",
    "cli/progress.py: f'{CLEAR}{_encodable(text": "an escape of this package, and printable text",
    "cli/prune.py: f\"dropped {counted(found.records, 'record')}, ": "numbers",
    "cli/prune.py: f'would drop {what}; --yes does it'": "numbers",
    "cli/suite.py: f'\\n{title}:'": "a title of this package",
    "cli/tracing.py: f'{found.recorded:,} events of {launches} in ": "numbers",
    "cli/verify.py: f'{what}, {human_bytes(report.bytes)} checked": "numbers",
    "distributed/replay.py: f'gdnbench: workers died; {records} tried ag": "a number",
    "sim/machine/driver_calls.py: f'{cta.launch.kernel.name}, {line}\\n'": "a name in PTX, printable text",
    "sim/host/runtime.py: f'CUDA error: {_error(status)}'": "a name of this package and a number",
    "sim/virtual/bootstrap.py: f'gdnbench: {text}\\n'": "an error of this package",
    "sim/virtual/c_functions.py: f'gdnbench: {text}\\n'": "names and values of the program that runs",
    "sim/virtual/triton_autotune.py: note": "names and values of the program that runs",
}
"""What is printed and not made safe in the same place: file and the beginning of the expression, and why it
may."""


def _dotted(node: ast.expr) -> str | None:
    """ "a.b.c" of a name or an attribute of one; `ast.unparse` of every call would take most of the test."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else None


def _is_safe(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.JoinedStr):
        return all(_is_safe(one.value if isinstance(one, ast.FormattedValue) else one) for one in node.values)
    if isinstance(node, ast.IfExp):
        return _is_safe(node.body) and _is_safe(node.orelse)
    return isinstance(node, ast.Call) and _dotted(node.func) in SAFE


def test_every_print_is_safe_or_known() -> None:
    """Others go through `print_line`, `print_lines`, `print_note`, `print_wide` and `print_json`."""
    found = set()
    for path in sorted((ROOT / "gdnbench").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not any(f"{name}(" in text for name in PRINTING):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and _dotted(node.func) in PRINTING:
                file = path.relative_to(ROOT / "gdnbench")
                found |= {f"{file}: {ast.unparse(one)}" for one in node.args if not _is_safe(one)}
    assert [one for one in sorted(found) if not one.startswith(tuple(KNOWN))] == []
    assert [known for known in KNOWN if not any(one.startswith(known) for one in found)] == []


def test_a_simulation_prints_escapes(gdnbench: Invoke, tmp_path: Path) -> None:
    """The PTX of a kernel names the files that it was compiled from, in whatever characters."""
    pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")
    ptx = (
        ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k() {\n.loc 1 7 0\n"
        'bar.sync 1, 64; // \x1b[2J\u202e\nret;\n}\n.file 1 "\x1b]0;title\x07"\n'
    )
    (tmp_path / "hostile.py").write_text(
        "from gdnbench.sim.run import run_ptx\n"
        f"def hostile():\n    run_ptx({ptx!r}, 'k', (1, 1, 1), (32, 1, 1), [], engine='interpreter')\n"
    )
    result = gdnbench("sim", f"{tmp_path / 'hostile.py'}:hostile")
    assert result.code == 1
    assert is_shown_safely(result.out + result.err)
    assert "\\x1b[2J" in result.err
