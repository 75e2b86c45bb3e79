# SPDX-License-Identifier: Apache-2.0
"""Replays a store on many workers: processes of this machine, or the workers of a Dask scheduler."""
