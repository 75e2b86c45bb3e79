# SPDX-License-Identifier: Apache-2.0
"""Counts and traces of a simulated launch."""
