# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels on disk: taken again, replaced when damaged, apart for different texts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from gdnbench import artifact_cache
from gdnbench.artifact_cache import ArtifactCache
from gdnbench.sim.compiler import native
from gdnbench.sim.run import run_ptx

TEXT = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .b64 out)
{
.reg .b32 %x;
.reg .b64 %address;
ld.param.b64 %address, [out];
mov.u32 %x, %tid.x;
mad.wide.u32 %address, %x, 4, %address;
add.s32 %x, %x, SHIFT;
st.global.b32 [%address], %x;
ret;
}
"""


def result(shift: int) -> list[int]:
    out = np.zeros(32, np.uint32)
    run_ptx(TEXT.replace("SHIFT", str(shift)), "k", (1, 1, 1), (32, 1, 1), [out])
    values: list[int] = out.tolist()
    return values


def entries(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "sim").iterdir())


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One item for each compilation of a kernel's blocks; they call helpers, which have modules of their
    own."""
    count: list[int] = []
    original = native.compile_text

    def counted(text: str, level: native.Level) -> bytes:
        if "define i32 @block0(" in text:
            count.append(len(text))
        return original(text, level)

    monkeypatch.setattr(native, "compile_text", counted)
    return count


def test_a_kernel_is_compiled_once(tmp_path: Path, compilations: list[int]) -> None:
    assert result(5) == [lane + 5 for lane in range(32)]
    assert result(5) == [lane + 5 for lane in range(32)]
    assert len(compilations) == 1
    assert len(entries(tmp_path)) == 1


def test_helpers_are_compiled_once_for_all_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_helpers", {})
    assert result(5)[0] == 5
    first = sorted(path.name for path in (tmp_path / "sim-helpers").iterdir())
    assert len(first) > 3
    compiled: list[str] = []
    original = native.compile_text

    def noted(text: str, level: native.Level) -> bytes:
        compiled.append(text)
        return original(text, level)

    monkeypatch.setattr(native, "compile_text", noted)
    monkeypatch.setattr(native, "_helpers", {})  # as in another process
    assert result(6)[0] == 6
    assert not any("define i1 @put_global_4_1(" in text for text in compiled)
    assert sorted(path.name for path in (tmp_path / "sim-helpers").iterdir()) == first
    damaged = tmp_path / "sim-helpers" / first[0]
    damaged.write_bytes(damaged.read_bytes()[:-9])
    monkeypatch.setattr(native, "_helpers", {})
    assert result(7)[0] == 7


def test_another_text_is_another_entry(tmp_path: Path, compilations: list[int]) -> None:
    assert result(5)[0] == 5
    assert result(6)[0] == 6
    assert len(compilations) == 2
    assert len(entries(tmp_path)) == 2


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other"])
def test_a_damaged_entry_is_compiled_again(tmp_path: Path, compilations: list[int], damage: str) -> None:
    result(5)
    (entry,) = entries(tmp_path)
    data = entry.read_bytes()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    broken = {"flip": bytes(flipped), "cut": data[:-100], "empty": b"", "other": b"not an entry" * 100}
    entry.write_bytes(broken[damage])
    assert result(5)[0] == 5
    assert len(compilations) == 2
    assert entry.read_bytes() == data
    assert result(5)[0] == 5
    assert len(compilations) == 2


def test_an_entry_under_another_name_is_compiled_again(tmp_path: Path, compilations: list[int]) -> None:
    result(5)
    (five,) = entries(tmp_path)
    result(6)
    (six,) = set(entries(tmp_path)) - {five}
    five.write_bytes(six.read_bytes())
    assert result(5)[0] == 5
    assert len(compilations) == 3


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"7",
        b"{}",
        b'{"record": 7, "sizes": [14]}',
        b'{"record": {}, "sizes": [14]}',
        b'{"record": {"size": 4096}, "sizes": [14]}',
        b'{"record": {"size": 4096}, "sizes": [7, 7]}',
        b'{"record": {"size": 4096}, "sizes": []}',
    ],
)
def test_an_entry_with_another_record_is_compiled_again(
    tmp_path: Path, compilations: list[int], line: bytes
) -> None:
    """Its checksum is right."""
    result(5)
    (entry,) = entries(tmp_path)
    body = line + b"\nno object file"
    entry.write_bytes(native.CACHE._head(entry.name, body) + body)
    assert result(5)[0] == 5
    assert len(compilations) == 2


def test_a_cache_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilations: list[int]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GDNBENCH_CACHE_DIR", str(tmp_path / "file"))
    assert result(5)[0] == 5
    assert result(5)[0] == 5
    assert len(compilations) == 2


def test_a_change_of_any_source_that_decides_the_code_is_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = native._files()
    sim = Path(native.__file__).parents[1]
    names = {str(path.relative_to(sim)) for path in files}
    assert {"compiler/kernel.py", "ptx/parser.py", "ptx/literals.py", "machine/engine_interface.py"} <= names
    assert {"machine/mbarrier.py", "special_function.py"} <= names
    before = native._sources()
    changed = tmp_path / "changed.py"
    for index, path in enumerate(files):
        changed.write_bytes(path.read_bytes() + b"# changed\n")
        monkeypatch.setattr(native, "_files", lambda at=index: [*files[:at], changed, *files[at + 1 :]])
        assert native._sources() != before, path


def test_the_key_depends_on_all_that_decides_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    before = native.cache_key("text", "k")
    assert native.cache_key("text", "k") == before
    assert native.cache_key("text", "l") != before
    monkeypatch.setattr(native, "_host", lambda: ("another-cpu", "+sse2"))
    assert native.cache_key("text", "k") != before
    monkeypatch.undo()
    monkeypatch.setattr(native, "_VERSION", b"another engine")
    assert native.cache_key("text", "k") != before


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_an_entry_that_others_may_write_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilations: list[int], mode: int
) -> None:
    monkeypatch.setenv("GDNBENCH_CACHE_DIR", str(tmp_path))
    result(1)
    entries(tmp_path)[0].chmod(mode)
    assert result(1) == list(range(1, 33))
    assert len(compilations) == 2


def test_an_entry_of_another_user_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilations: list[int]
) -> None:
    monkeypatch.setenv("GDNBENCH_CACHE_DIR", str(tmp_path))
    result(1)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert result(1) == list(range(1, 33))
    assert len(compilations) == 2


def test_entries_unused_for_longest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDNBENCH_CACHE_DIR", str(tmp_path))
    folder = native.CACHE.directory()
    entry = native.Compiled((b"code",), {})
    for number in range(10):
        native.write_cached(f"{number}", entry)
        os.utime(folder / f"{number}", (number, number))
    monkeypatch.setattr(artifact_cache, "MAX_BYTES", 10 * (folder / "0").stat().st_size)
    assert native.read_cached("0") == entry  # used: now the youngest
    native.write_cached("x", entry)
    assert {path.name for path in folder.iterdir()} == {"0", "3", "4", "5", "6", "7", "8", "9", "x"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArtifactCache:
    monkeypatch.setenv("GDNBENCH_CACHE_DIR", str(tmp_path))
    return ArtifactCache("artifacts", b"artifact-1\n")


def test_a_folder_among_the_entries_does_not_end_their_deletion(
    cache: ArtifactCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact_cache, "MAX_BYTES", 10_000)
    (cache.directory() / "folder").mkdir(parents=True)
    os.utime(cache.directory() / "folder", (1, 1))
    for number in range(30):
        cache.keep(f"{number}", {}, [bytes(1000)])
    assert (cache.directory() / "folder").is_dir()
    assert len([*cache.directory().iterdir()]) <= 11


def test_a_folder_in_the_place_of_an_entry_keeps_no_file_open(cache: ArtifactCache) -> None:
    (cache.directory() / "key").mkdir(parents=True)
    before = os.listdir("/proc/self/fd")
    assert cache.fetch("key") is None
    assert os.listdir("/proc/self/fd") == before


def test_an_entry_beyond_the_bound_is_not_read(cache: ArtifactCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file system can give a file of terabytes."""
    cache.keep("key", {}, [bytes(1000)])
    assert cache.fetch("key") is not None
    monkeypatch.setattr(artifact_cache, "MAX_BYTES", 1000)
    assert cache.fetch("key") is None


def test_an_interrupt_after_an_entry_was_written_is_not_lost(
    cache: ArtifactCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def interrupted(source: str, destination: Path) -> None:
        replace(source, destination)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.keep("key", {}, [b"part"])
    assert cache.fetch("key") == ({}, [b"part"])


def test_processes_that_need_one_entry_make_it_once(tmp_path: Path) -> None:
    """Four processes, forked at once, each append a letter while they make it; a killed one lets go."""
    cache, log = ArtifactCache("made", b"made\n"), tmp_path / "log"

    def make(dies: bool) -> None:
        with cache.making("key"):
            if cache.fetch("key") is None:
                with log.open("a") as file:
                    file.write("x")
                time.sleep(0.05)
                if dies:
                    os.kill(os.getpid(), signal.SIGKILL)
                cache.keep("key", {}, [b"made"])

    context = multiprocessing.get_context("fork")
    for dies, letters in ((True, "x"), (False, "xx")):
        processes = [context.Process(target=make, args=(dies,)) for _ in range(1 if dies else 4)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert log.read_text() == letters
    assert cache.fetch("key") == ({}, [b"made"])


def test_without_locks_everybody_makes_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "locks").write_text("no folder")
    with ArtifactCache("made", b"made\n").making("key"):
        pass
    with pytest.raises(OSError, match="of the block"), ArtifactCache("made", b"made\n").making("key"):
        raise OSError("of the block")
