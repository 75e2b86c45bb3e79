"""Finds where a numerical regression comes from: the stage, record, commit, package, input or instruction.

Each axis asks the same kind of question, a probe, and narrows by its verdicts: `verdict` and `trial` are what
is asked and answered, `ledger` keeps answers by content, `search` narrows a line of candidates, `steady` says
whether an end can be bisected at all, `session` is a bisection on disk that can be gone on with. An axis is a
module or folder of its own: `stage`, `record`, `commit`, `env`, `input`, `instruction`.
"""
