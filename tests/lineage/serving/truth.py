"""Which reads of a run of the loop are wrong, from what `States` knows of every slot, without digests."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.lineage.serving.states import Request, Touch


@dataclass(frozen=True, slots=True)
class WrongRead:
    """`owns`: the call that wrote the state which should have been read; None if that is zeros. `left`: the
    call that wrote the state found; None if it is zeros. `overwrote`: the first call since the request's last
    write to the slot in which another sequence wrote it."""

    touch: Touch
    owns: int | None
    left: int | None
    overwrote: int | None


@dataclass
class Truth:
    """A watcher of `States`."""

    wrong: list[WrongRead] = field(default_factory=list)
    twice: list[tuple[Touch, Touch]] = field(default_factory=list)  # two sequences of a call wrote one slot
    padded: list[tuple[Touch, Touch]] = field(default_factory=list)  # padding over a request's last write
    slots: dict[tuple[int, int], list[Touch]] = field(default_factory=dict)  # writes by layer and slot
    own: dict[tuple[int, Request, int], Touch] = field(default_factory=dict)  # by layer, request and position

    def reads(self, touch: Touch) -> None:
        request, content = touch.request, touch.content
        if request is None:
            return
        own = self.own.get((touch.layer, request, touch.position))
        if content is None:
            right = touch.position == 0
        else:
            consumed = tuple(request.known[: touch.position])
            right = content.position == touch.position and content.consumed == consumed
        # Another state of equal bits does no harm, and nobody can tell it from the right one.
        if not right and (own is None or own.bits != touch.bits):
            owns = None if own is None else own.call
            left = None if content is None else content.call
            self.wrong.append(WrongRead(touch, owns, left, self._overwrote(touch)))

    def writes(self, touch: Touch) -> None:
        if touch.slot < 0 or touch.bits is None:
            return
        history = self.slots.setdefault((touch.layer, touch.slot), [])
        if history and history[-1].call == touch.call and history[-1].sequence != touch.sequence:
            if touch.request is not None and history[-1].request is not None:
                self.twice.append((history[-1], touch))
        history.append(touch)
        if touch.request is not None:
            self.own[touch.layer, touch.request, touch.position] = touch

    def _overwrote(self, touch: Touch) -> int | None:
        found = None
        for write in reversed(self.slots.get((touch.layer, touch.slot), [])):
            if write.request is touch.request:
                break
            found = write.call
        return found
