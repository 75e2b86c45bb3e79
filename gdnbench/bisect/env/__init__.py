"""Which package, and which of its versions, made a kernel wrong.

`requirements` are what is asked for, `environments` makes virtual environments of them, `narrow` finds the
packages, `axis` is all of it.
"""
