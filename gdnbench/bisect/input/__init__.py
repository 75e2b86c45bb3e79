"""Shrinks a record that fails to the smallest that still fails in the same way, then simplifies its values.

`..ddmin` is the search on one axis, `shrinker` goes over the axes that the operation names and over values,
`probing` asks whether a candidate still fails, `failure` what counts as the same, `layout` keeps strides that
matter, `result` writes what is left as a store, `script` as a Python file.
"""
