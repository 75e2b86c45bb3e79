"""Value traces as Zarr stores: what the simulated warps of chosen CTAs computed, instruction by instruction.

`layout` names what is in one, `watching` is the watch that has launches recorded, `writer` writes, `reader`
reads from any event on.
"""
