# SPDX-License-Identifier: Apache-2.0
"""Timing that can be believed: kernels compared in one process, in turn, on the same fresh buffers."""
