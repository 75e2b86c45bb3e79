"""Counts and traces of a simulated launch."""
