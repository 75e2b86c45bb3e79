# SPDX-License-Identifier: Apache-2.0
"""Finds the package, and its version, that made a kernel wrong.

`requirements` parses the arguments, `environments` makes virtual environments, `narrow` finds the packages,
`axis` runs the whole bisection.
"""
