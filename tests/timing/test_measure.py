# SPDX-License-Identifier: Apache-2.0
"""What is timed is what was judged."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gdnbench.ops import operation
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from gdnbench.timing import measure
from gdnbench.timing.comparison import Comparison, compare
from gdnbench.timing.measure import KernelFailed, PreparedWrong, RoundWrong, Session
from gdnbench.timing.options import TimingOptions
from gdnbench.timing.statistics import Rule
from gdnbench.timing.types import Cache, Form, Mode, Subject, Watch
from tests.messages import wording

pytestmark = pytest.mark.alone


KERNELS = Path(__file__).with_name("hostile_kernels.py")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    call = synthesise("gdn_decode", batch=2, heads=(1, 2), head_dim=(16, 16), slots=4)
    with StoreWriter(tmp_path / "store.zarr", kind="synth", durable=False) as writer:
        writer.write("0", [draft("gdn_decode", call)])
    with Store.open(tmp_path / "store.zarr") as opened:
        yield opened


def session() -> Session:
    options = TimingOptions(Mode(Cache.WARM, Form.PLAIN), seconds=0.2)
    return Session("cpu", options, lambda position: contextlib.nullcontext())


def test_a_prepared_launch_that_leaves_other_outputs_is_not_timed(store: Store) -> None:
    here, record = session(), store.records[0]
    honest, idle = f"{KERNELS}:honest", f"{KERNELS}:idle"
    assert here.judge(record, idle, lambda: None).outcome is Outcome.PASS  # its function is right
    timed = here.time(record, operation("gdn_decode"), [honest])
    assert len(timed.kernels[0].samples) > 0
    with pytest.raises(KernelFailed, match=wording("timing.prepared-launch-fails")) as caught:
        here.time(record, operation("gdn_decode"), [honest, idle])
    assert caught.value.kernel == idle
    assert isinstance(caught.value.error, PreparedWrong)


@pytest.mark.parametrize("cache", list(Cache))
def test_rounds_that_do_other_work_on_a_placement_are_no_times(store: Store, cache: Cache) -> None:
    """A fifth faster on one placement of six was once an interval of 27 %, and no word of why."""
    options = TimingOptions(Mode(cache, Form.PLAIN), seconds=0.2)
    here = Session("cpu", options, lambda position: contextlib.nullcontext())
    with pytest.raises(KernelFailed) as caught:
        here.time(store.records[0], operation("gdn_decode"), [f"{KERNELS}:honest", f"{KERNELS}:strays"])
    assert caught.value.kernel == f"{KERNELS}:strays"
    assert isinstance(caught.value.error, RoundWrong)
    assert re.search(wording("timing.placements-differ", placement=2), str(caught.value.error))


def test_a_kernel_whose_bits_differ_each_time_is_timed(store: Store) -> None:
    timed = session().time(store.records[0], operation("gdn_decode"), [f"{KERNELS}:wavers"])
    assert len(timed.kernels[0].samples) > 0


def test_a_verdict_allows_for_the_clock_that_timed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's, whose readings are 0.1 us late at most: see `seam.RESOLUTION`."""
    rules: list[Rule] = []

    def kept(subjects: Sequence[Subject], rule: Rule, watch: Watch, *more: Any) -> Comparison:
        rules.append(rule)
        return compare(subjects, rule, watch, *more)

    monkeypatch.setattr(measure, "compare", kept)
    session().time(store.records[0], operation("gdn_decode"), [f"{KERNELS}:honest"])
    assert [rule.resolution for rule in rules] == [1e-7]
