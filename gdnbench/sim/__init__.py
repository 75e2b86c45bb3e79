"""Executes compiled SM100 kernels, host code and PTX, on a CPU. Start at README.md in this folder."""
