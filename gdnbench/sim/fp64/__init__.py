# SPDX-License-Identifier: Apache-2.0
"""A kernel's own arithmetic in fp64: every float of a launch with a shadow in double precision.

The interpreter runs the kernel as it is. Beside each register, and each byte of shared, global, local and
tensor memory, is a cell (`machine.shadow_cells`) for the number that the kernel would have there if it never
rounded. Float arithmetic, conversions between float formats, and products of the tensor core compute it anew
in double; whatever moves bits moves it along; comparisons, conversions to integers and roundings to integers
take the kernel's own values, so that the path is that of the real run. `follow.py` says what becomes of it in
arithmetic on bits. Where an instruction is not understood, the shadow ends, the kernel's own number stands
for it, and `Losses` counts that.
"""
