# SPDX-License-Identifier: Apache-2.0
"""The command line, for tests that compare functions with it."""

from tests.cli.conftest import gdnbench as command

__all__ = ["command"]
