# SPDX-License-Identifier: Apache-2.0
"""Suites that are right, and the ways to get one wrong: one line that names file, table and key."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from gdnbench.errors import BadInputError
from gdnbench.suite.folder import suite_at
from gdnbench.suite.plan import FACTOR, TensorRule
from gdnbench.suite.read import read_suite, restrict_to_entries
from tests.messages import wording

Write = Callable[[str], Path]

ENTRY = '[[replay]]\ncaptures = "both.zarr"\nkernels = "torch"\n'

WHOLE = """
baselines = "accepted.json"
factor = 2
[defaults]
timeout = 7
k = 3
[[replay]]
captures = ["*.zarr"]
kernels = ["torch", "sm100"]
on = ["cpu", "sim"]
[[replay]]
name = "slow one"
captures = "decode.zarr"
kernels = "kernels/mine.py:f"
tol = 1e-3
factor = 1.25
records = [0]
tensors = { o = { bitwise = true }, "gdn_decode.state" = { k = 4 } }
[[known]]
entry = "slow*"
record = "0"
reason = "why"
until = 2027-01-31
link = "https://x"
"""


def test_a_table_is_an_entry_for_each_capture_kernel_and_place(suite_file: Write, folder: Path) -> None:
    suite = read_suite(suite_file(WHOLE))
    assert [entry.name for entry in suite.entries] == [
        f"{capture}.{kernel}.{on}"
        for capture in ("both", "decode")
        for kernel in ("torch", "sm100")
        for on in ("cpu", "sim")
    ] + ["slow-one.decode.kernels-mine-py-f.cpu"]
    first, last = suite.entries[0], suite.entries[-1]
    assert first.key == ("both.zarr", "torch", "cpu")
    assert (first.options.rule, first.options.timeout, first.options.factor) == (TensorRule(k=3.0), 7.0, 2.0)
    # A rule of its own takes the place of the default one; the file is looked for from the suite's folder.
    assert last.options.rule == TensorRule(tol=(1e-3, 0.0))
    assert Path(last.kernel.removesuffix(":f")).resolve() == folder / "kernels/mine.py"
    assert last.written == "kernels/mine.py:f"
    assert last.options.rule_of("gdn_decode", "state") == TensorRule(k=4.0)
    assert last.options.rule_of("gdn_prefill", "state") == TensorRule(tol=(1e-3, 0.0))
    assert last.options.rule_of("gdn_prefill", "o").bitwise
    assert (last.options.records, last.options.factor) == ((0,), 1.25)
    assert suite.known[0].until == date(2027, 1, 31)
    assert suite.baselines == folder / "accepted.json"


def test_only_captures_with_the_operation_are_taken(suite_file: Write) -> None:
    table = '[[replay]]\ncaptures = "*.zarr"\nkernels = "torch"\nop = "gdn_prefill"\n'
    assert [entry.name for entry in read_suite(suite_file(table)).entries] == ["both.torch.cpu"]


def test_captures_of_one_name_are_told_apart_by_their_folders(
    suite_file: Write, folder: Path, make: type
) -> None:
    for name in ("a", "b"):
        (folder / name).mkdir()
        make.write_capture(folder / name / "run.zarr", "gdn_decode")
    suite = read_suite(suite_file('[[replay]]\ncaptures = "?/run.zarr"\nkernels = "torch"\n'))
    assert [entry.name for entry in suite.entries] == ["a-run.torch.cpu", "b-run.torch.cpu"]


def test_the_factor_is_the_documented_one(suite_file: Write) -> None:
    assert read_suite(suite_file(ENTRY)).entries[0].options.factor == FACTOR


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", wording("suite.replays-nothing")),
        ("[[replay]\n", wording("suite.not-toml")),
        ("suite = 1\n", wording("suite.key-unknown", key="suite", known="baselines")),
        ("replay = 3\n", "replay must be tables"),
        (
            "factor = 0.5\n" + ENTRY,
            wording("suite.value-wrong", key="factor", wanted="a number of at least 1", value="0.5"),
        ),
        (
            "factor = inf\n" + ENTRY,
            wording("suite.value-wrong", key="factor", wanted="a number of at least 1", value="inf"),
        ),
        (
            "factor = true\n" + ENTRY,
            wording("suite.value-wrong", key="factor", wanted="a number of at least 1", value="True"),
        ),
        ("[defaults]\nname = 'x'\n" + ENTRY, wording("suite.key-unknown", where="[defaults]", key="name")),
        (
            "[defaults]\ntimeout = 'long'\n" + ENTRY,
            wording("timing.seconds-wrong", name="[defaults]:", value="timeout"),
        ),
        (ENTRY + "captrues = 1\n", r"\[\[replay\]\] 1 has a key 'captrues'"),
        ('[[replay]]\nkernels = "torch"\n', r"\[\[replay\]\] 1 has no captures"),
        ('[[replay]]\ncaptures = "both.zarr"\n', r"\[\[replay\]\] 1 has no kernels"),
        (
            '[[replay]]\ncaptures = "none*"\nkernels = "torch"\n',
            wording("suite.captures-missing", pattern="none*"),
        ),
        ('[[replay]]\ncaptures = "suite.toml"\nkernels = "torch"\n', r"\[\[replay\]\] 1: captures: "),
        ('[[replay]]\ncaptures = 3\nkernels = "torch"\n', "captures must be a path or pattern"),
        ('[[replay]]\ncaptures = []\nkernels = "torch"\n', "captures must be a path or pattern"),
        ('[[replay]]\ncaptures = "both.zarr"\nkernels = "tosch"\n', "kernels: kernel 'tosch' is not known"),
        (
            '[[replay]]\ncaptures = "both.zarr"\nkernels = "recorded"\n',
            "kernels: kernel 'recorded' is not known",
        ),
        (ENTRY + 'against = "nobody"\n', "against: kernel 'nobody' is not known"),
        (ENTRY + 'on = "tpu"\n', "on must be one of cpu, cuda, sim"),
        (ENTRY + 'op = "gdn"\n', "op 'gdn' is none of conv_decode"),
        (ENTRY + 'op = "swa_decode"\n', wording("suite.captures-without-op", operation="swa_decode")),
        (
            ENTRY + "records = [2]\n",
            wording("suite.record-missing", store=re.compile(r".*both\.zarr"), number=2, count=2),
        ),
        (ENTRY + "records = [0, 0]\n", "records must be a list of different record numbers"),
        (ENTRY + "records = [-1]\n", "records must be"),
        (ENTRY + 'records = "0-1"\n', "records must be"),
        (
            ENTRY + "k = nan\n",
            wording("suite.value-wrong", key="k", wanted="a number of 0 or more", value="nan"),
        ),
        (
            ENTRY + f"k = {10**400}\n",
            wording("suite.value-wrong", key="k", wanted="a number of 0 or more", value=1000),
        ),
        (
            f"factor = {10**400}\n" + ENTRY,
            wording("suite.value-wrong", key="factor", wanted="a number of at least 1", value=1000),
        ),
        (ENTRY + f"k = {'9' * 5000}\n", "is not TOML: Exceeds the limit"),
        (
            ENTRY + f'name = "{"a" * 250}"\n',
            wording("suite.entry-name-long", length=265, name=re.compile("aaa+")),
        ),
        (ENTRY + "k = -1\n", wording("suite.value-wrong", key="k", wanted="a number of 0 or more", value=-1)),
        (ENTRY + "tol = [1, 2, 3]\n", r"tol must be ABS or \[ABS, REL\]"),
        (ENTRY + "k = 2\nbitwise = true\n", wording("suite.rules-two", rules="k and bitwise")),
        (ENTRY + "tensors = { q = { k = 2 } }\n", "tensors: rule of 'q': no such output or stage"),
        (ENTRY + "tensors = { o = 2 }\n", wording("suite.rule-wrong", place="tensors.o")),
        (ENTRY + "tensors = { o = { kk = 2 } }\n", wording("suite.key-unknown", where="tensors.o", key="kk")),
        (ENTRY + "check = true\n", "check is done by the simulator"),
        (ENTRY + 'on = "sim"\naccept = "x.toml"\n', "write check = true too"),
        (ENTRY + 'stages = true\nagainst = "recorded"\n', wording("suite.stages-not-recorded")),
        (
            ENTRY + "timeout = 0\n",
            wording("suite.value-wrong", key="timeout", wanted="a number of seconds above 0", value=0),
        ),
        (ENTRY + "timeout = 1\nisolate = false\n", wording("suite.timeout-unisolated")),
        (ENTRY + "sms = 4\n", wording("suite.machine-not-simulated", on="cpu")),
        (ENTRY + 'on = "sim"\nsms = true\n', wording("suite.value-wrong", key="sms")),
        (ENTRY + 'on = "sim"\nmachine = "a100"\n', wording("suite.value-wrong", key="machine")),
        (ENTRY + 'name = "two\\nlines"\n', "name must be a text of one line"),
        (ENTRY + ENTRY, wording("suite.entry-twice", where="[[replay]] 2", name="both.torch.cpu")),
        (ENTRY + '[[known]]\nentry = "*"\nreason = "x"\n', r"\[\[known\]\] 1 has no until"),
        (
            ENTRY + '[[known]]\nentry = "*"\nuntil = 2027-01-01\n',
            wording("suite.known-incomplete", where="[[known]] 1", field="reason"),
        ),
        (ENTRY + '[[known]]\nreason = "x"\nuntil = 2027-01-01\n', r"\[\[known\]\] 1 has no entry"),
        (ENTRY + '[[known]]\nentry = "*"\nreason = " "\nuntil = 2027-01-01\n', "reason must be a text"),
        (
            ENTRY + '[[known]]\nentry = "*"\nreason = "x"\nuntil = "2027-01-01"\n',
            "until must be the last day",
        ),
        (
            ENTRY + '[[known]]\nentry = "*"\nreason = "x"\nuntil = 2027-01-01T00:00:00Z\n',
            "until must be the last day",
        ),
        (
            ENTRY + '[[known]]\nentry = "other*"\nreason = "x"\nuntil = 2027-01-01\n',
            wording("suite.entry-unmatched", pattern="other*", known="both.torch.cpu"),
        ),
        (
            ENTRY + '[[known]]\nentry = "*"\nreason = "x"\noutcome = "pass"\nuntil = 2027-01-01\n',
            "outcome must be one of numeric mismatch",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(suite_file: Write, text: str, says: str) -> None:
    path = suite_file(text)
    with pytest.raises(BadInputError) as refused:
        read_suite(path)
    message = str(refused.value)
    assert re.search(says, message)
    assert message.startswith(str(path))
    assert "\n" not in message


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=wording("file.unreadable", reason="No such file")):
        read_suite(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInputError, match=wording("suite.not-toml")):
        read_suite(tmp_path / "bytes.toml")
    (tmp_path / "deep.toml").write_text("a = " + "[" * 5000)
    with pytest.raises(BadInputError, match=wording("suite.not-toml")):
        read_suite(tmp_path / "deep.toml")


def test_names_of_entries_are_names_of_files(suite_file: Write) -> None:
    table = ENTRY.replace("torch", "../../../etc/x.py:f") + 'name = "../../up"\n'
    name = read_suite(suite_file(table)).entries[0].name
    assert "/" not in name
    assert ".." not in name
    name = read_suite(suite_file(ENTRY + 'name = "é/"\n')).entries[0].name
    assert name == "_.both.torch.cpu"  # no hidden file


def test_entries_are_picked_by_pattern(suite_file: Write) -> None:
    suite = read_suite(suite_file('[[replay]]\ncaptures = "*.zarr"\nkernels = "torch"\n'))
    assert [entry.name for entry in restrict_to_entries(suite, "dec*").entries] == ["decode.torch.cpu"]
    with pytest.raises(
        BadInputError,
        match=wording("suite.option-entry-unmatched", pattern="x", known=re.compile(r"both\.torch\.cpu.*")),
    ):
        restrict_to_entries(suite, "x")


def test_a_folder_of_captures_is_a_suite(folder: Path) -> None:
    suite = suite_at(folder)
    found = {entry.name: (entry.options.op, entry.on) for entry in suite.entries}
    assert found["both.torch.cpu"] == (None, "cpu")
    assert {op for op, on in found.values() if on == "sim"} == {"gdn_prefill", "gdn_decode"}
    assert {entry.options.optional for entry in suite.entries if entry.on == "sim"} == {True}
    assert suite.baselines == folder / "baselines.json"
    (folder / "suite.toml").write_text(ENTRY)
    assert [entry.name for entry in suite_at(folder).entries] == ["both.torch.cpu"]


def test_a_folder_without_captures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=wording("suite.nothing-there", file="suite.toml")):
        suite_at(tmp_path)


MADE = """
[[record]]
name = "a"
op = "gdn_decode"
seed = 1
options = { batch = 2, heads = [1, 2], head_dim = [16, 16] }
[[record]]
name = "b"
op = "gdn_prefill"
seed = 2
sim = true
options = { seqlens = [5], heads = [1, 2], head_dim = [16, 16] }
"""


def test_made_records_are_an_entry_of_their_own(suite_file: Write, folder: Path) -> None:
    (folder / "made.toml").write_text(MADE)
    suite = read_suite(suite_file(ENTRY + 'made = "made.toml"\n'))
    assert [(entry.name, entry.made) for entry in suite.entries] == [
        ("both.torch.cpu", False),
        ("made.torch.cpu", True),
    ]
    (entry,) = read_suite(suite_file('[[replay]]\nmade = "made.toml"\nkernels = "torch"\n')).entries
    assert entry.key == ("made.toml", "torch", "cpu")


def test_made_records_that_are_wrong_end_the_suite(suite_file: Write, folder: Path) -> None:
    table = '[[replay]]\nmade = "made.toml"\nkernels = "torch"\n'
    with pytest.raises(BadInputError, match=r"made\.toml cannot be read"):
        read_suite(suite_file(table))
    (folder / "made.toml").write_text(MADE)
    with pytest.raises(BadInputError, match=wording("suite.made-without-op", operation="swa_decode")):
        read_suite(suite_file(table + 'op = "swa_decode"\n'))


def test_the_shipped_suite_of_checks_has_every_operation_on_the_simulator() -> None:
    suite = read_suite(Path(__file__).parents[2] / "suites/check.toml")
    assert {"made.torch.cpu", "prefill.made.sm100.sim", "decode.made.cute.sim", "swa.made.portable.sim"} <= {
        entry.name for entry in suite.entries if entry.made
    }
    assert any(not entry.made for entry in suite.entries)
