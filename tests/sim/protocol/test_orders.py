# SPDX-License-Identifier: Apache-2.0
"""The check of all orders against known protocols, and against the plain search on random small ones."""

import random

import pytest

from gdnbench.sim.protocol.events import Act, Event, Kind, Protocol, Shared
from gdnbench.sim.protocol.machine import Machine
from gdnbench.sim.protocol.orders import Verdict, check
from gdnbench.sim.protocol.search import Wrong, search

FULL, EMPTY, BAR = "full", "empty", "bar"


def event(actor, *acts, after=()):
    return Event(actor, tuple(acts), f"actor {actor}: {acts[0].kind.value} {acts[0].barrier}", after)


def arrive(barrier, count=1):
    return Act(Kind.ARRIVE, barrier, count)


def wait(barrier, parity):
    return Act(Kind.WAIT, barrier, parity)


def sync(actors, size, barrier=BAR):
    """bar.sync of warps: all join, all leave."""
    joins = [event(one, Act(Kind.JOIN, barrier, 1, size)) for one in actors]
    return [*joins, *(event(one, Act(Kind.LEAVE, barrier)) for one in actors)]


def began(*inits, warps=2):
    """Warp 0 initialises mbarriers; all warps meet."""
    return [*(event(0, Act(Kind.INIT, name, count)) for name, count in inits), *sync(range(warps), warps)]


def ring(rounds, *, releases=True):
    """Warp 0 fills one slot, warp 1 empties it; without `releases` warp 0 does not wait for that."""
    events = began((FULL, 1), (EMPTY, 1))
    for turn in range(rounds):
        if releases:
            events.append(event(0, wait(EMPTY, turn & 1 ^ 1)))
        events.append(event(0, arrive(FULL)))
        events.append(event(1, wait(FULL, turn & 1)))
        events.append(event(1, arrive(EMPTY)))
    return events


@pytest.mark.parametrize("rounds", [1, 2, 3, 60])
def test_a_ring_of_one_slot_is_proved(rounds):
    assert check(Protocol(ring(rounds))).verdict is Verdict.PROVED


def test_a_producer_that_waits_for_nothing_overtakes_its_consumer():
    """Two fills, and the consumer has not come to the first: it waits for a phase of the wrong parity."""
    found = check(Protocol(ring(2, releases=False)))
    assert found.broken.wrong is Wrong.MISSED
    # init, join and leave of warp 0, join of warp 1: 2 + 3; then two arrivals
    assert len(found.broken.order) == 2 + 3 + 2
    assert found.then.wrong is Wrong.STUCK


def test_one_fill_without_release_is_proved():
    assert check(Protocol(ring(1, releases=False))).verdict is Verdict.PROVED


def test_a_second_arrival_of_one_warp_can_count_for_the_phase_of_another():
    events = [*began((FULL, 2)), event(0, arrive(FULL)), event(1, arrive(FULL))]
    found = check(Protocol([*events, event(0, arrive(FULL)), event(1, arrive(FULL))]))
    assert found.broken.wrong is Wrong.OTHER_PHASE
    assert len(found.broken.order) == 4 + 2


def test_a_wait_for_the_wrong_parity_passes_before_its_phase():
    """Warp 1 waits for phase 1 without a wait for phase 0: before phase 0 is over the parities agree."""
    events = [*began((FULL, 1)), event(0, arrive(FULL)), event(0, arrive(FULL)), event(1, wait(FULL, 1))]
    found = check(Protocol(events))
    assert found.broken.wrong is Wrong.PREMATURE
    assert len(found.broken.order) == 1 + 2 + 1 + 1  # init, joins, leave of warp 1, wait


def test_a_use_without_order_after_the_init_is_undefined():
    events = [event(0, Act(Kind.INIT, FULL, 1)), event(1, arrive(FULL))]
    found = check(Protocol(events))
    assert found.broken.wrong is Wrong.FAULT
    assert found.broken.order == (1,)


def test_bytes_announced_after_the_last_arrival_end_a_phase_twice():
    """arrive, then expect_tx: the phase is over at the arrival, and the bytes count for the next."""
    events = began((FULL, 1))
    events += [event(0, Act(Kind.EXPECT, FULL, 64), arrive(FULL))]
    assert check(Protocol([*events, copy(events)])).verdict is Verdict.PROVED
    early = [*began((FULL, 2)), event(0, arrive(FULL)), event(1, Act(Kind.EXPECT, FULL, 64), arrive(FULL))]
    assert check(Protocol([*early, copy(early)])).verdict is Verdict.PROVED
    # The announcement of another warp is before no arrival: both arrivals can come first.
    late = [*began((FULL, 1), warps=2), event(1, Act(Kind.EXPECT, FULL, 64)), event(0, arrive(FULL))]
    found = check(Protocol([*late, Event(2, (Act(Kind.COMPLETE, FULL, 64),), "copy", (len(late) - 2,))]))
    assert found.broken.wrong is Wrong.OTHER_PHASE


def copy(events):
    """The landing of a copy of 64 bytes that the last event issued."""
    return Event(2, (Act(Kind.COMPLETE, FULL, 64),), "copy", (len(events) - 1,))


def random_program(chance, counts):
    """What one random warp does: each item is the acts of an event, and whether a landing follows it."""
    program, parity = [], {name: chance.choice((0, 0, 1)) for name in counts}
    for _ in range(chance.randrange(1, 5)):
        name, kind = chance.choice((FULL, EMPTY)), chance.random()
        if kind < 0.4:
            program.append(((arrive(name),), ()))
        elif kind < 0.8:
            program.append(((wait(name, parity[name]),), ()))
            parity[name] ^= 1
        elif kind < 0.86:
            program += [((Act(Kind.JOIN, BAR, 1, 2),), ()), ((Act(Kind.LEAVE, BAR),), ())]
        elif kind < 0.9:
            program.append(((Act(Kind.EXPECT, name, 8), arrive(name)), (Act(Kind.COMPLETE, name, 8),)))
        elif kind < 0.94:  # the bytes are announced by themselves
            program.append(((Act(Kind.EXPECT, name, 8),), (Act(Kind.COMPLETE, name, 8),)))
        elif kind < 0.97:
            program.append(((Act(Kind.INCREMENT, name, 1),), (arrive(name),)))
        else:
            program.append(((Act(Kind.INVAL, name),), ()))
            program.append(((Act(Kind.INIT, name, counts[name]),), ()))
    return program


def random_run(seed):
    """A run of random warps on two mbarriers and a named barrier; some wait or arrive wrongly."""
    chance = random.Random(seed)
    warps = chance.choice((2, 2, 3))
    counts = {name: chance.choice((1, 1, 2)) for name in (FULL, EMPTY)}
    programs = [random_program(chance, counts) for _ in range(warps)]
    meet = chance.random() < 0.9
    inits = [event(0, Act(Kind.INIT, name, count)) for name, count in counts.items()]
    events = began(*counts.items(), warps=warps) if meet else inits
    landings, actors = [], warps
    left = dict(enumerate(programs))
    while landings or any(left.values()):  # one event more, if the machine can do it
        choices = [(one, None) for one, program in left.items() if program]
        choices += [(None, landing) for landing in landings]
        chance.shuffle(choices)
        for one, landing in choices:
            acts, lands = left[one][0] if landing is None else (landing[1], ())
            number = one if landing is None else actors
            more = [*events, event(number, *acts, after=() if landing is None else landing[:1])]
            try:
                Machine(Protocol(more))
            except ValueError:
                continue
            events = more
            if landing is None:
                left[one].pop(0)
            else:
                landings.remove(landing)
                actors += 1
            landings += [(len(events) - 1, lands)] if lands else []
            break
        else:
            return None
    return Protocol(events)


def test_the_check_agrees_with_the_plain_search():
    """On random runs: the same verdict and the same length; and where it proves, the search without regard
    to phases finds no order that stops or is undefined."""
    seen = {Verdict.PROVED: 0, Verdict.BROKEN: 0}
    kinds = set()
    for seed in range(400):
        protocol = random_run(seed)
        if protocol is None:
            continue
        found, machine = check(protocol), Machine(protocol)
        plain = search(machine, 1 << 20)
        assert plain.complete
        seen[found.verdict] += 1
        assert (found.broken is None) == (plain.broken is None), seed
        if found.broken is None:
            assert search(machine, 1 << 20, deviations=False).broken is None, seed
        else:
            kinds.add(found.broken.wrong)
            assert len(found.broken.order) == len(plain.broken.order), seed
    assert min(seen.values()) > 20, seen
    assert kinds == {Wrong.OTHER_PHASE, Wrong.PREMATURE, Wrong.MISSED, Wrong.FAULT}


def protocol_with_tail(*, quiet, landing=False):
    """Warp 1 arrives twice at EMPTY with a wait for nothing; warp 0 ends with a wait for its second phase by
    parity 1, which passes before the first is over. `landing`: the second phase also needs a copy, whose
    landing nothing else waits for."""
    empty = Shared(0, 8)
    events = [*began((empty, 1)), event(1, arrive(empty))]
    if landing:
        events += [event(1, Act(Kind.EXPECT, empty, 64), arrive(empty))]
        events += [Event(2, (Act(Kind.COMPLETE, empty, 64),), "the copy lands", (len(events) - 1,))]
    else:
        events += [event(1, arrive(empty))]
    tail = Event(0, (wait(empty, 1),), "the tail", quiet=quiet)
    return Protocol([*events, tail], {0: 0, 1: 0})


def test_a_drain_that_can_pass_early_is_harmless_and_told():
    """Only the end of warp 0 follows the wait, and both arrivals are those of warp 1 of the same CTA."""
    found = check(protocol_with_tail(quiet=True))
    assert found.verdict is Verdict.PROVED
    assert [protocol_with_tail(quiet=True).events[one].text for one in found.drains] == ["the tail"]


def test_a_last_wait_before_an_access_is_no_drain():
    found = check(protocol_with_tail(quiet=False))
    assert found.verdict is Verdict.BROKEN
    assert found.broken.wrong is Wrong.PREMATURE
    assert found.drains == ()


def test_a_drain_that_alone_keeps_the_cta_for_a_landing_is_needed():
    found = check(protocol_with_tail(quiet=True, landing=True))
    assert found.broken.wrong is Wrong.PREMATURE
    assert [protocol_with_tail(quiet=True, landing=True).events[one].text for one in found.exposed] == [
        "the copy lands"
    ]


def pools(programs):
    """Events of one pool in this order: (warp, amount), an acquire if it is below 0."""
    acts = [Act(Kind.RELEASE if amount > 0 else Kind.ACQUIRE, "pool", abs(amount)) for _, amount in programs]
    events = [event(warp, act) for (warp, _), act in zip(programs, acts, strict=True)]
    return Protocol(events, {0: 0, 1: 0})


def test_warps_that_take_what_others_give_first_are_proved():
    assert check(pools([(0, 16), (1, -16)])).verdict is Verdict.PROVED


def test_a_warp_that_takes_before_it_gives_can_stop_the_others():
    """Warp 0 gives 8; warp 1 takes 8 and gives it back; warp 0 takes 8. If warp 0 takes back its own first,
    warp 1 waits for ever."""
    found = check(pools([(0, 8), (1, -8), (1, 8), (0, -8)]))
    assert found.broken.wrong is Wrong.STUCK
    assert found.broken.order == (0, 3)


def test_a_drain_whose_landing_a_later_commit_follows_is_harmless_if_commits_arrive_in_order():
    empty, done = Shared(0, 8), Shared(0, 16)
    events = [*began((empty, 1), (done, 1)), event(1, arrive(empty)), event(1, Act(Kind.RELEASE, "issue"))]
    issue = len(events) - 1
    events += [Event(2, (arrive(empty),), "first commit", (issue,), chain="warp 1")]
    events += [Event(3, (arrive(done),), "second commit", (issue,), chain="warp 1")]
    events += [event(1, wait(done, 0)), Event(0, (wait(empty, 1),), "the tail", quiet=True)]
    found = check(Protocol(events, {0: 0, 1: 0}))
    assert found.verdict is Verdict.PROVED
    assert [events[one].text for one in found.late] == ["first commit"]


def test_an_order_gets_only_the_gifts_that_it_needs():
    """Warp 1 can meet the others once warp 2 has given; then warp 0 overtakes it, as in the ring without
    releases. A second release to the pool comes after all of that."""
    take, give = Act(Kind.ACQUIRE, "pool", 8), Act(Kind.RELEASE, "pool", 8)
    events = [event(2, give), event(1, take), *ring(2, releases=False)]
    found = check(Protocol([*events, event(1, give), event(1, take)]), states=1)
    assert found.broken.wrong is Wrong.MISSED
    assert found.broken.order[:2] == (0, 1)
    # The release, the acquire, and those of `test_a_producer_that_waits_for_nothing_overtakes_its_consumer`.
    assert len(found.broken.order) == 2 + 2 + 3 + 2
