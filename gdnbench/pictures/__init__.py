"""Pictures of runs beside the page: heatmaps in a terminal, and PNG files."""
