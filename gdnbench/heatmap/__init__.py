# SPDX-License-Identifier: Apache-2.0
"""Heatmaps of errors as text, for a terminal or a pipe."""
