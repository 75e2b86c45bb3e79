# SPDX-License-Identifier: Apache-2.0
"""What was written is read back bit for bit: by us, by plain zarr-python and by tensorstore."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import tensorstore
import torch
import zarr
from numpy.typing import NDArray

from gdnbench.bits import DTYPES, from_bits, meta_of
from gdnbench.record import RecordDraft, TensorDraft
from gdnbench.store.compression import Chunking, Compression
from gdnbench.store.reader import Store
from gdnbench.store.verify import verify
from gdnbench.store.writer import StoreWriter
from tests.store.store_samples import PLAIN, TINY, array_path, info, randn, read_all, write_one

ALL_ROWS = Chunking(small=1 << 20)
LAYOUTS = {
    "rows": ALL_ROWS,
    "sharded": TINY,
    "no shards": Chunking(small=0, chunk=1024, shard=None),
    "blobs": Chunking(small=0),
}
SIGNALLING = 0x7F800001  # an fp32 NaN whose quiet bit is off
PATTERNS = [0x00000000, 0x80000000, 0x7F800000, 0xFF800000, SIGNALLING, 0xFFBFFFFF, 0x7FC00000, 0x7FFFFFFF, 1]


def bit_patterns() -> dict[str, NDArray[np.generic]]:
    """By "<dtype>", bits (or native values) that a conversion anywhere on the way would change."""
    wide = np.arange(1 << 16, dtype=np.uint16)
    found: dict[str, NDArray[np.generic]] = {
        "bfloat16": wide.reshape(256, 256),
        "float16": wide.view(np.float16).reshape(64, 1024),
        "float32": np.array(PATTERNS * 50, np.uint32).view(np.float32),
        "float64": np.array([0x7FF0000000000001, 1 << 63, 0x7FF << 52], np.uint64).view(np.float64),
        "bool": np.array([True, False, True]),
    }
    for name, dtype in DTYPES.items():
        if name.startswith("float8"):
            found[name] = np.arange(256, dtype=np.uint8)
        elif dtype.storage.kind in "iu" and name not in found:
            limits = np.iinfo(dtype.storage.name)
            found[name] = np.array([limits.min, limits.max, 1], dtype.storage)
    return found


def raw(array: NDArray[np.generic]) -> bytes:
    return np.require(array, requirements="C").tobytes()


def plain_zarr(path: Path, tensor: str) -> NDArray[np.generic]:
    """The tensor as any user of zarr-python would read it, from the JSON of the records on."""
    (batch,) = (path / "segments").glob("*/0")
    records = zarr.open_array(batch / "records", mode="r")
    line = np.asarray(records[:]).tobytes().splitlines()[0]
    location, _, row = json.loads(line)["before"][tensor]["location"].partition("#")
    array = zarr.open_array(path / "segments" / location, mode="r")
    return np.asarray(array[int(row)] if row else array[...])


def by_tensorstore(path: Path, tensor: str) -> NDArray[np.generic]:
    with Store.open(path) as store:
        location = store.records[0].before[tensor].location
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path / location.array}/"}}
    found = tensorstore.open(spec, read=True).result().read().result()
    return np.asarray(found if location.row is None else found[location.row])


@pytest.mark.every(2)
@pytest.mark.parametrize("level", [None, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_pattern_by_three_readers(tmp_path: Path, layout: str, level: int | None) -> None:
    patterns = bit_patterns()
    tensors = {name: from_bits(bits.copy(), name) for name, bits in patterns.items()}
    path = tmp_path / "s.zarr"
    write_one(path, tensors, Compression(level), LAYOUTS[layout])
    ours = read_all(path)
    for name, bits in patterns.items():
        assert ours[name].dtype == tensors[name].dtype
        seen = ours[name].view(torch.uint8) if ours[name].dtype != torch.bool else ours[name]
        assert raw(seen.numpy()) == raw(bits), name
        assert raw(plain_zarr(path, name)) == raw(bits), name
        assert raw(by_tensorstore(path, name)) == raw(bits), name


@pytest.mark.every(3)
@pytest.mark.parametrize("level", [None, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "shape",
    [(), (1,), (0,), (0, 4), (3, 0, 5), (7, 33), (1, 5000), (9, 7, 129), (2, 3, 5, 7, 11), (513, 3)],
)
def test_every_shape_by_three_readers(
    tmp_path: Path, layout: str, level: int | None, shape: tuple[int, ...]
) -> None:
    tensor = torch.empty(shape).copy_(randn(*shape) if shape else torch.tensor(float("-inf")))
    path = tmp_path / "s.zarr"
    write_one(path, {"t": tensor}, Compression(level), LAYOUTS[layout])
    for found in (read_all(path)["t"].numpy(), plain_zarr(path, "t"), by_tensorstore(path, "t")):
        assert found.shape == shape
        assert raw(found) == raw(tensor.numpy())


def test_strided_tensors(tmp_path: Path) -> None:
    base = randn(64, 64, 8)
    views = {
        "transposed": base.transpose(0, 1),
        "stepped": base[::3, 1::2],
        "expanded": base[:1].expand(16, 64, 8),
        "offset": base.as_strided((4, 5), (4096, 7), 1000),
    }
    path = tmp_path / "s.zarr"
    write_one(path, views)
    with Store.open(path) as store:
        for name, handle in store.records[0].before.items():
            assert torch.equal(handle.read(), views[name])
            assert handle.meta.caller_strides == views[name].stride()
            assert handle.meta.caller_offset == views[name].storage_offset()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("level", [None, 1])
def test_rows_of_axis_0(tmp_path: Path, layout: str, level: int | None) -> None:
    tensors = {"long": randn(57, 41), "wide": randn(3, 40, 41), "line": randn(999)}
    path = tmp_path / "s.zarr"
    write_one(path, tensors, Compression(level), LAYOUTS[layout])
    with Store.open(path) as store:
        for name, handle in store.records[0].before.items():
            last = tensors[name].shape[0]
            for start, stop in [(0, last), (0, 1), (last - 1, last), (1, last - 1), (2, 2), (last, last)]:
                assert torch.equal(handle.read_rows(start, stop), tensors[name][start:stop])


def test_a_zip_reads_the_same(tmp_path: Path) -> None:
    tensors = {"big": randn(300, 17).bfloat16(), "small": randn(3), "empty": torch.empty(0, 2)}
    path = tmp_path / "s.zarr"
    write_one(path, tensors)
    inside = shutil.make_archive(str(tmp_path / "inside"), "zip", path)
    named = shutil.make_archive(str(tmp_path / "named"), "zip", tmp_path, "s.zarr")
    for archive in (Path(inside), Path(named)):
        found = read_all(archive)
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_walking_a_finished_store_warns_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.zarr"
    write_one(path, {"big": randn(300, 17), "small": randn(3)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        members = dict(zarr.open_group(path, mode="r").members(max_depth=None))
    arrays = {name.split("/")[-1]: node for name, node in members.items() if isinstance(node, zarr.Array)}
    assert sorted(name.split(".")[0] for name in arrays) == ["float32", "float32", "records"]
    assert {entry.name for entry in path.iterdir()} == {"zarr.json", "segments"}


def test_arrays_describe_themselves_to_any_reader(tmp_path: Path) -> None:
    path = tmp_path / "s.zarr"
    held = randn(4, 300).bfloat16().t()
    write_one(path, {"t": held})
    with Store.open(path) as store:
        handle = store.records[0].before["t"]
    array = zarr.open_array(path / handle.location.array, mode="r")
    assert array.attrs["gdnbench"] == {
        "dtype": "bfloat16",
        "stored_as": "uint16",
        "digests": [handle.digest],
        "axes": [["d0", "d1"]],
        "caller_shapes": [[300, 4]],
        "caller_strides": [[1, 300]],
        "caller_offsets": [0],
    }
    assert array.fill_value == 0


def test_axes_are_dimension_names_to_any_reader(tmp_path: Path) -> None:
    """Of rows those that all of them have; a name that a tensor has twice gets a number."""
    path = tmp_path / "s.zarr"
    axes = {"q": ("T", "K"), "v": ("T", "V"), "square": ("C", "C"), "scalar": ()}
    tensors = {"q": randn(2, 3), "v": randn(2, 3, seed=1), "square": randn(4, 4), "scalar": torch.tensor(0.5)}
    drafts = {name: TensorDraft(tensor, meta_of(tensor, axes[name])) for name, tensor in tensors.items()}
    drafts["large"] = TensorDraft(randn(40, 41), meta_of(randn(40, 41), ("N", "D")))
    with StoreWriter(path, kind="capture", chunking=TINY) as out:
        out.write("0", [RecordDraft(info(), drafts, {})])
    found = {}
    for file in path.rglob("*/zarr.json"):
        if json.loads(file.read_text())["node_type"] == "array":
            folder = {"driver": "file", "path": str(file.parent)}
            array = tensorstore.open({"driver": "zarr3", "kvstore": folder}).result()
            found[file.parent.name[:13]] = array.domain.labels
            names = tuple(label or None for label in array.domain.labels)
            assert zarr.open_array(file.parent, mode="r").metadata.dimension_names == names
    assert found == {
        "records": ("byte",),
        "float32.2x3": ("row", "T", ""),
        "float32.4x4": ("row", "C", "C_2"),
        "float32.scala": ("row",),
        "float32.40x41": ("N", "D"),
    }
    assert verify(path).ok


@pytest.mark.parametrize("level", [None, 1])
def test_chunks_of_zeros_are_written(tmp_path: Path, level: int | None) -> None:
    path = tmp_path / "s.zarr"
    write_one(path, {"t": torch.zeros(100, 41)}, Compression(level), LAYOUTS["no shards"])
    array = zarr.open_array(array_path(path, "t"), mode="r")
    assert array.nchunks_initialized == array.nchunks > 1


def test_our_plain_chunk_files_are_those_that_zarr_writes(tmp_path: Path) -> None:
    """The same array through zarr's own writer, from our metadata: the files are equal byte for byte.

    Equal, not only equivalent: both put the chunks of a shard in the order of its index for these shapes.
    """
    tensor = randn(1000, 33)
    path = tmp_path / "s.zarr"
    write_one(path, {"t": tensor}, PLAIN, TINY)
    ours = array_path(path, "t")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "zarr.json").write_bytes((ours / "zarr.json").read_bytes())
    array = zarr.open_array(theirs, mode="r+", config={"write_empty_chunks": True})
    array[...] = tensor.numpy()
    files = sorted(file.relative_to(theirs) for file in theirs.rglob("*") if file.is_file())
    assert files == sorted(file.relative_to(ours) for file in ours.rglob("*") if file.is_file())
    assert len(files) > 10
    for file in files:
        assert (ours / file).read_bytes() == (theirs / file).read_bytes()
