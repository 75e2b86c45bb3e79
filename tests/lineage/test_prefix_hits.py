# SPDX-License-Identifier: Apache-2.0
"""Prefix-cache hits between the chunks of a prompt: no read is accused."""

from __future__ import annotations

import random

import pytest

from gdnbench.lineage.check import check_chain
from gdnbench.lineage.finding import Unknown
from tests.lineage.logs import Engine, Options, Request, subset
from tests.lineage.streams import online_findings
from tests.lineage.test_states import findings_of
from tests.seeds import drawn, fresh

SHAPES = [Options(drafts=drafts, prefixes=prefixes) for drafts in (False, True) for prefixes in (True, False)]


class HittingEngine(Engine):
    """Before a chunk of a prompt it may find a cached state further on, or another one of the same tokens,
    which another batch rounded otherwise. `hits`: how often in the middle of a prompt."""

    hits = 0

    def prefill(self, batch: list[Request]) -> None:
        for request in batch:
            known = [
                prefix
                for prefix in self.cached
                if request.done <= len(prefix) < len(request.tokens)
                and tuple(request.tokens[: len(prefix)]) == prefix
            ]
            if known and self.random.random() < 0.6:
                prefix = self.random.choice(known)
                self.hits += request.done > 0
                self.pool[request.slot] = self.cached[prefix]
                request.done = len(prefix)
        super().prefill(batch)


def check(seed: int, options: Options) -> int:
    """The number of hits. The engine begins with the log, so that all hits are on recorded states. The hash
    of a state is known once its request has read it, which a hit may have kept it from."""
    engine = HittingEngine(seed, options).run(60)
    table = engine.table()
    chosen = random.Random(seed)
    for part in (table, subset(table, lambda call: chosen.random() < 0.9)):
        assert findings_of(part) == []
        assert online_findings(part) == []
    (chain,) = table.by_chain()
    result = check_chain(chain)
    assert set(result.unknown) <= {Unknown.NO_PREFIX}
    assert result.right == result.reads - result.unknown.total()
    return engine.hits


@pytest.mark.parametrize("seed", [1, fresh(drawn("hits in the middle of a prompt"))])
@pytest.mark.parametrize("options", SHAPES)
def test_a_hit_in_the_middle_of_a_prompt(options: Options, seed: int) -> None:
    assert sum(check(seed + one, options) for one in range(3)) > 5


@pytest.mark.slow
@pytest.mark.parametrize("options", SHAPES)
def test_many_hits_in_the_middle_of_a_prompt(options: Options) -> None:
    for seed in range(100, 200):
        check(seed, options)
