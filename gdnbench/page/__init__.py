# SPDX-License-Identifier: Apache-2.0
"""Renders runs as one HTML file that needs no network and no other file.

`document` turns runs into plain values, using `provenance` and `repeat`; `embed` puts the values into the
page such that no value of a store can execute; `build` makes the file from them and from the script and style
in `assets/`.
"""
