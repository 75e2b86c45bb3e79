"""The machine: everything of an SM except registers, that is memories, barriers, copy engines, tensor cores
and the scheduler."""
