"""The tests, and helpers of theirs: `from tests.kernels import swa_calls`."""
