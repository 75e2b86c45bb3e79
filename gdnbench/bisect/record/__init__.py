# SPDX-License-Identifier: Apache-2.0
"""Finds the first bad captured call, and whether its error starts there or arrives with its state.

`links` finds which call left the state that another call gets, `rollout` runs calls one after another on a
kernel's own states, `drift` finds where the error of those states is too large, `find` runs the whole
bisection, `text` prints the answer.
"""
