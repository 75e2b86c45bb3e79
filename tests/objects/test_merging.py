# SPDX-License-Identifier: Apache-2.0
"""Stores below a URL merged with one in a folder."""

from __future__ import annotations

from pathlib import Path

from gdnbench.store.merge import merge
from gdnbench.store.reader import Store
from gdnbench.store.verify import verify
from tests.objects.object_samples import as_objects, contents, make_store
from tests.objects.s3_bucket import Bucket


def test_a_store_below_a_url_is_merged(bucket: Bucket, tmp_path: Path) -> None:
    there, out = make_store(tmp_path / "there.zarr"), tmp_path / "out.zarr"
    as_objects(there, bucket.url)
    for already in (0, 2):  # once more takes nothing twice
        with Store.open(bucket.url) as store:
            report = merge(out, [store])
        assert (report.segments, report.already, report.refused) == (2 - already, already, [])
    assert verify(out).ok
    with Store.open(out) as merged, Store.open(there) as original:
        assert contents(merged) == contents(original)
