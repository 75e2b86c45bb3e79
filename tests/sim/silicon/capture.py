# SPDX-License-Identifier: Apache-2.0
"""The stored answers: one npz per family under `vectors/`, with what ran them.

A row of an answer is stored as its XOR with the row before (roundings of one operation differ in few
bits) and split into byte planes, which the archive then compresses to a small part. Members are
`<kernel>/<buffer>` and, for tensor maps, `<kernel>/<parameter>`: the driver's 128 bytes with the tensor's
address cleared.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.sim.silicon.microkernel import Array

FOLDER = Path(__file__).parent / "vectors"


def pack(rows: Array) -> npt.NDArray[np.uint8]:
    """(rows, n) of k-byte words -> (k, rows, n) bytes."""
    changes = rows.copy()
    changes[1:] ^= rows[:-1]
    planes = np.ascontiguousarray(changes).view(np.uint8).reshape(*rows.shape, rows.dtype.itemsize)
    return np.ascontiguousarray(planes.transpose(2, 0, 1))


def unpack(planes: npt.NDArray[np.uint8]) -> Array:
    size = planes.shape[0]
    words = np.ascontiguousarray(planes.transpose(1, 2, 0)).view(f"<u{size}")[..., 0]
    return np.bitwise_xor.accumulate(words, axis=0)


@dataclass(slots=True)
class Capture:
    """A family's answers. `about` says GPU, driver, date and each kernel's fingerprint."""

    about: dict[str, Any]
    answers: dict[str, Array] = field(default_factory=dict)
    tensor_maps: dict[str, bytes] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """A fixed date in the archive: the same answers make the same file."""
        members: dict[str, Array] = {name: pack(rows) for name, rows in self.answers.items()}
        members |= {name: np.frombuffer(data, np.uint8) for name, data in self.tensor_maps.items()}
        members["about"] = np.array(json.dumps(self.about, sort_keys=True))
        with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
            for name, array in members.items():
                content = BytesIO()
                np.save(content, array, allow_pickle=False)
                archive.writestr(zipfile.ZipInfo(f"{name}.npy"), content.getvalue(), zipfile.ZIP_LZMA)


def load(family: str, folder: Path = FOLDER) -> Capture:
    with np.load(folder / f"{family}.npz", allow_pickle=False) as archive:
        capture = Capture(json.loads(str(archive["about"])))
        for name in archive.files:
            array = archive[name]
            if array.ndim == 3:
                capture.answers[name] = unpack(array)
            elif array.ndim == 1:
                capture.tensor_maps[name] = array.tobytes()
    return capture
