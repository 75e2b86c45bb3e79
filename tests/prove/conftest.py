# SPDX-License-Identifier: Apache-2.0
"""Small records for tests of `prove`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.prove.samples import replace_made, write_captures


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of two prefill and two decode records that takes the place of suites/made.toml."""
    return replace_made(tmp_path, monkeypatch)


@pytest.fixture
def captures(tmp_path: Path) -> Path:
    """A folder with one capture, of one prefill and one decode record."""
    return write_captures(tmp_path / "captures")
