# SPDX-License-Identifier: Apache-2.0
"""Journals of other hosts, on file systems whose locks end at the host: they are left to that host."""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gdnbench.store import sealer
from gdnbench.store.journal import JournalWriter
from gdnbench.store.journal import host as journal_host
from gdnbench.store.journal import log as journal_log
from gdnbench.store.journal.host import Host
from gdnbench.store.reader import Store
from gdnbench.store.recover import open_store
from gdnbench.store.sealer import Sealer, main
from tests.messages import wording
from tests.store import journal_calls as calls

A = Host("boot-a", "node-a")
B = Host("boot-b", "node-b")

Move = Callable[[Host], None]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Move:
    """`on(host)`: from here on this process runs there."""

    def move(host: Host) -> None:
        for module in (journal_host, journal_log):
            monkeypatch.setattr(module, "this_host", lambda: host)

    return move


def recorded(store: Path, records: int = 3) -> JournalWriter:
    """A writer whose lock other hosts do not see."""
    writer = JournalWriter(store, process={}, provenance={})
    for n in range(records):
        writer.append(calls.draft(n))
    writer._log.release()
    return writer


def journals(store: Path) -> list[str]:
    return sorted(path.name for path in (store / ".journal").glob("*"))


def numbers(store: Path) -> list[int]:
    with Store.open(store) as opened:
        return [record.info.call for record in opened.records]


@pytest.mark.parametrize("dead_only", [False, True])
def test_another_host_leaves_a_journal_that_looks_dead(tmp_path: Path, on: Move, dead_only: bool) -> None:
    on(A)
    there = recorded(tmp_path)
    on(B)
    here = recorded(tmp_path)
    progress = Sealer(tmp_path, dead_only=dead_only).poll()
    assert dict(progress.elsewhere) == {there.segment: "node-a"}
    assert progress.ended == (here.segment,)
    assert (progress.live, progress.busy) == ((), ()), "a detached sealer would never end"
    assert journals(tmp_path) == [there.segment]
    on(A)
    assert Sealer(tmp_path).poll().ended == (there.segment,)
    assert numbers(tmp_path) == [0, 1, 2] * 2


def test_who_opens_the_store_is_told_how_to_seal_what_a_lost_host_left(
    tmp_path: Path, on: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(B)
    recorded(tmp_path)
    Sealer(tmp_path).poll()
    on(A)
    there = recorded(tmp_path)
    on(B)
    said = io.StringIO()
    open_store(tmp_path, notes=said).close()
    elsewhere = wording("store.recorded-elsewhere", segment=there.segment, host="node-a")
    assert re.search(elsewhere, said.getvalue())
    command = said.getvalue().strip().rpartition(" -m gdnbench.store.sealer ")[2]
    assert command == f"{tmp_path} --host node-a"
    monkeypatch.setattr(sealer, "LINGER_SECONDS", 0.0)
    monkeypatch.setattr(os, "nice", lambda by: by)
    monkeypatch.setattr(sealer.signal, "signal", lambda number, handler: None)
    assert main([str(tmp_path), "--host", "node-c"]) == 0
    assert journals(tmp_path) == [there.segment]
    assert main(command.split()) == 0
    assert journals(tmp_path) == []
    assert numbers(tmp_path) == [0, 1, 2] * 2


def test_what_a_host_wrote_before_it_was_booted_again_is_sealed(tmp_path: Path, on: Move) -> None:
    on(A)
    before = recorded(tmp_path)
    on(Host("boot-a-again", "node-a"))
    assert Sealer(tmp_path).poll().ended == (before.segment,)


@pytest.mark.parametrize("name", ["localhost", "localhost.localdomain", ""])
def test_names_that_many_hosts_have_are_no_reboot(tmp_path: Path, on: Move, name: str) -> None:
    on(Host("boot-a", name))
    there = recorded(tmp_path)
    on(Host("boot-b", name))
    assert dict(Sealer(tmp_path).poll().elsewhere) == {there.segment: name}
    assert Sealer(tmp_path, hosts=[name]).poll().ended == (there.segment,)


def test_containers_of_one_host_seal_for_each_other(tmp_path: Path, on: Move) -> None:
    on(A)
    there = recorded(tmp_path)
    on(Host(A.boot, "container"))
    assert Sealer(tmp_path).poll().ended == (there.segment,)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"boot": "x"}', b"\xff"])
def test_a_lock_file_without_a_host_is_as_in_earlier_versions(tmp_path: Path, content: bytes) -> None:
    writer = recorded(tmp_path)
    (tmp_path / ".journal" / writer.segment / "writer.lock").write_bytes(content)
    assert Sealer(tmp_path).poll().ended == (writer.segment,)


def test_a_lock_file_that_is_a_pipe_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "writer.lock")
    assert journal_host.other_host(tmp_path / "writer.lock") is None


def test_a_journal_in_the_making_on_a_host_whose_clock_differs_stays(tmp_path: Path, on: Move) -> None:
    unborn = {host: tmp_path / ".journal" / f".new-{host.boot}.1-2-3" for host in (A, B)}
    ago = time.time() - 3600
    for folder in unborn.values():
        folder.mkdir(parents=True)
        os.utime(folder, (ago, ago))
    on(B)
    Sealer(tmp_path).poll()
    assert [host.name for host, folder in unborn.items() if folder.exists()] == ["node-a"]


def test_a_journal_in_the_making_says_its_host(
    tmp_path: Path, on: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(A)

    def fail(*arguments: object, **more: object) -> None:
        raise OSError("the process dies here")

    monkeypatch.setattr(journal_log.JournalLog, "_open_next", fail)
    with pytest.raises(OSError, match="dies here"):
        JournalWriter(tmp_path, process={}, provenance={})
    (name,) = journals(tmp_path)
    assert name.startswith(".new-boot-a.")
