# SPDX-License-Identifier: Apache-2.0
"""The files that gdnbench brings along: captures, the list of made records, and a wrong kernel.

A checkout has them at its top, in `captures/` and `suites/`. A wheel has copies below `gdnbench/_shipped/`,
which setup.py makes.
"""

from __future__ import annotations

from pathlib import Path

from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.whole_file import copy_whole

_PACKAGED = Path(__file__).resolve().parent / "_shipped"
ROOT = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).resolve().parents[1]
CAPTURES = ROOT / "captures"
MADE = ROOT / "suites" / "made.toml"
PATTERNS = ("README.md", "wrong_kernel.py", "*.zarr.zip")


def sample_files(source: Path = CAPTURES) -> list[Path]:
    """The files of `gdnbench samples`, in the order of their names. CannotRunError if there is no capture."""
    found = sorted(file for pattern in PATTERNS for file in source.glob(pattern))
    if not any(file.suffix == ".zip" for file in found):
        raise CannotRunError(
            f"{source} has no captures: this installation lacks them; install a wheel or a checkout"
        )
    return found


def copy_samples(folder: Path, source: Path = CAPTURES) -> list[tuple[Path, bool]]:
    """Copy the samples into `folder`, which is made if missing: each file's new path, and whether it was
    copied.

    A file that `folder` already has with the same bytes is not written. BadInputError, and nothing is
    copied, if it has one with other bytes, or if `folder` is a file; BadInputError, too, if a copy cannot be
    written.
    """
    if folder.exists() and not folder.is_dir():
        raise BadInputError(
            f"{folder} is a file; name a folder for the samples, for example `gdnbench samples here`"
        )
    files = sample_files(source)
    kept = {file for file in files if _is_there(folder / file.name, file)}
    place = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            place = folder / file.name
            if file not in kept:
                copy_whole(file, place)
    except OSError as error:  # which may name the sample instead
        raise BadInputError(
            f"{place} cannot be written: {error.strerror}; name a folder elsewhere for the samples"
        ) from None
    return [(folder / file.name, file not in kept) for file in files]


def _is_there(place: Path, file: Path) -> bool:
    if not place.exists():
        return False
    if not place.is_file() or place.read_bytes() != file.read_bytes():
        raise BadInputError(
            f"{place} is there and differs from the sample; name another folder, or move it away"
        )
    return True
