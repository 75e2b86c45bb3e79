# SPDX-License-Identifier: Apache-2.0
"""Finds the stage that first goes wrong, by the error that each stage adds and the error that it inherits.

`chain` runs a kernel's steps with exact stages put in, `place` finds the wrong element of a stage, `probe`
answers one question about one record in a worker process, `find` runs the whole bisection, `text` prints the
answer.
"""
