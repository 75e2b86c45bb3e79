"""A compiled kernel object run against a mock CUDA runtime: what it launches, with which parameters."""
