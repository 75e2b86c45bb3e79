"""Puts the folder above in reach: `silicon` is a package for the tests and for the recording script."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
