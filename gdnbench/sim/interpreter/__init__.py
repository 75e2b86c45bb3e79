# SPDX-License-Identifier: Apache-2.0
"""The readable definition of every instruction: NumPy, 32 lanes wide."""
