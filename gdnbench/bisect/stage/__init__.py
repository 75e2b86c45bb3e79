"""Which stage first goes wrong: what each adds to the error, and what it inherits.

`chain` runs a kernel's steps with exact stages put in, `place` finds where a stage is off, `probe` asks one
question about one record in a process of its own, `find` asks them all, `text` says what came of it.
"""
