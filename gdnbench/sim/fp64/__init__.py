# SPDX-License-Identifier: Apache-2.0
"""A kernel's own arithmetic in fp64: every float of a launch with a shadow in double precision. This is
shadow execution, as of FpDebug (Benz, Hildebrandt and Hack, PLDI 2012) and Herbgrind (Sanchez-Stern et al.,
PLDI 2018), for PTX.

The interpreter runs the kernel as it is. Beside each register, and each byte of shared, global, local and
tensor memory, is a cell (`machine.shadow_cells`) for the number that the kernel would have there if it never
rounded. Float arithmetic, conversions between float formats, and products of the tensor core compute it anew
in double; whatever moves bits moves it along; comparisons, conversions to integers and roundings to integers
take the kernel's own values, so that the path is that of the real run. `bit_arithmetic.py` says which shadows
arithmetic on bits keeps. Where an instruction is not understood, its result has no shadow, the kernel's own
number stands for it, and `LostShadows` counts that.
"""
