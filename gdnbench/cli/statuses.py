# SPDX-License-Identifier: Apache-2.0
"""Exit statuses of the command line beside those of `gdnbench.errors.Exit`."""

from __future__ import annotations

INTERRUPTED = 128 + 2  # as a shell says it of a program that SIGINT ended
NO_VERDICT = 125  # of `git bisect run`: neither good nor bad
