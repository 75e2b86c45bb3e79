# SPDX-License-Identifier: Apache-2.0
"""CuTe DSL is needed to compile what these tests capture; the kernels stand in a file beside them."""

from __future__ import annotations

import pytest

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")
