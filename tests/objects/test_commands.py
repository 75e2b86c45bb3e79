# SPDX-License-Identifier: Apache-2.0
"""Every command that takes a store takes the URL of one, and finds in it what it finds in a folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gdnbench.cli.main import console_main
from gdnbench.pytest_plugin.marks import RecordRequest
from gdnbench.pytest_plugin.selection import select_records
from gdnbench.store.address import is_absolute
from tests.objects.object_samples import as_objects
from tests.objects.s3_bucket import Bucket

Invoke = Callable[..., tuple[int, str]]


@pytest.fixture
def gdnbench(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Invoke:
    """`gdnbench("ls", url)` -> exit code and stdout."""

    def invoke(*words: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["gdnbench", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            console_main()
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return (ended.value.code if isinstance(ended.value.code, int) else 0), out or err

    return invoke


@pytest.fixture
def prefills(gdnbench: Invoke, tmp_path: Path) -> Path:
    """Two small prefill records."""
    store = tmp_path / "run.zarr"
    sizes = ("--seqlens", "1,5", "--heads", "1,2", "--head-dim", "16,32", "--seed", "7", "--count", "2")
    assert gdnbench("synth", store, "--op", "gdn_prefill", *sizes)[0] == 0
    return store


@pytest.mark.slow
def test_commands_take_a_url(
    bucket: Bucket, prefills: Path, gdnbench: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert gdnbench("upload", prefills, bucket.url) == (0, f"2 batches uploaded to {bucket.url}\n")
    assert gdnbench("upload", prefills, bucket.url) == (0, f"0 batches uploaded to {bucket.url}\n")
    for words in (("ls", "--json"), ("show", "1", "--json"), ("verify",)):
        there, here = (gdnbench(words[0], place, *words[1:]) for place in (bucket.url, prefills))
        assert there == here
        assert there[0] == 0
    assert gdnbench("diff", prefills, bucket.url)[0] == 0
    replayed = gdnbench("replay", bucket.url, "0", "--kernel", "torch", "--save", tmp_path / "saved.zarr")
    assert replayed[0] == 0, replayed[1]
    saved = f"{bucket.url}-saved"
    assert gdnbench("upload", tmp_path / "saved.zarr", saved)[0] == 0
    assert gdnbench("report", saved, "-o", tmp_path / "report.html")[0] == 0
    isolated = gdnbench("replay", bucket.url, "1", "--kernel", "torch", "--isolate", "--json")
    assert isolated[0] == 0, isolated[1]
    assert json.loads(isolated[1])["store"] == bucket.url
    (tmp_path / "gdnbench.toml").write_text(f'[[replay]]\ncaptures = "{bucket.url}"\nkernels = "torch"\n')
    suite = gdnbench("suite", tmp_path / "gdnbench.toml", "-o", tmp_path / "results")
    assert suite[0] == 0, suite[1]


def test_a_mark_of_the_plugin_takes_a_url(bucket: Bucket, prefills: Path) -> None:
    as_objects(prefills, bucket.url)
    chosen = select_records(bucket.url, RecordRequest(None, None, {}))
    assert [(one.path, one.number, one.problem) for one in chosen] == [
        (bucket.url, 0, None),
        (bucket.url, 1, None),
    ]


WRONG = """
import torch

def prefill(v, k, cu_seqlens, **_):
    state = torch.zeros(len(cu_seqlens) - 1, v.shape[1], v.shape[2], k.shape[2])
    return {"o": torch.zeros_like(v), "final_state": state}
"""


@pytest.mark.slow
def test_bisection_and_timing_take_a_url(
    bucket: Bucket, prefills: Path, gdnbench: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each starts processes of its own, which open the URL again."""
    monkeypatch.chdir(tmp_path)
    as_objects(prefills, bucket.url)
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    timed = gdnbench("time", bucket.url, "0", "--kernel", "torch", "--seconds", "0.2", "--json")
    assert timed[0] == 0, timed[1]
    assert json.loads(timed[1])["store"] == bucket.url
    first = gdnbench("bisect", "record", bucket.url, "--kernel", f"{wrong}:prefill")
    assert (first[0], "synth, step 0 (record 0, gdn_prefill)" in first[1]) == (1, True), first[1]
    shrunk = gdnbench("bisect", "input", bucket.url, "0", "--kernel", f"{wrong}:prefill", "--fresh")
    assert (shrunk[0], "to 1 token, 1 sequence" in shrunk[1]) == (1, True), shrunk[1]
    assert gdnbench("replay", "run-0-small.zarr", "--kernel", f"{wrong}:prefill")[0] == 1
    stage = gdnbench("bisect", "stage", bucket.url, "0", "--kernel", f"{wrong}:prefill")
    assert (stage[0], "filled none of the stages" in stage[1]) == (3, True), stage[
        1
    ]  # of a record that was read


def test_what_is_written_to_a_folder_alone(
    bucket: Bucket, prefills: Path, gdnbench: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not into a folder called `s3:`."""
    as_objects(prefills, bucket.url)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gdnbench.toml").write_text(f'[[replay]]\ncaptures = "{bucket.url}"\nkernels = "torch"\n')
    elsewhere = f"{bucket.url}-elsewhere"
    commands = (
        ("synth", bucket.url, "--op", "gdn_prefill"),
        ("replay", prefills, "0", "--kernel", "torch", "--save", bucket.url),
        ("upload", bucket.url, bucket.url),
        ("upload", prefills),
        ("upload", prefills, "elsewhere"),
        ("capture", "s3:/bucket/run.zarr", "--", "true"),  # a typing error
        ("suite", "gdnbench.toml", "-o", elsewhere),
        ("bisect", "input", bucket.url, "0", "--kernel", "torch", "--out", elsewhere),
        ("time", bucket.url, "0", "--kernel", "torch", "--save", elsewhere),
        ("merge", elsewhere, bucket.url),
        ("share", bucket.url, elsewhere),
        ("prune", bucket.url, "--keep", "0"),
    )
    for words in commands:
        code, told = gdnbench(*words)
        assert (code, len(told.splitlines())) == (2, 1), (words, told)
    assert not Path("s3:").exists()


def test_urls_mean_the_same_from_every_folder() -> None:
    assert is_absolute("s3://bucket/run.zarr")
    assert not is_absolute("run.zarr")
