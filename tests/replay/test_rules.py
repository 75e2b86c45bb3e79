# SPDX-License-Identifier: Apache-2.0
"""Rules of single tensors: each has the results that a replay under its rule alone has of it."""

from __future__ import annotations

import re

from gdnbench.judge.block_stats import Tolerance
from gdnbench.judge.rule import Bitwise, Bound
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store
from tests.messages import wording


def test_each_tensor_has_the_results_of_its_own_rule(store: Store) -> None:
    rules = {"o": Bitwise(), "gdn_decode.o": Tolerance(1e-1), "final_state": Bound(0.0, {})}
    mixed = replay(store, records=[0, 1], rules=rules)
    alone = {
        "default": replay(store, records=[0, 1]),
        "bitwise": replay(store, records=[0, 1], bitwise=True),
        "tol": replay(store, records=[0, 1], tol=(1e-1, 0.0)),
        "k": replay(store, records=[0, 1], k=0.0),
    }
    expected = {
        ("gdn_prefill", "o"): "bitwise",
        ("gdn_prefill", "final_state"): "k",
        ("gdn_decode", "o"): "tol",
        ("gdn_decode", "state"): "default",
    }
    for number, record in enumerate(mixed.records):
        for place, tensor in enumerate(record.tensors):
            theirs = alone[expected[record.op, tensor.tensor]].records[number].tensors[place]
            assert tensor == theirs, (record.op, tensor.tensor)
    # Torch's own kernel rounds, so its bits are not those of the oracle.
    assert [record.outcome for record in mixed.records] == [Outcome.MISMATCH, Outcome.PASS]
    rule = wording("judge.rule", k=2, others="")
    assert re.match(rule + re.escape("; o: bitwise; gdn_decode.o: |x - y| <= 0.1"), mixed.rule)
