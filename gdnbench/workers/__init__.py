# SPDX-License-Identifier: Apache-2.0
"""Worker processes: started, asked over pipes with a time limit, and killed together with their parent.

`process` has the two ends of one worker process, `restarting` keeps one alive for its caller, `python_code`
runs code in a Python that has no gdnbench, and `dask_pool` with `dask_dispatch` spread tasks over many.
"""
