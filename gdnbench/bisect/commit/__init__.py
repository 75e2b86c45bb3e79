# SPDX-License-Identifier: Apache-2.0
"""Finds the commit of a git repository that made a kernel wrong, or slower by its predicted time.

`repository` reads from git, `relevant` computes which trees a kernel's verdict depends on, `worktree` checks
out one revision after another, `probe` replays there, `search` narrows the graph of commits, `walk` is what
bisections share, `slower` is the one by predicted times, `axis` runs the whole bisection.
"""
