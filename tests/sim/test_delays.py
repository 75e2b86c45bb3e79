# SPDX-License-Identifier: Apache-2.0
"""Findings of the checker as delays for CUTracer: which instruction, and the form of the file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gdnbench.sim.checker.evidence import Access, Evidence
from gdnbench.sim.checker.happens_before import Verdict
from gdnbench.sim.delays import (
    Delays,
    KernelDelays,
    checksum,
    configuration,
    late_access,
    patterns,
    points_of,
    read_dump,
)
from gdnbench.sim.errors import InputError, Place
from gdnbench.sim.predict.addresses import AddressedInstruction, _addressed

# As nvdisasm prints it; the second instruction is for PTX instruction 9 - 1.
LISTING = """
	.section	.text.k,"ax",@progbits
	//## File "kernel", line 5
        /*0000*/                   MOV R1, c[0x0][0x28] ;       /* 0x00000a0000017a02 */
                                                                /* 0x000fe40000000f00 */
	//## File "kernel", line 9
        /*0010*/              @!P0 LDTM.16dp256bit.x8 R4, tmem[UR8] ;  /* 0x0000000000057984 */
                                                                /* 0x000e220008000800 */
        /*0020*/                   IADD3 R1, R1, 0x1, RZ ;      /* 0x0000000101017810 */
                                                                /* 0x002fca0007ffe0ff */
"""
LOAD = "tcgen05.ld.sync.aligned.16x256b.x8.b32 reads"
FREE = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 writes"


def _evidence(first: str | None, second: str, warps: tuple[tuple[int, int], ...]) -> Evidence:
    one, two = (
        None if does is None else Access(does, False, (0, 0, 0), 0, "a role", Place(line, does))
        for line, does in ((1, first), (2, second))
    )
    return Evidence(Verdict.ERROR, "race", "k", "a barrier", first=one, second=two, warps=warps)


def _delays() -> Delays:
    code = tuple(_addressed(LISTING, "k"))
    return Delays([KernelDelays("k", code, {one.address: one for one in points_of(code, 8, LOAD)}, {0x10})])


def test_the_first_access_is_late() -> None:
    pair = _evidence("ld.shared reads", "st.shared writes", ((0, 1),))
    assert late_access(pair) is pair.first


def test_of_tensor_memory_that_is_freed_the_use_is_late() -> None:
    """Whichever the checked run had first: hardware must free first."""
    for first, second in ((LOAD, FREE), (FREE, LOAD)):
        pair = _evidence(first, second, ((0, 1),))
        late = late_access(pair)
        assert isinstance(late, Access)
        assert late.does == LOAD


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        (_evidence("st.shared writes", "ld.shared reads", ((1, 1), (2, 2))), "of one warp"),
        (_evidence(None, "ld.shared reads", ()), "one access"),
    ],
)
def test_what_no_delay_shows(pair: Evidence, reason: str) -> None:
    late = late_access(pair)
    assert isinstance(late, str)
    assert reason in late


def test_machine_instructions_of_an_access() -> None:
    """An address computation of the same line is not delayed, nor is another PTX instruction."""
    code = tuple(_addressed(LISTING, "k"))
    texts = ["MOV R1, c[0x0][0x28]", "@!P0 LDTM.16dp256bit.x8 R4, tmem[UR8]", "IADD3 R1, R1, 0x1, RZ"]
    assert [(one.address, one.text) for one in code] == [*zip((0, 0x10, 0x20), texts, strict=True)]
    assert [one.address for one in points_of(code, 8, LOAD)] == [0x10]
    assert points_of(code, 4, LOAD) == []
    assert points_of(code, 8, "st.shared writes") == []
    assert patterns(_delays()) == "LDTM"


@pytest.mark.parametrize(("name", "hash_"), [("", "cbf29ce484222325"), ("foobar", "85944171f73967e8")])
def test_the_checksum_is_fnv_1a(name: str, hash_: str) -> None:
    """The test vectors of FNV's authors (draft-eastlake-fnv, appendix C)."""
    assert checksum(name, ()) == hash_


def test_the_checksum_counts_text_and_address() -> None:
    """CUTracer hashes the text with its semicolon, then xors the whole address: as if it were a byte, for one
    below 256. A NUL byte is what address 0 is."""
    nop = AddressedInstruction(0, "NOP", 0, 0, None, None, 0, "NOP")
    assert checksum("k", (nop,)) == checksum("kNOP ;\0", ())


def test_form_of_the_file() -> None:
    """Required properties and patterns of `delay_config.schema.json` of CUTracer, which allows no others."""
    made = configuration(_delays())
    assert made.keys() == {"version", "delay_ns", "kernels"}
    assert re.fullmatch(r"[0-9]+\.[0-9]+", made["version"])
    (kernel,) = made["kernels"].values()
    assert kernel.keys() == {"kernel_name", "kernel_checksum", "timestamp", "instrumentation_points"}
    assert re.fullmatch("[0-9a-f]+", kernel["kernel_checksum"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}", kernel["timestamp"])
    assert kernel["instrumentation_points"] == {
        "16": {"pc": 16, "sass": "@!P0 LDTM.16dp256bit.x8 R4, tmem[UR8] ;", "delay": 10_000, "on": True}
    }


def _dump(sass: str) -> dict[str, Any]:
    point = {"pc": 16, "sass": sass, "delay": 5, "on": False}
    return {
        "kernels": {
            "x": {"kernel_name": "k", "kernel_checksum": "ab", "instrumentation_points": {"16": point}}
        }
    }


def test_the_dump_of_the_same_machine_code() -> None:
    made = configuration(_delays(), _dump("@!P0 LDTM.16dp256bit.x8 R4, tmem[UR8] ;"))
    assert made["kernels"]["k_ab"]["kernel_checksum"] == "ab"


def test_the_dump_of_other_machine_code() -> None:
    with pytest.raises(InputError, match="at 0x10 it has LDTM"):
        configuration(_delays(), _dump("LDTM.16dp256bit.x8 R4, tmem[UR9] ;"))


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"kernels": {"a": {}}}', "[" * 100_000, json.dumps(_dump("NOP ;")).replace("ab", "../x")],
)
def test_no_dump(tmp_path: Path, text: str) -> None:
    path = tmp_path / "dump.json"
    path.write_text(text)
    with pytest.raises(InputError, match="is no dump"):
        read_dump(path)
