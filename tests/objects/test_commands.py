"""Every command that takes a store takes the URL of one, and finds in it what it finds in a folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from object_samples import as_objects
from s3_bucket import Bucket

from gdnbench.cli.main import run
from gdnbench.pytest_plugin.asked import Asked
from gdnbench.pytest_plugin.selection import select
from gdnbench.store.address import is_absolute

Invoke = Callable[..., tuple[int, str]]


@pytest.fixture
def gdnbench(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Invoke:
    """`gdnbench("ls", url)` -> exit code and stdout."""

    def invoke(*words: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["gdnbench", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            run()
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
    chosen = select(bucket.url, Asked(None, None, {}))
    assert [(one.path, one.number, one.problem) for one in chosen] == [
        (bucket.url, 0, None),
        (bucket.url, 1, None),
    ]


def test_what_is_written_to_a_folder_alone(bucket: Bucket, prefills: Path, gdnbench: Invoke) -> None:
    """Not into a folder called `s3:`."""
    as_objects(prefills, bucket.url)
    commands = (
        ("synth", bucket.url, "--op", "gdn_prefill"),
        ("replay", prefills, "0", "--kernel", "torch", "--save", bucket.url),
        ("upload", bucket.url, bucket.url),
        ("upload", prefills),
        ("upload", prefills, "elsewhere"),
    )
    for words in commands:
        code, told = gdnbench(*words)
        assert (code, len(told.splitlines())) == (2, 1), (words, told)
    assert not Path("s3:").exists()


def test_urls_mean_the_same_from_every_folder() -> None:
    assert is_absolute("s3://bucket/run.zarr")
    assert not is_absolute("run.zarr")
