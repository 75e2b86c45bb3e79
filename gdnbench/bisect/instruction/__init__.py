"""The instruction axis: two versions of a CuTe DSL kernel in the simulator, and the first value that differs
beyond rounding.

`survey` finds the launch and the CTA, with `watching` in processes that `worker` runs; value traces of that
CTA are then aligned by Python statement (`statements`, `alignment`), and `compare` says where they part.
"""
