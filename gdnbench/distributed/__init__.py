"""Replays a store on many workers: processes of this machine, or the workers of a Dask scheduler."""
