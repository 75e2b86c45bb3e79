# SPDX-License-Identifier: Apache-2.0
"""Finds where a numerical regression comes from: the stage, record, commit, package, input or instruction.

Each axis sends probes and narrows by their verdicts. `trial` is the probe that replays, `verdict` its result,
`workers` run probes in worker processes. `verdict_cache` stores verdicts, `search` narrows a line of
candidates, `flakiness` detects endpoints that cannot be bisected, `session` is a bisection on disk that can
be resumed. Each axis has a folder: `stage`, `record`, `commit`, `env`, `input`, `instruction`.
"""
