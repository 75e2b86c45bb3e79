# SPDX-License-Identifier: Apache-2.0
"""Files with tables of paged callers: what they may hold, and what is said of others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gdnbench.capture import CaptureOptions, capturing
from gdnbench.capture.adapter import Target
from gdnbench.capture.adapter_config import read_tables
from gdnbench.capture.adapters.paged import INDEX_SHAPES, Paged
from gdnbench.capture.options import CACHE_LAYOUTS
from gdnbench.errors import BadInputError
from gdnbench_kernels.swa_decode.contract import CACHE_LAYOUT, INDEX_SHAPE
from tests.messages import wording

GOOD = """
[[paged]]
function = "engine.attention:decode"
layers = ["engine.layers:Attention.forward", "engine.layers:Other.forward"]
q = "q"
cache = "caches[0]"
swa_indices = "metadata.indices"
swa_lens = "metadata.lengths"
scale = 0.05
o = "return[0]"
cache_layout = "fp8_ds_mla"
block_size = 64
"""


def test_what_tables_may_name_is_the_contracts() -> None:
    """Said again where torch must not be imported."""
    assert CACHE_LAYOUT.values == CACHE_LAYOUTS
    assert INDEX_SHAPE.values == INDEX_SHAPES


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(GOOD)
    (tmp_path / "t.json").write_text(
        '{"paged": [{"function": "engine.attention:decode", "q": "q", "cache": "caches[0]", "scale": 0.05,'
        ' "layers": ["engine.layers:Attention.forward", "engine.layers:Other.forward"], "block_size": 64,'
        ' "swa_indices": "metadata.indices", "swa_lens": "metadata.lengths", "o": "return[0]",'
        ' "cache_layout": "fp8_ds_mla"}]}'
    )
    (one,), (other,) = (read_tables(tmp_path / name) for name in ("t.toml", "t.json"))
    assert one == other
    assert one.targets == (Target("engine.attention", "decode"),)
    assert one.scopes[1] == Target("engine.layers", "Other.forward")


def test_the_table_of_the_documentation_is_one(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "capture.md"
    (block,) = [b for b in page.read_text().split("```toml\n") if b.startswith("[[paged]]")]
    (tmp_path / "t.toml").write_text(block.partition("```")[0])
    (one,) = read_tables(tmp_path / "t.toml")
    assert (one.cache_layout, one.lse, one.block_size) == ("fp8_ds_mla", "return[1]", 64)


def test_several_tables_are_several_adapters(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(GOOD + GOOD.replace(":decode", ":verify"))
    assert [one.targets[0].function for one in read_tables(tmp_path / "t.toml")] == ["decode", "verify"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[paged", wording("capture.tables-unreadable", path="t.toml", kind="TOML", reason="Expected")),
        ("", wording("capture.tables-wrong", path="t.toml", kind="paged")),
        ("[paged]\nq = 1", wording("capture.tables-wrong", path="t.toml")),
        ("paged = []", wording("capture.tables-missing", path="t.toml")),
        ("paged = [3]", wording("capture.table-wrong", where="t.toml: paged[0]", value=3)),
        (
            GOOD + "other = 1",
            wording("capture.table-key-unknown", where="paged[0]", key="'other'", known="function, q, cache"),
        ),
        (GOOD + "[more]", wording("capture.tables-wrong", path="t.toml")),
        (GOOD + "[[paged]]", r"paged\[1\] lacks function, q, cache, swa_indices, swa_lens, o, cache_layout"),
        (GOOD.replace('o = "return[0]"', ""), r"paged\[0\] lacks o$"),
        (
            GOOD.replace("engine.attention:decode", "decode"),
            wording("capture.function-wrong", name="function", text="'decode'"),
        ),
        (
            GOOD.replace("engine.layers:Other.forward", "Other"),
            wording("capture.function-wrong", name="layers", text="'Other'"),
        ),
        (
            GOOD.replace('"metadata.lengths"', '"metadata..lengths"'),
            wording("capture.place-wrong", name="swa_lens", value="'metadata..lengths'"),
        ),
        (
            GOOD.replace('"metadata.lengths"', '"len(x)"'),
            wording("capture.place-wrong", name="swa_lens", value="'len(x)'"),
        ),
        (GOOD.replace("scale = 0.05", "scale = nan"), wording("capture.scale-infinite", scale="nan")),
        (
            GOOD.replace("scale = 0.05", f"scale = 1{'0' * 400}"),
            wording("capture.scale-infinite", scale=re.compile(r"10*\.\.\.")),
        ),
        (GOOD.replace("engine.attention:", "engine..attention:"), wording("capture.function-wrong")),
        (
            GOOD.replace("caches[0]", f"caches[{'9' * 5000}]"),
            wording("capture.place-wrong", name="cache", value=re.compile(r"'caches\[99*\.\.\.")),
        ),
        (
            GOOD.replace("fp8_ds_mla", "x" * 100_000),
            wording("capture.table-word", name="cache_layout", value=re.compile(r"'x{76}\.\.\.")),
        ),
        (
            GOOD + "k" * 100_000 + " = 1",
            wording("capture.table-key-unknown", key=re.compile(r"'k{76}\.\.\.")),
        ),
        (GOOD + 'framework = "two words"', wording("capture.framework-blanks", framework="'two words'")),
        (GOOD.replace('q = "q"', "q = 3"), wording("capture.place-wrong", name="q", value=3)),
        (GOOD.replace('q = "q"', 'q = "return[1]"'), wording("capture.place-returned")),
        (
            GOOD.replace("fp8_ds_mla", "fp8"),
            wording(
                "capture.table-word", name="cache_layout", value="'fp8'", words="per_token_scale, fp8_ds"
            ),
        ),
        (
            GOOD.replace("fp8_ds_mla", "per_token_scale"),
            wording("capture.inv-scale", state="missing", cache_layout="per_token_scale"),
        ),
        (GOOD + 'inv_scale = "s"', wording("capture.inv-scale", state="given", cache_layout="fp8_ds_mla")),
        (
            GOOD + 'index_shape = "WT"',
            wording("capture.table-word", name="index_shape", value="'WT'", words="TW, T1W, 1TW") + "$",
        ),
        (GOOD.replace("= 64", "= 48"), wording("capture.block-size", block_size=48, sizes="16, 32")),
        (GOOD.replace("= 64", '= "64"'), wording("capture.block-size", block_size="'64'")),
        (GOOD.replace("0.05", "true"), wording("capture.scale-wrong", scale="True")),
        (GOOD.replace("0.05", '"1/2"'), wording("capture.place-wrong", name="scale", value="'1/2'")),
        (GOOD + "framework = 3", wording("capture.table-text", name="framework", value=3)),
    ],
)
def test_a_wrong_table_is_refused_in_one_line(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.toml").write_text(text)
    with pytest.raises(BadInputError, match=said) as caught:
        read_tables("t.toml")
    assert "\n" not in str(caught.value)
    with pytest.raises(BadInputError, match=said), capturing("run.zarr", CaptureOptions(table=("t.toml",))):
        pass


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(
        BadInputError, match=wording("file.unreadable", path="none.toml", reason="No such file")
    ):
        read_tables(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(
        BadInputError, match=wording("file.unreadable", path="bytes.toml", reason="it is not UTF-8")
    ):
        read_tables(tmp_path / "bytes.toml")
    (tmp_path / "wrong.json").write_text("{")
    with pytest.raises(BadInputError, match=wording("file.not-json", path="wrong.json")):
        read_tables(tmp_path / "wrong.json")


def test_the_command_stops_before_the_program_runs(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text("[[paged]]")
    words = ["capture", "run.zarr", "--table", "t.toml", "--", sys.executable, "-c", "print('ran')"]
    ran = subprocess.run(
        [sys.executable, "-m", "gdnbench", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert "t.toml: paged[0] lacks function" in ran.stderr


def test_a_table_in_python_is_checked_alike() -> None:
    keys: dict[str, Any] = dict.fromkeys(("q", "cache", "swa_indices", "swa_lens", "o"), "x")
    with pytest.raises(BadInputError, match=wording("capture.layers-not-list", layers="'m:f'")):
        Paged(function="m:f", cache_layout="bfloat16", layers="m:f", **keys)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, kind: str) -> None:
    """A pipe, such as the shell's <(...), would be read by the first of many processes alone."""
    path = Path("/dev/zero") if kind == "device" else tmp_path / "t.toml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(BadInputError, match="^" + wording("capture.tables-no-file", path=path) + "$"):
        read_tables(path)
