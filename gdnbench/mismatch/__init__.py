# SPDX-License-Identifier: Apache-2.0
"""`gdnbench capture --on-mismatch`: records calls beside the store, judges them in another process while the
program runs, and keeps those whose outputs differ from the reference.
"""
