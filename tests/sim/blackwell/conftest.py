"""Puts the folder above in reach, so that `blackwell` and `silicon` are packages for tests and scripts."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
