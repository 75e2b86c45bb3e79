"""Comparison of two value traces.

`alignment` says which execution of one is which of the other, by the Python statements of `statements` or,
where both ran one PTX, by instruction; `rounding` reads registers as numbers. `judging` is what counts as a
difference, `compare` finds the first one and `report` says it. `bisect instruction` aligns with the same.
"""
