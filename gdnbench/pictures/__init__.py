"""Charts of runs: heatmaps in a terminal, and PNG files."""
