"""What a command imports before it runs. Imports are most of a short command's time, and can be asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

STORE = str(Path(__file__).parents[2] / "captures" / "decode.zarr.zip")
HEAVY = ("torch", "llvmlite", "zarr", "rich", "pydantic", "numpy", "gdnbench.ops")
LIGHT = ("torch", "llvmlite", "zarr", "rich", "gdnbench.ops")
"""Of a command with arguments, which typer converts by pydantic, or that reads a store, as NumPy does."""

SHOW = ("torch", "llvmlite", "rich", "gdnbench.ops")  # it reads elements, those of an archive by zarr

# One process runs them one after the other, so that what one imports is there for the next: lightest first.
STEPS: tuple[tuple[list[str], str, tuple[str, ...]], ...] = (
    (["--version"], "", HEAVY),
    (["--help"], "", HEAVY),
    (["replay", "--help"], "", HEAVY),
    ([], "gdnbench ", HEAVY),
    ([], "gdnbench replay --", HEAVY),
    ([], f"gdnbench replay {STORE} --kernel ", HEAVY),
    ([], f"gdnbench replay {STORE} ", HEAVY),
    (["help", "bisect", "commit"], "", LIGHT),
    (["ls", STORE], "", LIGHT),
    (["show", STORE, "0"], "", SHOW),
)
RUN = """
import contextlib, io, json, os, sys
from gdnbench.cli.main import COMPLETING, console_main
found = []
for words, line, heavy in json.loads(sys.argv[1]):
    sys.argv = ["gdnbench", *words]
    if line:
        os.environ |= {COMPLETING: "complete_zsh", "_TYPER_COMPLETE_ARGS": line}
    else:
        os.environ.pop(COMPLETING, None)
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        console_main()
    found.append([[name for name in heavy if sys.modules.get(name)], len(out.getvalue().splitlines())])
print(json.dumps(found))
"""


def test_short_commands_import_nothing_heavy() -> None:
    command = [sys.executable, "-c", RUN, json.dumps(STEPS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names = [" ".join(words) or line for words, line, _ in STEPS]
    found = dict(zip(names, json.loads(done.stdout), strict=True))
    assert {name: heavy for name, (heavy, _) in found.items() if heavy} == {}
    assert {name: lines for name, (_, lines) in found.items() if lines == 0} == {}
    assert found[f"show {STORE} 0"][1] > 10  # it ran
