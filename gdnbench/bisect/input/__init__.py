# SPDX-License-Identifier: Apache-2.0
"""Shrinks a failing record to the smallest that still fails in the same way, then simplifies its values.

`..ddmin` searches on one axis, `shrinker` goes over the axes of the operation and over values, `probing`
tests whether a candidate still fails, `failure` decides what counts as the same failure, `layout` keeps
strides that matter, `result` writes the record as a store, `script` as a Python file.
"""
