# SPDX-License-Identifier: Apache-2.0
"""Who the sequences of a call are: request, position, padding, as the engine's step around the call knows it.

An adapter may have, beside the methods of `gdnbench.capture.adapter.Adapter`:

    steps: tuple[Target, ...]
        Functions of the engine whose calls are one step each and see the step's metadata, such as the
        `execute_model` of a runner or the forward method of a model. They are wrapped like scopes.
    step(target, arguments) -> object | None
        Called at the begin of each step, whether calls below it are recorded or not, so it must be cheap and
        wait for no device. `arguments` holds the step's arguments by parameter name, `self` among them.
        Returns anything that `claims` needs (the runner itself, say), or None if nothing is known.
    parts_of_steps: tuple[Target, ...]
        Functions that the engine calls within a step and whose results say more of it, such as the one that
        prepares a runner's inputs.
    learn(known, target, arguments, result) -> None
        Called after each call of such a function directly below a step of this adapter, with what `step`
        returned, which it may change. As cheap as `step`.
    claims(known, observation) -> Claims | None
        Called for a recorded call below that step, and for each recorded call of a CUDA graph that is
        replayed below it. `known` is what `step` returned. In a replay, `observation.tensors` has only the
        pools and the index tensors that select their rows. `observation.part` is what the call's own
        adapter said of its place in the step. Returns claims in the order of the call's sequences.

Calls below a step have the claims of the innermost step of their thread, whichever adapter recorded the
call. An adapter whose calls name their requests themselves sets `Observation.claims` in `before` instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gdnbench.capture.adapter import Adapter, Observation, Target
    from gdnbench.capture.claims import Claims


@dataclass(slots=True, eq=False)  # not frozen: setting fields of a frozen one takes several times as long
class Step:
    """A step of an engine that is running: its adapter, and what that knows of it."""

    adapter: Adapter
    known: Any

    def claims(self, observation: Observation) -> Claims | None:
        """The claims of a call below this step; None if nothing is known."""
        if self.known is None:
            return None
        found: Claims | None = self.adapter.claims(self.known, observation)  # type: ignore[attr-defined]
        return found

    def learn(self, target: Target, arguments: Mapping[str, Any], result: Any) -> None:
        """Tell the adapter what a function within this step returned."""
        if self.known is not None:
            self.adapter.learn(self.known, target, arguments, result)  # type: ignore[attr-defined]


def steps_of(adapter: Adapter) -> tuple[Target, ...]:
    """The functions that the adapter names as steps."""
    return tuple(getattr(adapter, "steps", ()))


def parts_of_steps_of(adapter: Adapter) -> tuple[Target, ...]:
    """The functions within steps that the adapter learns from."""
    return tuple(getattr(adapter, "parts_of_steps", ()))
