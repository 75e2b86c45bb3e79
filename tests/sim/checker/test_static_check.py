# SPDX-License-Identifier: Apache-2.0
"""What `scripts/compare_sentryward.py` passes to SentryWard, and how it reads the answer.

Expected inputs and answers are written by hand after SentryWard's documentation of both (sentryward 0.1.1,
docs/input-json.md and docs/output-json.md).
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdnbench.errors import BadInputError
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.host.encode_tiled import encode
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.mutants.launches import KeptLaunch, Tensor
from gdnbench.sim.ptx.parser import parse
from tests.sim.static_check import comparing, launch_input, sentryward

BF16 = 10  # as the hardware numbers it
SWIZZLE_64B = 2

PTX = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry scaled(
	.param .align 64 .b8 scaled_param_0[128],
	.param .align 8 .b8 scaled_param_1[16],
	.param .f32 scaled_param_2,
	.param .align 8 .b8 scaled_param_3[8]
)
{
	.reg .b32 %r<4>;
	.reg .b64 %rd<3>;
	ld.param.b64 %rd1, [scaled_param_1];
	ld.param.v2.b32 {%r1, %r2}, [scaled_param_1+8];
	ld.param.b32 %r3, [scaled_param_2];
	ld.param.b64 %rd2, [scaled_param_3];
	ret;
}
"""


X, LENGTHS = 0x10000, 0x20000
TABLE = b"".join(value.to_bytes(4, "little", signed=True) for value in (0, 3, -1))


def launch(pointer: int = X) -> KeptLaunch:
    """Two tensors: x, which a tensor map describes from its byte 256 on, and a table of three words."""
    tensor_map = encode(BF16, X + 256, (40, 12), (96,), (32, 8), (1, 1), SWIZZLE_64B)
    scalars = pointer.to_bytes(8, "little") + (7).to_bytes(4, "little") + (2**32 - 1).to_bytes(4, "little")
    params = (tensor_map, scalars, b"\x00\x00\xc0\x3f", LENGTHS.to_bytes(8, "little"))
    request = LaunchRequest(PTX, "scaled", (2, 1, 1), (96, 1, 1), (1, 1, 1), 1024, params, None, 0)
    tensors = (Tensor(X, "x", b"\x7f" * 4096, None), Tensor(LENGTHS, "lengths", TABLE, None))
    return KeptLaunch(parse(PTX), request, tensors)


def test_the_launch_as_json() -> None:
    kept = launch()
    found = launch_input.launch_input(kept, [tensor.before for tensor in kept.tensors])
    assert found == {
        "schema": "spverify.kernel-input/v1",
        "entry": "scaled",
        "launch": {"grid_dim": [2, 1, 1], "block_dim": [96, 1, 1], "dynamic_shared_bytes": 1024},
        "declarations": [
            {"parameter": 0, "type": "tensor_map", "object": "x.0"},
            {"parameter": 1, "offset": 0, "type": "pointer", "space": "global", "object": "x.0"},
            {"parameter": 3, "offset": 0, "type": "pointer", "space": "global", "object": "lengths.1"},
        ],
        "arguments": [
            {"parameter": 1, "offset": 8, "type": "u32", "value": 7},
            {"parameter": 1, "offset": 12, "type": "u32", "value": 2**32 - 1},
            {"parameter": 2, "offset": 0, "type": "f32", "value": 1.5},
        ],
        "shape_arrays": [{"parameter": 3, "offset": 0, "element_type": "u32", "shapes": [[0, 3, 2**32 - 1]]}],
        "tma_descriptors": [
            {
                "parameter": 0,
                "object": "x.0",
                "base_byte_offset": 256,
                "element_type": "bf16",
                "rank": 2,
                "global_shape": [40, 12],
                "box_shape": [32, 8],
                "coordinate_strides_bytes": [2, 96],
                "element_strides": [1, 1],
                "swizzle": "64B",
                "interleave": "none",
                "oob_fill": "zero",
            }
        ],
    }


def test_what_the_kernel_writes_is_no_table() -> None:
    kept = launch()
    written = [kept.tensors[0].before, b"\x05" + TABLE[1:]]
    assert launch_input.launch_input(kept, written)["shape_arrays"] == []


def test_a_pointer_into_a_tensor_is_refused() -> None:
    kept = launch(pointer=X + 16)
    with pytest.raises(UnsupportedError, match="parameter 1 points into x"):
        launch_input.launch_input(kept, [tensor.before for tensor in kept.tensors])


def test_a_hint_goes_and_lines_stay() -> None:
    text = "a;\ntcgen05.mma.cta_group::1.kind::f16.collector::a::discard [%r1], %rd1;\nb;\n"
    plain = "a;\ntcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1;\nb;\n"
    assert launch_input.plain_ptx(text) == plain


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ("race_free", "clean"),
        ("verified", "clean"),
        ("not_wellsynced", "found"),
        ("potential_race", "found"),
        ("invalid_lifecycle", "found"),
        ("unsupported", "nothing"),
        ("invalid_input", "nothing"),
        ("timeout", "nothing"),
        ("memory_budget_exceeded", "nothing"),
        ("tool_failure", "nothing"),
    ],
)
def test_each_category_in_a_word(result: str, says: str) -> None:
    answer = sentryward.verdict(json.dumps({"result": result, "diagnostics": []}))
    assert (answer.says, answer.result, answer.why) == (says, result, "")


def test_the_first_diagnostic_is_why() -> None:
    diagnostics = [
        {
            "code": "control_predicate_not_static",
            "stage": "ptx_execution",
            "message": "control predicate is not statically determined",
            "details": {"location": {"file": "k.ptx", "line": 210}},
        },
        {"code": "other", "stage": "ptx_execution"},
    ]
    answer = sentryward.verdict(json.dumps({"result": "unsupported", "diagnostics": diagnostics}))
    assert answer.why == (
        "control_predicate_not_static at PTX line 210: control predicate is not statically determined"
    )


@pytest.mark.parametrize("output", ["", "Killed", "[]", '{"checks": {}}', "null"])
def test_what_is_no_answer_is_a_failure(output: str) -> None:
    answer = sentryward.verdict(output, "first\nno memory\n")
    assert (answer.says, answer.result, answer.why) == ("nothing", "tool_failure", "no memory")


def test_the_program_gets_both_files_and_its_limits(tmp_path: Path) -> None:
    program = tmp_path / "sentryward"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, sys\n"
        "ptx, flag, sizes, *limits = sys.argv[1:]\n"
        "same = open(ptx).read() == 'kernel' and json.load(open(sizes)) == {'entry': 'k'}\n"
        "same = same and flag == '--input' and limits == ['--timeout=60', '--memory-limit-mib=100']\n"
        "print(json.dumps({'result': 'race_free' if same else 'invalid_input'}))\n"
    )
    program.chmod(0o755)
    answer = sentryward.SentryWard(str(program), 60.0, 100).check("kernel", {"entry": "k"})
    assert answer.result == "race_free"


@pytest.fixture
def row() -> Any:
    return comparing.Row(
        "gemm", "bar.sync", 9, "removed: removed", "race_free", "clean", "", 1.0, "checker", "race"
    )


@pytest.mark.parametrize(
    ("says", "ours", "agreement"),
    [
        ("clean", "clean", "agree"),
        ("clean", "survivor", "agree"),
        ("found", "checker", "agree"),
        ("found", "review", "agree"),
        ("found", "hang", "agree"),
        ("clean", "numbers", "differ"),
        ("found", "survivor", "differ"),
        ("found", "clean", "differ"),
        ("nothing", "checker", ""),
        ("found", "unreached", ""),
        ("clean", "undecided", ""),
    ],
)
def test_agreement(row: Any, says: str, ours: str, agreement: str) -> None:
    assert replace(row, says=says, ours=ours).agreement == agreement


def explained(tmp_path: Path, **changed: str) -> Any:
    entry = {"op": "bar.*", "static": "race_free", "ours": "checker", "why": "Another follows.", **changed}
    path = tmp_path / "differences.toml"
    path.write_text(
        "[[difference]]\n" + "".join(f"{name} = {json.dumps(it)}\n" for name, it in entry.items())
    )
    return comparing.differences(path)


def test_a_reason_explains_what_it_names(row: Any, tmp_path: Path) -> None:
    known = explained(tmp_path)
    other = replace(row, op="tcgen05.commit")
    alike = replace(row, ours="survivor")  # both say clean
    assert comparing.unexplained([row, other, alike], known) == [other]


@pytest.mark.parametrize("changed", [{"why": " "}, {"sees": "more"}])
def test_an_entry_has_to_say_why(tmp_path: Path, changed: dict[str, str]) -> None:
    with pytest.raises(BadInputError, match=r"differences\.toml"):
        explained(tmp_path, **changed)


def test_the_reasons_are_well_formed() -> None:
    assert comparing.differences()


def test_without_the_program_one_line_says_how_to_get_it() -> None:
    script = Path(__file__).parents[3] / "scripts" / "compare_sentryward.py"
    command = [sys.executable, str(script), "gemm", "--sentryward", "/nowhere/sentryward"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 3
    assert len(ended.stderr.splitlines()) == 1
    assert "pip install sentryward" in ended.stderr
