# SPDX-License-Identifier: Apache-2.0
"""Every order of a barrier protocol: the synchronisation events that one run recorded (`events.py`), what
mbarriers and named barriers do with them (`cells.py`), the check of all orders (`orders.py`) and the plain
search through them (`search.py`).

    check(Protocol(events)).verdict is Verdict.PROVED
"""
