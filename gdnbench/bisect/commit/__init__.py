"""Finds the commit of a git repository that made a kernel wrong.

`repository` reads from git, `relevant` computes which trees a kernel's verdict depends on, `worktree` checks
out one revision after another, `probe` replays there, `search` narrows the graph of commits, `axis` runs the
whole bisection.
"""
