# SPDX-License-Identifier: Apache-2.0
"""Shared by gdn_prefill and kda_prefill; no operation of its own."""
