"""Which commit of a git repository made a kernel wrong.

`repository` asks git, `relevant` says which trees a kernel's verdict depends on, `worktree` has the files of
one revision after another, `probe` replays there, `search` walks the graph of commits, `axis` is all of it.
"""
