"""All of an SM that is no register: memories, barriers, copy engines, tensor cores, the scheduler."""
