# SPDX-License-Identifier: Apache-2.0
"""Shared by gdn_decode and kda_decode; no operation of its own."""
