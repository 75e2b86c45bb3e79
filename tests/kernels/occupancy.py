# SPDX-License-Identifier: Apache-2.0
"""How many CTAs of a compiled kernel an SM of sm_90 holds, by the figures of its program."""

from __future__ import annotations

from gdnbench.kernel_figures import Figures
from gdnbench_kernels.plan import CTA_SMEM, SM_SMEM

SM_REGISTERS = 65_536
SM_CTAS = 32


def resident(figure: Figures) -> int:
    """CTAs at once."""
    registers = -(-figure.registers // 8) * 8
    return min(SM_CTAS, SM_REGISTERS // (figure.threads * registers), SM_SMEM // (figure.smem + CTA_SMEM))
