# SPDX-License-Identifier: Apache-2.0
"""What the instruction axis is made of: formats, ULPs and bounds, statements, what launches leave."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from gdnbench.bisect.instruction.edits import edits
from gdnbench.bisect.instruction.find import InstructionBisection, _question
from gdnbench.bisect.instruction.launches import OtherLaunches, differences
from gdnbench.bisect.instruction.version import place
from gdnbench.bisect.workers import Place
from gdnbench.diff.traces.alignment import Run, align
from gdnbench.diff.traces.rounding import decoded, excess, rounded_apart, ulp
from gdnbench.diff.traces.statements import Source, Statement, pair
from gdnbench.errors import BadInputError
from gdnbench.sim.value_trace import ARITHMETIC, Event, TracedInstruction, TracedRegister
from tests.messages import wording

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "f32x2", "f16x2", "bf16x2", "bf16x4"])
def test_registers_are_read_as_torch_reads_them(kind: str) -> None:
    name, _, count = kind.partition("x")
    numbers = torch.randn(32, int(count or 1), generator=torch.Generator().manual_seed(0)).to(DTYPES[name])
    row = np.zeros((32, 8), np.uint8)
    data = numbers.view(torch.uint8).numpy().reshape(32, -1)
    row[:, : data.shape[1]] = data
    np.testing.assert_array_equal(decoded(row.view(np.uint64)[:, 0], kind), numbers.double().numpy())


@pytest.mark.parametrize("kind", DTYPES)
def test_an_ulp_is_the_way_to_the_next_number(kind: str) -> None:
    dtype = DTYPES[kind]
    values = torch.cat([torch.rand(64, generator=torch.Generator().manual_seed(1)) * 100, torch.zeros(1)])
    values = values.to(dtype)
    integers = torch.int32 if dtype is torch.float32 else torch.int16
    after = (values.view(integers) + 1).view(dtype)
    wanted = (after.double() - values.double()).numpy()
    np.testing.assert_array_equal(ulp(values.double().numpy(), kind)[:-1], wanted[:-1])


def test_a_lower_precision_is_not_granted_its_own_roundings() -> None:
    one = np.ones((32, 1))
    both = float(rounded_apart(one, ["f32"], ["f32"])[0, 0])
    assert both == 2**-23
    lower = float(rounded_apart(one, ["f32"], ["f32", "bf16"])[0, 0])
    assert lower == 1.5 * 2**-23
    same = float(rounded_apart(one, ["f32", "bf16"], ["bf16", "f32"])[0, 0])
    assert same == 2**-23 + 2**-7


def test_what_is_not_finite_differs_from_all_else() -> None:
    good, bad = np.ones((32, 1)), np.ones((32, 1))
    good[3], bad[3] = np.nan, np.nan
    good[4], bad[4] = np.inf, np.inf
    lanes = np.ones(32, np.bool_)
    assert excess(good, bad, np.ones((32, 1)), lanes) is None
    bad[7] = np.nan
    found = excess(good, bad, np.ones((32, 1)), lanes)
    assert found is not None
    assert found.lane == 7
    lanes[7] = False
    assert excess(good, bad, np.ones((32, 1)), lanes) is None


GOOD = '''
def scale(x):
    """Doc."""
    y = x * 2  # twice
    if y > 3:
        y = y - 1
    for i in range(4):
        y = (y +
             i)
    return y


class Other:
    def run(self):
        return 1
'''
BAD = """
class Other:
    # a comment
    def run(self):

        return 1


def scale(x):
    y = x*2
    if y > 3:
        y = y - 1.5
    z = 0
    for i in range(3):
        y = (y + i)
    return y
"""


def test_statements_are_known_by_what_they_say(tmp_path: Path) -> None:
    sources = []
    for name, text in (("good", GOOD), ("bad", BAD)):
        (tmp_path / f"{name}.py").write_text(text)
        sources.append(Source.of_files([str(tmp_path / f"{name}.py")]))
    good, bad = sources
    pairing = pair(good, bad)

    def at(source: Source, name: str, text: str, line: str) -> object:
        number = 1 + [one.strip() for one in text.splitlines()].index(line)
        return source.statement_at(str(tmp_path / f"{name}.py"), number)

    same = [("y = x*2", "y = x * 2  # twice"), ("y = (y + i)", "i)"), ("return 1", "return 1")]
    edited = [("y = y - 1.5", "y = y - 1"), ("for i in range(3):", "for i in range(4):")]
    for after, before in same + edited:
        statement = at(bad, "bad", BAD, after)
        assert pairing.of[statement] == at(good, "good", GOOD, before)  # type: ignore[index]
        assert (statement in pairing.edited) == ((after, before) in edited)
    assert at(bad, "bad", BAD, "z = 0") not in pairing.of


def test_launches_are_compared_where_either_version_wrote(tmp_path: Path) -> None:
    folders = (tmp_path / "good", tmp_path / "bad")
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    written = torch.ones_like(x, dtype=torch.bool)
    written[3] = False
    y = x.clone()
    y[3] += 1  # nobody's
    y[1, 2] += 2**-10
    for folder, values in zip(folders, (x, y), strict=True):
        folder.mkdir()
        torch.save({"z": (values, written)}, folder / "0.pt")
    launch = {"entry": "k", "grid": [1, 1, 1]}
    (found,) = differences([launch], [launch], folders, None)
    assert (found.tensor, found.place, found.beyond) == ("z", (1, 2), True)
    (found,) = differences([launch], [launch], folders, (2**-9, 0.0))
    assert not found.beyond
    with pytest.raises(OtherLaunches, match=wording("bisect.launches-differ", good=1, bad=2)):
        list(differences([launch], [launch, launch], folders, None))
    other = {"entry": "k", "grid": [2, 1, 1]}
    with pytest.raises(OtherLaunches, match=r"grid \(2, 1, 1\)"):
        list(differences([launch], [other], folders, None))


def test_edits_are_those_of_the_whole_package(tmp_path: Path) -> None:
    """Of which one file was imported: the others stand in what was compiled before."""
    text = {"__init__.py": "", "kernel.py": "def kernel(x):\n    return helper(x)\n"}
    helper = "A = 1\n\n\ndef helper(x):\n    # says why\n    return A * x + 1\n"
    for side, other in (
        ("good", helper),
        ("bad", helper.replace("says why", "else").replace("x + 1", "x - 1")),
    ):
        folder = tmp_path / side / "package" / "below"
        folder.mkdir(parents=True)
        for name, lines in text.items():
            (folder.parent / name).write_text(lines)
        (folder / "__init__.py").write_text("")
        (folder / "helpers.py").write_text(other)
    shared = str(Path(__file__))
    files = [[str(tmp_path / side / "package" / "kernel.py"), shared] for side in ("good", "bad")]
    (found,) = edits(*files)
    assert (found.how, Path(found.file).name, found.line) == ("edited", "helpers.py", 6)
    assert (found.function, found.text) == ("helper", "return A * x - 1")
    assert edits(files[0], files[0]) == []


def test_statements_that_came_and_went_are_edits(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("def f(x):\n    first(x)\n    x = x * 2\n    return x\n")
    (tmp_path / "bad.py").write_text("def f(x):\n    first(x)\n    return x\n    last(x, x, x)\n")
    found = edits([str(tmp_path / "good.py")], [str(tmp_path / "bad.py")])
    assert [(one.how, one.line, one.text) for one in found] == [
        ("added", 4, "last(x, x, x)"),
        ("removed", 3, "x = x * 2"),
    ]


def test_an_instruction_of_other_registers_is_no_counterpart() -> None:
    """A move to one register and one that takes it apart have one name."""

    def run(registers: int) -> Run:
        formats = tuple(TracedRegister(index, f"%r{index}", 32, "f32") for index in range(registers))
        ins = TracedInstruction(
            0, "mov.b64", ARITHMETIC, 1, "mov.b64 ...;", "file.py", 1, formats, (), (), recorded=True
        )
        event = Event(0, 0, 0, 0, 1, np.full((registers, 32), registers, np.uint64))
        site = Statement("file.py", "", 1, 1, "")
        return Run((ins,), [event], Source(), [site], [()], [()], {}, True)

    assert align(run(1), run(1)).partner == [0]
    assert align(run(1), run(2)).partner == [None]


def test_a_version_is_known_by_the_modules_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdnbench.bisect.trial.question_without_code", lambda trial: {})
    request = InstructionBisection("run.zarr", 0, "kernel:f", "kernel:f", (tmp_path, tmp_path))
    (tmp_path / "kernel.py").write_text("from helper import f\n")
    (tmp_path / "helper.py").write_text("def f(): ...\n")
    before = _question(request, "kernel:f", tmp_path)
    assert _question(request, "kernel:f", tmp_path) == before
    (tmp_path / "helper.py").write_text("def f(): return 1\n")
    assert _question(request, "kernel:f", tmp_path) != before
    with pytest.raises(BadInputError, match=wording("bisect.module-missing", package="other")):
        _question(request, "other:f", tmp_path)


def test_a_folder_comes_before_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/one")
    assert place(Path("/two")) == Place(folder="/two", environment={"PYTHONPATH": f"/two{os.pathsep}/one"})
    assert place(None) == Place()
