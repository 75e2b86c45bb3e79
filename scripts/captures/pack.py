# SPDX-License-Identifier: Apache-2.0
"""Packs a store into one file, which every command reads as it reads the folder.

    python scripts/captures/pack.py STORE.zarr STORE.zarr.zip

Members are stored, not deflated: their chunks are compressed already. Sorted names and fixed dates make the
archive of one store the same bytes each time.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

EARLIEST = (1980, 1, 1, 0, 0, 0)  # the first date a zip can hold


def pack(store: Path, archive: Path) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:
        for path in sorted(path for path in store.rglob("*") if path.is_file()):
            name = path.relative_to(store).as_posix()
            packed.writestr(zipfile.ZipInfo(name, EARLIEST), path.read_bytes())


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]))
