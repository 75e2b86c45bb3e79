# SPDX-License-Identifier: Apache-2.0
"""Stands in for flash-linear-attention: its functions' signatures, computed by the definition."""
