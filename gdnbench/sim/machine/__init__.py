"""Everything of an SM that is not a register: memories, barriers, copy engines, tensor cores, the scheduler."""
