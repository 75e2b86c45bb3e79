# SPDX-License-Identifier: Apache-2.0
"""Signatures are those of 0.33.0. Folders below without a file of this name are packages all the same."""
