# SPDX-License-Identifier: Apache-2.0
"""Made records: the shipped file, and the ways to get one wrong."""

from __future__ import annotations

import re
from collections import Counter
from itertools import combinations, product
from pathlib import Path

import pytest

from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.ops import operation, operations
from gdnbench.prove import records
from gdnbench.prove.records import made_records, read_made, write_calls
from gdnbench.store.recover import open_store
from gdnbench.synth import synthesise
from tests.messages import wording

RECORD = '[[record]]\nname = "a"\nop = "gdn_prefill"\nseed = 1\n'


def test_each_operation_has_15_to_35_records_some_for_the_simulator_and_some_for_laws() -> None:
    found = read_made()
    counts = Counter(record.op for record in found)
    assert counts.keys() == operations().keys()
    assert all(15 <= count <= 35 for count in counts.values())
    for op in counts:
        assert sum(record.sim for record in found if record.op == op) >= 8
        assert sum(record.sim and record.laws for record in found if record.op == op) >= 2


def test_every_combination_of_conventions_occurs() -> None:
    """Of those that `synth` makes: offsets are a matter of dtypes."""
    for op in operations().keys() - {"v4_decode"}:
        conventions = [one for one in operation(op).conventions if one.name != "offsets"]
        combinations = set(product(*(one.values for one in conventions)))
        defaults = {one.name: one.values[0] for one in conventions}
        made = {
            tuple({**defaults, **record.options}[one.name] for one in conventions)
            for record in read_made()
            if record.op == op
        }
        assert combinations == made


def test_every_two_values_of_two_conventions_occur() -> None:
    """Of v4_decode, whose combinations are thousands."""
    conventions = operation("v4_decode").conventions
    defaults = {one.name: one.values[0] for one in conventions}
    made = [{**defaults, **record.options} for record in read_made() if record.op == "v4_decode"]
    for one, other in combinations(conventions, 2):
        found = {(record[one.name], record[other.name]) for record in made}
        assert found == set(product(one.values, other.values)), (one.name, other.name)


def test_the_lengths_of_prefill_are_the_hard_ones() -> None:
    lengths = {n for record in read_made() if record.op == "gdn_prefill" for n in record.options["seqlens"]}
    assert {0, 1, 63, 64, 65, 127, 128, 129, 500, 3000} <= lengths


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "op", ["gdn_prefill", "gdn_decode", "kda_prefill", "kda_decode", "swa_decode", "v4_decode"]
)
def test_every_record_is_a_valid_call(op: str) -> None:
    found = list(made_records(op))
    assert [name for name, _ in found] == [record.name for record in read_made() if record.op == op]


def test_calls_are_the_same_each_time_and_others_with_another_seed(made: Path) -> None:
    first, again, shifted = (list(made_records("gdn_prefill", shift)) for shift in (0, 0, 1))
    for (_, one), (_, same), (_, other) in zip(first, again, shifted, strict=True):
        assert all(tensor.equal(same.tensors[name]) for name, tensor in one.tensors.items())
        assert not one.tensors["v"].equal(other.tensors["v"])


def test_a_store_of_calls_has_their_names_and_the_same_keys_each_time(made: Path, tmp_path: Path) -> None:
    keys = []
    for place in ("a.zarr", "b.zarr"):
        write_calls(tmp_path / place, "gdn_decode", made_records("gdn_decode"))
        with open_store(tmp_path / place) as store:
            assert [record.info.layer for record in store.records] == ["drafts", "one token"]
            keys.append([record.key for record in store.records])
    assert keys[0] == keys[1]


def test_whole_pools_are_stored_whole(made: Path, tmp_path: Path) -> None:
    write_calls(tmp_path / "a.zarr", "gdn_decode", made_records("gdn_decode"), whole=True)
    with open_store(tmp_path / "a.zarr") as store:
        record = store.records[0]
        assert not record.info.pools
        assert record.before["state"].meta.shape[0] == 14


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("record = [", wording("suite.not-toml")),
        ("", wording("prove.no-records")),
        ("[record]\nname = 'a'", wording("suite.value-wrong", key="record")),
        ("[[records]]", wording("suite.key-unknown", key="records", known="record")),
        (RECORD + "speed = 1", wording("suite.key-unknown", key="speed")),
        ('[[record]]\nname = "a"\nop = "gdn_prefill"', wording("prove.key-missing", key="seed")),
        (RECORD.replace("= 1", "= -1"), wording("suite.value-wrong", key="seed")),
        (RECORD.replace("= 1", "= true"), wording("suite.value-wrong", key="seed")),
        (RECORD.replace("= 1", f"= {1 << 63}"), wording("suite.value-wrong", key="seed")),
        (RECORD.replace("gdn_prefill", "gdn_scan"), wording("prove.operation-unknown", op="gdn_scan")),
        (RECORD.replace('"a"', '"a\\nb"'), wording("suite.value-wrong", key="name")),
        (RECORD + "options = 3", wording("suite.value-wrong", key="options")),
        (RECORD + "options = { heads = { a = 1 } }", wording("suite.value-wrong", key="options")),
        (RECORD + "options = { heads = [[1]] }", wording("suite.value-wrong", key="options")),
        (RECORD + "options = { heads = 2020-01-01 }", wording("suite.value-wrong", key="options")),
        (RECORD + "options = { speed = 1 }", "gdn_prefill has no synth option 'speed'"),
        (RECORD + "options = { heads = 2 }", "gdn_prefill option heads: '2' is not 2 integers"),
        (RECORD + "options = { seed = 2 }", wording("prove.seed-among-options")),
        (RECORD + "sim = 1", wording("suite.value-wrong", key="sim")),
        (RECORD + RECORD, wording("prove.name-twice", name="a")),
    ],
)
def test_a_wrong_file_is_named_with_its_table_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "made.toml"
    path.write_text(text)
    with pytest.raises(BadInputError) as refused:
        read_made(path)
    told = str(refused.value)
    assert str(path) in told
    assert re.search(message, told)
    assert "\n" not in told


@pytest.mark.parametrize("options", ["heads = [2, 3]", "seqlens = [1000000000000]", "key_correlation = nan"])
def test_options_that_make_no_call_are_named_with_their_table(tmp_path: Path, options: str) -> None:
    path = tmp_path / "made.toml"
    path.write_text(RECORD + f"options = {{ {options} }}")
    (record,) = read_made(path)
    with pytest.raises(BadInputError, match=r"made.toml: \[\[record\]\] 1: ") as refused:
        record.call()
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_bad_input_and_an_installation_without_the_file_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInputError, match="cannot be read"):
        read_made(tmp_path / "none.toml")
    monkeypatch.setattr(records, "MADE", tmp_path / "none.toml")
    with pytest.raises(CannotRunError, match=wording("prove.made-missing")):
        read_made()
    with pytest.raises(BadInputError, match="gdn_scan"):
        next(made_records("gdn_scan"))


def test_made_chunk_tables_are_those_of_the_chunks() -> None:
    """Chunks of 64: sequences of 65, 0 and 130 tokens have 2, 0 and 3."""
    call = synthesise("gdn_prefill", seqlens=(65, 0, 130), chunk_tables=True)
    wanted = [[0, 0], [0, 1], [2, 0], [2, 1], [2, 2], [-1, -1], [-1, -1]]
    assert call.tensors["chunk_indices"].tolist() == wanted
    assert call.tensors["chunk_offsets"].tolist() == [0, 2, 2, 5]


def test_sizes_at_which_kernels_were_wrong_occur() -> None:
    """More than 4096 tokens, 64 sequences, 16 heads and 1000 slots; value heads that are no power of two."""
    made = read_made()
    prefill = [record.options for record in made if record.op == "gdn_prefill"]
    decode = [record.options for record in made if record.op == "gdn_decode"]
    assert max(max(options["seqlens"]) for options in prefill) > 4096
    assert max(len(options["seqlens"]) for options in prefill) > 64
    assert max(options.get("batch", 0) for options in decode) > 64
    assert max(options.get("slots") or 0 for options in decode) > 1000
    for of_one in (prefill, decode):
        heads = [options["heads"] for options in of_one if "heads" in options]
        assert any(hv > 16 and hv & (hv - 1) for _, hv in heads)
