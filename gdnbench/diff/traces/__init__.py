# SPDX-License-Identifier: Apache-2.0
"""Compares two value traces.

`alignment` matches the executions of one trace with those of the other: by Python statement (`statements`),
or by instruction if both ran the same PTX. `rounding` reads registers as numbers, `judging` decides what
counts as a difference, `compare` finds the first one and `report` prints it. `bisect instruction` uses the
same alignment.
"""
