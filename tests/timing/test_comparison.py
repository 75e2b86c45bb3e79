# SPDX-License-Identifier: Apache-2.0
"""The loop over blocks: orders, placements, disturbances, and every way it ends."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.timing.comparison import (
    DisturbedError,
    Progress,
    RoundError,
    compare,
    orders,
    plan,
    runs_of_pass,
)
from gdnbench.timing.conditions import UnknownWatch
from gdnbench.timing.result import End
from gdnbench.timing.statistics import Rule, Verdict
from gdnbench.timing.types import Conditions
from tests.messages import wording
from tests.timing.synthetic import Machine, Noise, Quiet, Synthetic, White, kernels

FINE = Rule(resolution=0.0)


def white(seed: int = 0, speeds: tuple[float, ...] = (1.0, 1.05), placements: int = 8) -> list[Synthetic]:
    return kernels(Machine(White(random.Random(seed))), speeds, placements)


class Scripted(Quiet):
    """Sees `looks` in turn, and nothing amiss after them."""

    def __init__(self, looks: Iterator[Conditions]) -> None:
        self.looks = looks

    def now(self) -> Conditions:
        return next(self.looks, Conditions(clock=1980))


class Ticking:
    """A clock that goes on by a second each time it is read, and by what is slept."""

    def __init__(self) -> None:
        self.time = 0.0
        self.slept: list[float] = []

    def now(self) -> float:
        self.time += 1
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


@pytest.mark.parametrize("count", range(1, 9))
def test_orders_are_balanced(count: int) -> None:
    """Every kernel equally often at every place and after every other; all reverses are there."""
    found = orders(count)
    assert all(sorted(order) == list(range(count)) for order in found)
    assert len(set(found)) == len(found)
    places = Counter((place, kernel) for order in found for place, kernel in enumerate(order))
    assert len(places) == count * count
    assert len(set(places.values())) == 1
    after = Counter(pair for order in found for pair in itertools.pairwise(order))
    assert len(after) == count * (count - 1)
    assert len(set(after.values())) <= 1
    assert {tuple(reversed(order)) for order in found} == set(found)
    if count <= 3:
        assert set(found) == set(itertools.permutations(range(count)))


@pytest.mark.parametrize(("placements", "runs"), [(1, 10), (3, 12), (5, 10), (6, 6), (16, 16)])
def test_a_pass_goes_over_all_placements_and_is_long_enough(placements: int, runs: int) -> None:
    assert runs_of_pass(placements) == runs


def test_rounds_are_made_in_the_blocks_orders_on_their_placements() -> None:
    subjects = white()
    found = compare(subjects, replace(FINE, warmup=2), Quiet())
    names = [subject.name for subject in subjects] + ["kernel0"]
    warm = [(name, placement) for placement in range(8) for _ in range(2) for name in names]
    measured = [(names[kernel], block.placement) for block in found.blocks for kernel in block.order]
    assert subjects[0].machine.log == warm + measured
    # Every run: one placement, all 6 orders of the two kernels and the repeat once; runs go round placements.
    for run, blocks in itertools.groupby(found.blocks, key=lambda block: block.run):
        kept = list(blocks)
        assert {block.placement for block in kept} == {run % 8}
        assert {block.order for block in kept} == set(itertools.permutations(range(3)))
    # Each run in a sequence of its own; two of 720 in a row are the same once in 720, and this seed has none.
    sequences = [
        [block.order for block in blocks]
        for _, blocks in itertools.groupby(found.blocks, lambda block: block.run)
    ]
    assert all(one != other for one, other in itertools.pairwise(sequences))


def test_samples_are_the_rounds_of_their_blocks() -> None:
    """A kernel's time is its number and the round's: each sample must lie at its block and kernel."""

    class Counting(Noise):
        def factor(self, kernel: int, placement: int, rounds: int) -> float:
            return 1 + rounds

    subjects = kernels(Machine(Counting(random.Random(0))), [1.0, 1.0])
    rule = Rule(blocks=12, warmup=0, resolution=0.0)
    found = compare(subjects, rule, Quiet())
    samples = (*found.samples, found.repeat_samples)
    for index, block in enumerate(found.blocks):
        for place, kernel in enumerate(block.order):
            assert samples[kernel][index] == pytest.approx(1e-5 * (1 + 3 * index + place))
    assert (found.end, len(found.blocks), found.launches) == (End.BLOCKS, 12, (100, 100))
    assert found.summaries[0].count == 12


def test_pairs_are_against_the_first() -> None:
    found = compare(white(4, (1.0, 1.0, 1.1)), FINE, Quiet())
    assert [(pair.first, pair.other) for pair in found.pairs] == [
        ("kernel0", "kernel1"),
        ("kernel0", "kernel2"),
    ]
    assert [pair.verdict for pair in found.pairs] == [Verdict.NO_DIFFERENCE, Verdict.SLOWER]
    assert found.repeat is not None
    assert (found.repeat.first, found.repeat.other) == ("kernel0", "kernel0")
    assert found.repeat.verdict is Verdict.NO_DIFFERENCE
    reached = found.pairs[1].within
    assert reached is not None
    assert 0.0953 < reached < 0.0953 + 0.01  # ln 1.1, and the interval is at most 1 % wide
    assert compare(white(4, (1.0, 0.9)), FINE, Quiet()).pairs[0].verdict is Verdict.FASTER


def test_a_repeat_that_differs_widens_the_margin() -> None:
    """A machine that runs the repeat of the first kernel 4 % faster than the kernel itself, always."""
    turn = (kernel for block in plan(3, 8) for kernel in block.order)

    class Partial(Noise):
        def factor(self, kernel: int, placement: int, rounds: int) -> float:
            return {0: 1.0, 1: 1.0, 2: 0.96}[next(turn)]

    first, other = kernels(Machine(Partial(random.Random(0))), [1.0, 0.97])
    found = compare([first, other], replace(FINE, warmup=0), Quiet())
    assert found.repeat is not None
    assert found.repeat.verdict is Verdict.FASTER
    # A difference of 3 % is none on a machine that shows 4 % between a kernel and itself.
    assert found.pairs[0].margin == pytest.approx(0.040822, abs=1e-6)  # -ln 0.96
    assert found.pairs[0].verdict is Verdict.NO_DIFFERENCE


def test_without_a_repeat_there_is_none() -> None:
    found = compare(white(), replace(FINE, repeat=False), Quiet())
    assert found.repeat is None
    assert found.repeat_samples == ()
    assert {block.order for block in found.blocks} == {(0, 1), (1, 0)}
    assert found.pairs[0].verdict is Verdict.SLOWER
    assert found.end is End.PRECISE


@pytest.mark.parametrize("repeat", [True, False])
def test_one_kernel_alone(repeat: bool) -> None:
    found = compare(white(speeds=(1.0,)), replace(FINE, repeat=repeat), Quiet())
    assert found.pairs == ()
    assert found.end is End.PRECISE
    assert found.summaries[0].median == pytest.approx(1e-5, rel=0.01)  # noise of 2 %, over 64 rounds: 0.3 %
    assert (found.repeat is not None) == repeat


def test_disturbed_blocks_are_measured_again_and_counted() -> None:
    # Looks of a block of three rounds: four. The first block is throttled, the third has another process.
    quiet, hot = Conditions(clock=1980), Conditions(clock=1980, throttled=("SwPowerCap",))
    busy = Conditions(clock=1980, others=(77,))
    looks = [quiet, quiet, hot, quiet, *[quiet] * 4, *[busy] * 4]
    clock = Ticking()
    rule = Rule(blocks=6, warmup=0, seconds=1e9)
    subjects = white()
    found = compare(subjects, rule, Scripted(iter(looks)), now=clock.now, sleep=clock.sleep)
    throttled, shared = found.discarded
    assert re.fullmatch(wording("timing.slowed-down", reason="SwPowerCap"), throttled)
    assert re.fullmatch(wording("timing.process-computes", process=77), shared)
    assert (found.discarded[throttled], found.discarded[shared]) == (1, 1)
    assert len(found.blocks) == 6
    assert all(len(samples) == 6 for samples in (*found.samples, found.repeat_samples))
    assert {block.order for block in found.blocks} == set(orders(3))  # the discarded ones' too
    assert len(subjects[0].machine.log) == 8 * 3
    assert clock.slept == [0.05, 0.05]
    assert found.conditions.highest.throttled == ("SwPowerCap",)
    assert found.conditions.highest.others == (77,)


def test_disturbed_blocks_are_kept_on_a_machine_that_is_never_quiet() -> None:
    """Of the first block two attempts are measured again; the third and all later blocks count."""
    rule = Rule(blocks=6, warmup=0, discards=3, keep_disturbed=True, seconds=1e9)
    hot, clock = itertools.repeat(Conditions(throttled=("HwSlowdown",))), Ticking()
    found = compare(white(), rule, Scripted(hot), now=clock.now, sleep=clock.sleep)
    (throttled,) = found.disturbed
    assert re.fullmatch(wording("timing.slowed-down", reason="HwSlowdown"), throttled)
    assert (len(found.blocks), found.discarded, found.disturbed) == (6, {throttled: 2}, {throttled: 6})
    assert clock.slept == [0.05, 0.1]


@pytest.mark.parametrize("kept", [True, False])
def test_the_cap_on_seconds_ends_waiting_for_a_quiet_machine(kept: bool) -> None:
    """Every look at the clock is a second: the third block begins within 5 s, and is not measured again."""
    hot = Conditions(throttled=("HwSlowdown",))
    looks = itertools.chain([Conditions()] * 8, itertools.repeat(hot))
    clock, rule = Ticking(), Rule(warmup=0, seconds=5, keep_disturbed=kept)
    if kept:
        found = compare(white(), rule, Scripted(looks), now=clock.now, sleep=clock.sleep)
        assert (found.end, len(found.blocks), *found.disturbed.values()) == (End.SECONDS, 3, 1)
    else:
        with pytest.raises(DisturbedError) as caught:
            compare(white(), rule, Scripted(looks), now=clock.now, sleep=clock.sleep)
        assert len(caught.value.partial.blocks) == 2


def test_a_machine_that_is_never_quiet_ends_it_in_one_line() -> None:
    quiet = [Conditions()] * 8  # two blocks
    hot = itertools.repeat(Conditions(throttled=("SwThermalSlowdown",), others=(5, 6)))
    clock = Ticking()
    rule = Rule(warmup=0, discards=7, seconds=1e9)
    with pytest.raises(DisturbedError) as caught:
        compare(white(), rule, Scripted(itertools.chain(quiet, hot)), now=clock.now, sleep=clock.sleep)
    assert isinstance(caught.value, CannotRunError)
    message = str(caught.value)
    assert "\n" not in message
    assert re.match(
        wording(
            "timing.blocks-in-a-row",
            count=7,
            reasons=re.compile("slowed down: SwThermalSlowdown; process 5.*"),
        ),
        message,
    )
    assert caught.value.partial.end is End.DISTURBED
    assert len(caught.value.partial.blocks) == 2
    assert caught.value.partial.pairs[0].verdict is Verdict.UNKNOWN
    assert clock.slept == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_the_cap_on_seconds_ends_it_between_blocks() -> None:
    clock = Ticking()
    found = compare(white(), Rule(seconds=20), Quiet(), now=clock.now, sleep=clock.sleep)
    assert found.end is End.SECONDS
    # Of readings 1 to 20 s the first begins, 5 are of warming up, which may take a quarter, and one begins
    # the loop, in which there is one a block.
    assert len(found.blocks) == 13
    # 13 blocks are two whole runs of 6 and one block: too few runs for an interval.
    assert found.pairs[0].interval is None
    assert found.pairs[0].verdict is Verdict.UNKNOWN
    assert any("too few blocks" in note for note in found.notes)


def test_warming_up_takes_a_quarter_of_the_seconds() -> None:
    """Of rounds of a minute, say, 3 on each of 8 placements would be waited for, and nothing else be done."""
    clock, subjects = Ticking(), white()
    compare(subjects, Rule(seconds=5, blocks=1), Quiet(), now=clock.now, sleep=clock.sleep)
    # A second a look at the clock, one before each round: 1 round after 1 s, then the 3 of the one block.
    assert len(subjects[0].machine.log) == 1 + 3


def test_a_torn_run_counts_in_the_medians_and_not_in_the_interval() -> None:
    whole = compare(white(7), Rule(blocks=60), Quiet())
    torn = compare(white(7), Rule(blocks=63), Quiet())
    assert torn.pairs[0].interval == whole.pairs[0].interval is not None
    assert torn.summaries[0].count == 63


def test_ctrl_c_keeps_what_was_measured() -> None:
    class Interrupted(Synthetic):
        left = 100

        def round(self, placement: int) -> float:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            return super().round(placement)

    machine = Machine(White(random.Random(1)))
    first = kernels(machine, [1.0])[0]
    found = compare([first, Interrupted("other", 1, 1.5, machine)], FINE, Quiet())
    assert found.end is End.INTERRUPTED
    assert len(found.blocks) == 91  # one round a block after 8 of warming up; the hundredth came to nothing
    assert {len(samples) for samples in (*found.samples, found.repeat_samples)} == {91}
    assert found.pairs[0].verdict is Verdict.SLOWER


def test_a_kernel_that_raises_is_named() -> None:
    class Broken(Synthetic):
        def round(self, placement: int) -> float:
            raise NotImplementedError("head dims of 64")

    machine = Machine(White(random.Random(1)))
    with pytest.raises(RoundError, match="broken: head dims of 64") as caught:
        compare([*kernels(machine, [1.0]), Broken("broken", 1, 1.0, machine)], FINE, Quiet())
    assert caught.value.kernel == "broken"
    assert isinstance(caught.value.__cause__, NotImplementedError)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    class Still(Synthetic):
        def round(self, placement: int) -> float:
            return seconds

    with pytest.raises(CannotRunError, match=wording("timing.clock-too-coarse", kernel="still")):
        compare([Still("still", 0, 1.0, Machine(White(random.Random(0))))], FINE, Quiet())


def test_kernels_on_different_placements_are_refused() -> None:
    with pytest.raises(BadInputError, match=wording("timing.placements-apart", counts="[4, 8]")):
        compare([*white(), *white(placements=4)], FINE, Quiet())
    with pytest.raises(BadInputError, match=wording("timing.placements-apart")):
        compare([], FINE, Quiet())


def test_notes_say_what_is_unknown() -> None:
    found = compare(white(placements=2), FINE, UnknownWatch("there is no NVML"))
    unknown, hold = found.notes
    assert re.fullmatch(wording("timing.conditions-unknown", why="there is no NVML"), unknown)
    assert re.fullmatch(wording("timing.intervals-hold", placements=2, needed=6), hold)
    assert found.conditions.source == "unknown: there is no NVML"
    assert found.pairs[0].interval is not None
    assert found.pairs[0].interval.by == "stretch"
    assert compare(white(), FINE, Quiet()).notes == ()


def test_progress_comes_after_every_pass() -> None:
    seen: list[Progress] = []
    keep: Callable[[Progress], None] = seen.append
    found = compare(white(3), FINE, Quiet(), keep)
    assert [step.blocks for step in seen] == list(range(48, len(found.blocks) + 1, 48))
    narrow = [step.width is not None and step.width <= 0.01 for step in seen]
    assert found.end is End.PRECISE
    # It ends at the first two in a row, of passes at least.
    assert narrow[-2:] == [True, True]
    assert (True, True) not in itertools.pairwise(narrow[:-1])
