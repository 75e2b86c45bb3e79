# SPDX-License-Identifier: Apache-2.0
"""The instruction axis: runs two versions of a CuTe DSL kernel on the simulator and finds the first value
that differs beyond rounding.

`launches` finds the launch, and `watching` the CTA, in processes that `worker` runs. Value traces of that CTA
are aligned by Python statement (`gdnbench.diff.traces`), and `compare` finds where they part.
"""
