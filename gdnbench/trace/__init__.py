# SPDX-License-Identifier: Apache-2.0
"""Value traces as Zarr stores: what the simulated warps of chosen CTAs computed, instruction by instruction.

`layout` names the arrays, `watching` makes the simulator record launches, `writer` writes a trace, and
`reader` reads one from any event on.
"""
