# SPDX-License-Identifier: Apache-2.0
"""Copies of stores to give away: without private metadata, and checked by replay to show the same failure."""
