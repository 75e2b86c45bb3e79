# SPDX-License-Identifier: Apache-2.0
"""Completion through the protocol of a shell: it asks by environment variables and reads stdout."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdnbench.cli import completion
from gdnbench.cli.completion import MACHINES, MOST
from gdnbench.cli.main import COMPLETING
from gdnbench.kernel_names import kernel_names, operation_names
from gdnbench.ops import operations
from gdnbench.sim.virtual import machine_named
from gdnbench.store import batches
from gdnbench.store.batches import BatchInfo, SegmentInfo

Invoke = Callable[..., Any]  # the fixture `gdnbench`
Complete = Callable[..., list[str]]


@pytest.fixture
def complete(gdnbench: Invoke, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """`complete("gdnbench ls ", "zsh")` -> the lines that the shell gets for a line that ends there."""

    def ask(line: str, shell: str = "bash") -> list[str]:
        monkeypatch.setitem(sys.modules, "rich", sys.modules.get("rich"))  # which completing leaves out
        monkeypatch.setenv(COMPLETING, f"complete_{shell}")
        monkeypatch.setenv("COMP_WORDS", line.replace(" ", "\n"))
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        answer = gdnbench()
        assert (answer.code, answer.err) == (0, "")
        return [line for line in answer.out.splitlines() if line]

    return ask


def test_commands_and_options(complete: Complete) -> None:
    assert complete("gdnbench re") == ["replay", "report"]
    assert complete("gdnbench bisect co") == ["commit"]
    assert complete("gdnbench help bisect co") == ["commit"]
    assert complete("gdnbench replay --wr") == ["--write-accept", "--write-baseline"]
    assert "--install-completion" in complete("gdnbench --")
    assert "--install-completion" not in complete("gdnbench bisect --")


def test_each_shell_gets_its_own_form(complete: Complete) -> None:
    assert complete("gdnbench do") == ["doctor"]
    assert complete("gdnbench do", "fish") == ["doctor\tSay what can run on this machine."]
    assert complete("gdnbench do", "zsh") == [
        """_arguments '*: :(("doctor":"Say what can run on this machine."))'"""
    ]


def test_kernels_and_operations(complete: Complete) -> None:
    """Those of the contracts, which completing does not import."""
    everything = {name for operation in operations().values() for name in operation.kernels}
    assert set(complete("gdnbench replay s --kernel ")) == everything
    assert set(complete("gdnbench replay s --against ")) == everything | {"recorded"}
    decode = complete("gdnbench replay s --op gdn_decode --kernel ")
    assert sorted(decode) == sorted(operations()["gdn_decode"].kernels)
    assert complete("gdnbench prove cu") == ["cute"]
    assert complete("gdnbench ls s --op ") == list(operations())
    assert complete("gdnbench replay s --op nope --kernel ") == []
    assert complete("gdnbench replay s --kernel mine.p") == []  # the shell completes the file


def test_names_are_those_of_the_contracts() -> None:
    assert operation_names() == list(operations())
    for name, operation in operations().items():
        assert kernel_names(name) == list(operation.kernels)


def test_devices_and_machines(complete: Complete) -> None:
    assert complete("gdnbench replay s --on ") == ["cpu", "cuda", "sim"]
    assert complete("gdnbench time s --machine h") == ["h200", "h100"]
    # No option on the line acts before the command runs: not the machine of a kernel, nor its packages.
    assert complete("gdnbench replay s --machine h200 --kernel-env /nowhere --on c") == ["cpu", "cuda"]
    for name, sms in MACHINES:
        assert f"{machine_named(name).device.multiprocessors} SMs" == sms


def test_stores_and_folders_that_hold_them(
    complete: Complete, prefills: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = prefills.parent
    (folder / "runs").mkdir()
    (folder / "runs" / "one.zip").touch()
    (folder / "runs" / "notes.txt").touch()
    (folder / "pre-empty").mkdir()
    monkeypatch.chdir(folder)
    assert complete("gdnbench ls ") == ["prefills.zarr", "runs/one.zip"]
    assert complete("gdnbench diff pre") == ["prefills.zarr"]
    assert complete("gdnbench diff prefills.zarr runs/o") == ["runs/one.zip"]
    assert complete(f"gdnbench show {folder}/pre") == [f"{prefills}"]
    assert complete("gdnbench ls nope/") == []
    assert complete("gdnbench ls s3://bucket/") == []


def test_records_of_the_store_on_the_line(complete: Complete, prefills: Path) -> None:
    assert complete(f"gdnbench replay {prefills} ") == ["0", "1", "0-1"]
    assert complete(f"gdnbench replay {prefills} 0-") == ["0-1"]
    assert complete(f"gdnbench replay --on cpu {prefills} 1,0") == ["1,0", "1,0-1"]
    assert complete(f"gdnbench show {prefills} ", "fish") == [
        "0\tgdn_prefill synth step 0",
        "1\tgdn_prefill synth step 1",
    ]
    assert complete(f"gdnbench replay {prefills} x") == []
    for no_store in ("nowhere.zarr", "s3://bucket/s.zarr"):
        assert complete(f"gdnbench replay {no_store} ") == []


def test_a_store_of_many_records_completes_as_many_as_a_terminal_shows(
    complete: Complete, prefills: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = BatchInfo(SegmentInfo("segment", {}, {}, None), "0", 0, 3000)
    monkeypatch.setattr(batches, "list_batches", lambda *arguments: iter([many]))
    assert len(complete(f"gdnbench show {prefills} ")) == MOST
    assert complete(f"gdnbench show {prefills} 2999") == ["2999"]


def test_no_name_or_text_of_others_is_run_by_a_shell(
    complete: Complete, tmp_path: Path, prefills: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """zsh evaluates its answer, where a backslash ahead of `$` would undo typer's escape of it; bash inserts
    words as they are, and runs them with the line."""
    run = r"\$(touch run)"
    folder = tmp_path / "names"
    folder.mkdir()
    for name in ("a b.zip", f"{run}.zip", "it's.zip", "*.zip", "line\nend.zip", "\x1b[31mred.zip"):
        (folder / name).touch()
    monkeypatch.chdir(folder)
    assert complete("gdnbench ls ") == [r"\\\$\(touch\ run\).zip", r"a\ b.zip", r"it\'s.zip"]
    assert complete("gdnbench ls 'a") == ["a b.zip"]
    assert complete("gdnbench ls '\\") == []
    assert complete("gdnbench ls ", "zsh") == ["""_arguments '*: :(("*.zip\"""", '"a b.zip"))\'']
    assert complete("gdnbench ls ~nobody-of-this-name/") == []
    monkeypatch.setattr(completion, "_told", lambda entry: f"layer {run}")
    (answer,) = complete(f"gdnbench show {prefills} 1", "zsh")
    assert answer == r"""_arguments '*: :(("1":"layer /\$(touch run)"))'"""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shells_script_asks_by_this_protocol(
    gdnbench: Invoke, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setitem(sys.modules, "rich", sys.modules.get("rich"))
    monkeypatch.setenv(COMPLETING, f"source_{shell}")
    script = gdnbench()
    assert script.code == 0
    assert f"{COMPLETING}=complete_{shell}" in script.out


def test_bash_completes_a_line(tmp_path: Path, prefills: Path) -> None:
    """The script in a bash, which calls the program as it would for a key."""
    program = tmp_path / "gdnbench"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path[:0] = {sys.path!r}\n"
        "from gdnbench.cli.main import console_main\nsys.exit(console_main())\n"
    )
    program.chmod(0o755)
    keys = (
        f'PATH="{tmp_path}:$PATH"; source <({COMPLETING}=source_bash gdnbench)\n'
        f"COMP_WORDS=(gdnbench replay {prefills} 0,); COMP_CWORD=3; _gdnbench_completion gdnbench\n"
        'printf "%s\\n" "${COMPREPLY[@]}"; complete -p gdnbench'
    )
    shell = subprocess.run(["bash", "--norc", "-c", keys], capture_output=True, text=True, check=False)
    assert (shell.returncode, shell.stderr) == (0, "")
    *completions, registered = shell.stdout.splitlines()
    assert completions == ["0,0", "0,1", "0,0-1"]
    assert re.fullmatch(r"complete .*-F _gdnbench_completion gdnbench", registered)
