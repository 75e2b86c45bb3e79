"""Heatmaps of errors as text, for a terminal or a pipe."""
