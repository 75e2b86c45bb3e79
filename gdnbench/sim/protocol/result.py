# SPDX-License-Identifier: Apache-2.0
"""What the check of all orders found, in words and numbers that travel between processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gdnbench.sim.protocol.events import Kind, Protocol
from gdnbench.sim.protocol.machine import Machine, State
from gdnbench.sim.protocol.orders import Checked, Verdict
from gdnbench.sim.protocol.search import Broken, Wrong

_IN_ORDER = "commits of one warp arrive in the order of issue, so before the CTA ends: "
SHOWN = 6
"""The latest events of an order that are printed without `verbose`."""


@dataclass(frozen=True, slots=True)
class WrongOrder:
    """`order` are its events as text, `what` says of the last, or of the wait that is missed, how it differs
    from the run, `ends` how one continuation goes on. `shortest`: no other order is shorter."""

    what: str
    barrier: str
    order: tuple[str, ...]
    stands: tuple[str, ...]
    ends: str
    waiting: tuple[str, ...]
    shortest: bool


@dataclass(frozen=True, slots=True)
class CheckedPart:
    """A CTA, or a cluster whose first CTA has this number. There are at most 10 ** `orders` orders of its
    events. `drains` are the waits that may pass early without harm, `assumed` is what is taken for true."""

    cta: int
    verdict: Verdict
    events: int
    orders: float = 0.0
    wrong: WrongOrder | None = None
    why: str = ""
    drains: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckedLaunch:
    """The launch number `number` of a call, of `grid` CTAs. `parts` are those that were checked; `refused` is
    why there are none."""

    number: int
    entry: str
    grid: int
    parts: tuple[CheckedPart, ...] = ()
    refused: str = ""

    @property
    def broken(self) -> bool:
        return any(part.verdict is Verdict.BROKEN for part in self.parts)

    @property
    def proved(self) -> bool:
        return not self.refused and all(part.verdict is Verdict.PROVED for part in self.parts)

    def as_json(self) -> dict[str, Any]:
        parts = [{**asdict(part), "verdict": part.verdict.name.lower()} for part in self.parts]
        return {**asdict(self), "parts": parts}

    @classmethod
    def from_json(cls, launch: Mapping[str, Any]) -> CheckedLaunch:
        """Read what `as_json` wrote."""
        return cls(**{**launch, "parts": tuple(map(_part_of, launch["parts"]))})


def _part_of(plain: Mapping[str, Any]) -> CheckedPart:
    wrong = plain["wrong"]
    if wrong is not None:
        lists = {name: tuple(wrong[name]) for name in ("order", "stands", "waiting")}
        wrong = WrongOrder(**{**wrong, **lists})
    lists = {name: tuple(plain[name]) for name in ("drains", "assumed")}
    verdict = Verdict[plain["verdict"].upper()]
    return CheckedPart(**{**plain, **lists, "verdict": verdict, "wrong": wrong})


def described(part: int, protocol: Protocol, checked: Checked, assumed: tuple[str, ...] = ()) -> CheckedPart:
    """`checked` in words."""
    return CheckedPart(
        part,
        checked.verdict,
        checked.events,
        orders_bound(protocol),
        None if checked.broken is None else _wrong_order(protocol, checked, checked.broken),
        checked.why,
        tuple(dict.fromkeys(protocol.events[event].text for event in checked.drains)),
        (*assumed, *(_IN_ORDER + protocol.events[event].text for event in checked.late)),
    )


def orders_bound(protocol: Protocol) -> float:
    """The decimal logarithm of the number of orders in which each actor keeps its own: N! / (n1! n2! ...)."""
    counts = [len(events) for events in protocol.actors]
    log = math.lgamma(sum(counts) + 1) - math.fsum(math.lgamma(count + 1) for count in counts)
    return log / math.log(10)


def _wrong_order(protocol: Protocol, checked: Checked, broken: Broken) -> WrongOrder:
    machine = Machine(protocol)
    texts = [event.text for event in protocol.events]
    event = broken.order[-1] if broken.waiter is None and broken.order else broken.waiter
    state = _after(machine, broken.order[:-1])
    barrier = what = ""
    if event is None or broken.wrong is Wrong.STUCK:
        what = "no warp can continue"
    elif broken.wrong is Wrong.FAULT:
        what = f"{texts[event]} {broken.text}"
        barrier = _barriers(machine, event)
    else:
        barrier, phases = _phases(machine, state, event, broken)
        what = f"{texts[event]}: {phases}"
    stands = {protocol.events[one].actor: texts[one] for one in broken.order if texts[one]}
    ends, waiting = _end(machine, checked, broken)
    order = tuple(texts[one] for one in broken.order)
    warps = tuple(text for actor, text in sorted(stands.items()) if actor in protocol.ranks)
    return WrongOrder(what, barrier, order, warps, ends, waiting, checked.shortest)


def _barriers(machine: Machine, event: int) -> str:
    return ", ".join(dict.fromkeys(str(act.barrier) for act, _ in machine.acts[event]))


def _phases(machine: Machine, state: State, event: int, broken: Broken) -> tuple[str, str]:
    """The barrier of a deviation, and which phase the event met in the run and meets now."""
    if broken.wrong is Wrong.MISSED:
        ((act, at),), (phase,) = machine.acts[event], machine.phases[event]
        until = "a phase before the first" if phase < 0 else f"phase {phase}"
        return _named(machine, at, act.barrier), (
            f"it waits for the end of {until}, and phase {phase + 1} is over too"
        )
    stepped = machine.step(state, event)
    assert stepped is not None
    for (act, at), now, run in zip(machine.acts[event], stepped[1], machine.phases[event], strict=True):
        if now != run:
            does = "passes at the end of" if act.kind.waits else "counts for"
            now_text = "a phase before the first" if now < 0 else f"phase {now}"
            return _named(machine, at, act.barrier), f"it {does} {now_text}, in the recorded run {run}"
    raise AssertionError(event)


def _named(machine: Machine, at: int, barrier: object) -> str:
    """A barrier and where it is initialised."""
    for number, acts in enumerate(machine.acts):
        if any(act.kind is Kind.INIT and where == at for act, where in acts):
            return f"{barrier}, initialised by {machine.protocol.events[number].text}"
    return str(barrier)


def _after(machine: Machine, order: Iterable[int]) -> State:
    state = machine.start()
    for event in order:
        stepped = machine.step(state, event)
        assert stepped is not None
        state = stepped[0]
    return state


def _end(machine: Machine, checked: Checked, broken: Broken) -> tuple[str, tuple[str, ...]]:
    """How a continuation of the order ends, and the events that wait for ever."""
    texts = [event.text for event in machine.protocol.events]
    if checked.exposed:
        return "its CTA may end before these", tuple(texts[event] for event in checked.exposed)
    last = broken if broken.wrong in (Wrong.STUCK, Wrong.FAULT) else checked.then
    if last is None:
        return "one continuation ends, with other phases than the run", ()
    if last.wrong is Wrong.FAULT:
        return f"undefined: {texts[last.order[-1]]} {last.text}", ()
    waiting = tuple(texts[event] for event in machine.ready(_after(machine, last.order)))
    return "hang: these wait for ever", waiting


def orders_text(launches: Sequence[CheckedLaunch], *, verbose: bool = False) -> Iterator[str]:
    """The lines that are printed of all launches."""
    for launch in launches:
        name = f"launch {launch.number}, {launch.entry[:72]}, {launch.grid} CTAs"
        if launch.refused:
            yield f"{name}: not checked: {launch.refused}"
            continue
        proved = [part for part in launch.parts if part.verdict is Verdict.PROVED]
        if proved:
            most = max(proved, key=lambda part: part.events)
            ctas = ", ".join(str(part.cta) for part in proved)
            upto = f"up to {most.events} events, 10^{most.orders:.0f} orders"
            yield f"{name}: all orders proved of CTA {ctas}: {upto}"
        alike: dict[str, list[CheckedPart]] = {}
        for part in launch.parts:
            if part.verdict is not Verdict.PROVED:
                alike.setdefault(part.why if part.wrong is None else part.wrong.what, []).append(part)
        for first, *others in alike.values():
            yield from _part_text(name, first, verbose)
            if others:
                yield f"  the same in CTA {', '.join(str(part.cta) for part in others)}"
        for text in dict.fromkeys(text for part in launch.parts for text in part.drains):
            yield f"  may pass early, without harm, as only the warp's end follows: {text}"
        for text in dict.fromkeys(text for part in launch.parts for text in part.assumed):
            yield f"  assumed: {text}"
    yield _summary(launches)


def _part_text(name: str, part: CheckedPart, verbose: bool) -> Iterator[str]:
    if part.wrong is None:
        yield f"{name}, CTA {part.cta}: not proved, {part.events} events: {part.why}"
        return
    wrong = part.wrong
    yield f"{name}, CTA {part.cta}: BROKEN: {wrong.what}"
    if wrong.barrier:
        yield f"  at {wrong.barrier}"
    length = "the shortest order" if wrong.shortest else "an order"
    yield f"  {length} that shows it has {len(wrong.order)} of {part.events} events"
    if verbose:
        yield from (f"    {number}. {text}" for number, text in enumerate(wrong.order, 1))
    else:
        yield "  where each warp stands then:"
        yield from (f"    after {text}" for text in wrong.stands)
        yield "  its last events:"
        yield from (f"    {text}" for text in wrong.order[-SHOWN:])
    yield f"  then {wrong.ends}"
    yield from (f"    {text}" for text in dict.fromkeys(wrong.waiting))


def _summary(launches: Sequence[CheckedLaunch]) -> str:
    parts = [part for launch in launches for part in launch.parts]
    counts: Mapping[str, int] = {
        "proved": sum(part.verdict is Verdict.PROVED for part in parts),
        "broken": sum(part.verdict is Verdict.BROKEN for part in parts),
        "not proved": sum(part.verdict is Verdict.OPEN for part in parts),
    }
    said = ", ".join(f"{count} {what}" for what, count in counts.items() if count or what == "proved")
    refused = sum(bool(launch.refused) for launch in launches)
    return (
        f"all orders of {len(parts)} CTAs or clusters of {len(launches)} launches: {said}"
        + f"; {refused} launches not checked" * bool(refused)
        + ". This is about barriers; data races are found by --check"
    )
