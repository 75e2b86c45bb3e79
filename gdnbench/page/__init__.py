"""A report of one or several runs as one HTML file, which needs no network and no other file.

`document` turns runs into plain values, `provenance` and `repeat` parts of them; `embed` puts them
into a page so that no value of a store can act there; `build` makes the file of them and of `assets/`, where
the page's own script and style lie.
"""
