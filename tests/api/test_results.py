# SPDX-License-Identifier: Apache-2.0
"""Results in Python are those of the commands, with images and tables that say the same."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gdnbench
from gdnbench.api import png
from gdnbench.bits import to_bits
from gdnbench.errors import BadInputError
from gdnbench.page.build import asset
from gdnbench.replay.kernels import function_given, load_function
from tests.api.test_store import check_html
from tests.cli.conftest import Invoke

CAPTURE = Path(__file__).parents[2] / "captures" / "decode.zarr.zip"


@pytest.fixture(scope="module")
def store() -> Iterator[gdnbench.Store]:
    with gdnbench.open(CAPTURE) as opened:
        yield opened


@pytest.fixture(scope="module")
def wrong(store: gdnbench.Store) -> gdnbench.ReplayResult:
    """Of two records, of which one fails: its head 2 is NaN."""
    calls = []

    def kernel(o: torch.Tensor, state: torch.Tensor, **call: object) -> None:
        calls.append(call)
        expected = store[3 if len(calls) == 1 else 4].after
        o.copy_(expected["o"].torch())
        state.copy_(
            expected["state"].torch().mT if expected["state"].axes[-1] == "V" else expected["state"].torch()
        )
        if len(calls) == 2:
            o[:, :, 2] = math.nan

    return gdnbench.replay(store, [store[3], 4], kernel=kernel, tol=(1e-3, 1e-2))


def test_failures_and_slices(wrong: gdnbench.ReplayResult) -> None:
    assert [record.number for record in wrong] == [3, 4]
    assert [bool(record.reason) for record in wrong] == [False, True]
    assert (wrong.ok, wrong[:1].ok, len(wrong.failures), wrong.exit_code) == (False, True, 1, 1)
    assert wrong.failures.records == wrong[1:].records
    assert repr(wrong[1]) == (
        "<RecordResult 4 gdn_decode model.layers.1.linear_attn step 5: numeric mismatch, 4 tensors>"
    )
    assert max(len(repr(one)) for one in (wrong, wrong[0], wrong[1].tensors[0])) < 200


def test_results_are_those_of_the_command(
    command: Invoke,
    wrong: gdnbench.ReplayResult,
    store: gdnbench.Store,
) -> None:
    found = json.loads(gdnbench.diff(store, store, op="gdn_decode", tol=1e-3).to_json())
    assert found == json.loads(
        command("diff", CAPTURE, CAPTURE, "--op", "gdn_decode", "--tol", "1e-3", "--json").out
    )
    replayed = json.loads(gdnbench.replay(store, "2", k={"o": 3}, bitwise=False).to_json())
    by_command = json.loads(command("replay", CAPTURE, "2", "--k", "o=3", "--json").out)
    for one in (replayed, by_command):
        for record in one["records"]:
            del record["seconds"]
    # Ranges of the inputs come with the grids, which the command computes for --heatmap alone.
    for record in replayed["records"]:
        record["capture"] = None
    assert replayed == by_command


def test_a_row_for_each_tensor(wrong: gdnbench.ReplayResult) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed: pip install 'gdnbench[notebook]'")
    frame = wrong.to_pandas()
    assert len(frame) == sum(len(record.tensors) for record in wrong)
    failing = frame[frame.passed == False]  # noqa: E712 (a column)
    assert [*failing[["record", "tensor", "side"]].itertuples(index=False, name=None)] == [(4, "o", "kernel")]
    assert wrong.to_pandas().columns[0] == "record"


def test_a_record_of_another_store(store: gdnbench.Store) -> None:
    with (
        gdnbench.open(CAPTURE.with_name("prefill.zarr.zip")) as other,
        pytest.raises(gdnbench.BadInputError, match=r"<Record 3 gdn_prefill .*> is no record of .*decode"),
    ):
        gdnbench.replay(store, other[3])
    assert store[3] in store
    assert store.index(store[3]) == 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"kernel": 3}, "kernel 3 is neither a name nor a function"),
        ({"kernel": None}, "kernel None is neither"),
        ({"k": "3"}, "k '3' is no number"),
        ({"k": {"o": "3"}}, "k '3' is no number"),
        ({"tol": "1e-3"}, "tol '1e-3' is no tolerance"),
        ({"tol": (1, 2, 3)}, r"tol \(1, 2, 3\) is no tolerance"),
        ({"rule": "o"}, "rule 'o' is no mapping"),
        ({"rule": {"o": 3}}, "rule of o is 3; give one of k, tol and bitwise"),
    ],
)
def test_values_of_other_types(store: gdnbench.Store, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(gdnbench.BadInputError, match=f"^{said}"):
        gdnbench.replay(store, 3, **wrong)


def test_which_functions_another_process_imports() -> None:
    def local() -> None: ...

    with function_given(to_bits) as found:
        assert found == ("gdnbench.bits:to_bits", True)
    with function_given(local) as (name, importable):
        assert not importable
        assert load_function(name).function is local
    with pytest.raises(BadInputError):
        load_function(name)


def images(html: str) -> list[np.ndarray]:
    """The images of a page as [height, width, 3], decoded here by the PNG specification."""
    found = []
    for text in re.findall(r"data:image/png;base64,([^\"]*)", html):
        data = io.BytesIO(base64.b64decode(text))
        assert data.read(8) == b"\x89PNG\r\n\x1a\n"
        chunks = {}
        while head := data.read(8):
            length, kind = struct.unpack(">I4s", head)
            chunks[kind] = data.read(length)
            assert struct.unpack(">I", data.read(4))[0] == zlib.crc32(kind + chunks[kind])
        width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
        assert (depth, colour, rest) == (8, 2, [0, 0, 0])
        lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
        assert not lines[:, 0].any()
        found.append(lines[:, 1:].reshape(height, width, 3))
    return found


def test_the_wrong_head_is_seen(wrong: gdnbench.ReplayResult) -> None:
    html = check_html(wrong._repr_html_())
    assert "numeric mismatch" in html
    (image,) = images(html)  # of o
    heads = image[image.shape[0] // 8 :: image.shape[0] // 4, 0].tolist()
    assert heads[2] == list(png.WRONG)
    assert list(png.WRONG) not in (heads[0], heads[1], heads[3])


def test_colours_are_those_of_the_report() -> None:
    script = asset("script", "colour.js")
    assert json.loads(script.partition("STOPS = ")[2].partition(";")[0]) == list(png.STOPS)
    for name in ("NO_ERROR", "WRONG"):
        assert json.loads(script.partition(f"{name} = ")[2].partition(";")[0]) == list(getattr(png, name))


def test_the_scale_has_the_limit_in_its_middle() -> None:
    values = np.array([0.0, 0.002, 2.0, 20.0, math.inf, 2e-9])
    dark, *_, light = map(png.rgb, png.STOPS)
    middle = png.rgb(png.STOPS[4])
    assert png.colours(values, 2.0).tolist() == [
        list(colour) for colour in (png.NO_ERROR, dark, middle, light, png.WRONG, dark)
    ]


PTX = """.version 8.7
.target sm_100a
.address_size 64
.visible .entry store(.param .u64 x, .param .u32 at)
.reqntid 1
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [x];
    ld.param.u32 %r1, [at];
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd1, %rd1, %rd2;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""


def nothing() -> None:
    """Runs no kernel."""


def test_a_simulated_call(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "store.ptx").write_text(PTX)
    kernel = f"{tmp_path / 'store.ptx'}:store"
    x = torch.zeros(4, dtype=torch.int32)
    done = gdnbench.sim(kernel, x, named={"at": 3}, grid=1, check=True)
    assert (done.ok, x.tolist(), done.tensors["x"].data_ptr()) == (True, [0, 0, 0, 3], x.data_ptr())
    assert repr(done) == "<SimResult 1 launch, 0 errors>"
    beyond = gdnbench.sim(kernel, "i32[4]:zeros", 4, grid=(1, 1))
    assert [finding.kind for finding in beyond.findings] == ["out-of-bounds access"]
    assert "1 error found" in check_html(beyond._repr_html_())
    with pytest.raises(gdnbench.Error, match="store takes 2 arguments"):
        gdnbench.sim(kernel, x, grid=1)
    with pytest.raises(gdnbench.BadInputError, match=r"^nothing returned no"):
        gdnbench.sim(nothing)
    with pytest.raises(gdnbench.BadInputError, match="--grid is for FILE"):
        gdnbench.sim(lambda: None, grid=1)
    assert capfd.readouterr() == ("", "")
