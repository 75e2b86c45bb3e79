# SPDX-License-Identifier: Apache-2.0
"""The tests, and helpers of theirs: `from tests.kernels import swa_calls`."""
