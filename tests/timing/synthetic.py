# SPDX-License-Identifier: Apache-2.0
"""Kernels of known speed on machines of known noise, for the statistics."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gdnbench.timing.types import Conditions

LAUNCH = 1e-5  # seconds of the kernel of speed 1
LAUNCHES = 100


class Quiet:
    """A watch that sees nothing amiss."""

    source = "test"

    def now(self) -> Conditions:
        return Conditions(clock=1980, temperature=40)

    def close(self) -> None:
        pass


class Noise:
    """Factor on the true time of one round of `kernel`; `rounds` counts those before it."""

    def __init__(self, random: random.Random) -> None:
        self.random = random

    def factor(self, kernel: int, placement: int, rounds: int) -> float:
        raise NotImplementedError

    def read(self, seconds: float) -> float:
        """What the clock makes of a round's duration."""
        return seconds


class White(Noise):
    def factor(self, kernel: int, placement: int, rounds: int) -> float:
        return math.exp(self.random.gauss(0, 0.02))


class Drift(Noise):
    """Slower by a tenth in the course of a thousand rounds, in a swing of 2 %, and the second of two rounds
    by 1 %, as after a restore."""

    def factor(self, kernel: int, placement: int, rounds: int) -> float:
        swing = 0.02 * math.sin(rounds / 37)
        return math.exp(1e-4 * rounds + swing + 0.01 * (rounds % 2) + self.random.gauss(0, 0.01))


class Spikes(Noise):
    """One round in twenty is preempted and takes up to 8 times as long."""

    def factor(self, kernel: int, placement: int, rounds: int) -> float:
        hit = self.random.uniform(1.5, 8) if self.random.random() < 0.05 else 1
        return hit * math.exp(self.random.gauss(0, 0.01))


class Memory(Noise):
    """Each kernel's noise goes on from block to block: AR(1) with 0.7."""

    def __init__(self, random: random.Random) -> None:
        super().__init__(random)
        self.state: dict[int, float] = {}

    def factor(self, kernel: int, placement: int, rounds: int) -> float:
        old = self.state.get(kernel, self.random.gauss(0, 1))
        self.state[kernel] = 0.7 * old + math.sqrt(1 - 0.7**2) * self.random.gauss(0, 1)
        return math.exp(0.01 * self.state[kernel])


class Coarse(Noise):
    """A clock of 5 us on rounds of 1 ms that vary by less: almost all samples are one of two."""

    def factor(self, kernel: int, placement: int, rounds: int) -> float:
        return math.exp(self.random.gauss(0, 0.001))

    def read(self, seconds: float) -> float:
        begin = self.random.random() * COARSE
        return (math.floor((begin + seconds) / COARSE) - math.floor(begin / COARSE)) * COARSE


COARSE = 5e-6


class Places(Noise):
    """A placement moves all kernels by 6 % and each by another 1 %."""

    def __init__(self, random: random.Random) -> None:
        super().__init__(random)
        self.shared: dict[int, float] = {}
        self.own: dict[tuple[int, int], float] = {}

    def factor(self, kernel: int, placement: int, rounds: int) -> float:
        shared = self.shared.setdefault(placement, self.random.uniform(-0.06, 0.06))
        own = self.own.setdefault((kernel, placement), self.random.uniform(-0.01, 0.01))
        return math.exp(shared + own + self.random.gauss(0, 0.005))


def returning(period: int) -> type[Noise]:
    """One of every `period` rounds takes 5 % longer."""

    class Returning(Noise):
        def __init__(self, random: random.Random) -> None:
            super().__init__(random)
            self.phase = random.randrange(period)

        def factor(self, kernel: int, placement: int, rounds: int) -> float:
            hit = 1.05 if (rounds + self.phase) % period == 0 else 1.0
            return hit * math.exp(self.random.gauss(0, 0.005))

    return Returning


class Modes(Noise):
    """Every round is in one of two modes, 20 % apart."""

    def factor(self, kernel: int, placement: int, rounds: int) -> float:
        return self.random.choice((1.0, 1.2)) * math.exp(self.random.gauss(0, 0.005))


KINDS: dict[str, Callable[[random.Random], Noise]] = {
    "white": White,
    "drift": Drift,
    "spikes": Spikes,
    "memory": Memory,
    "coarse": Coarse,
    "places": Places,
}


@dataclass
class Machine:
    noise: Noise
    rounds: int = 0
    log: list[tuple[str, int]] = field(default_factory=list)  # kernel and placement of every round


@dataclass
class Synthetic:
    """A kernel that takes `speed` times `LAUNCH` seconds a launch on `machine`."""

    name: str
    number: int
    speed: float
    machine: Machine
    placements: int = 8
    launches: int = LAUNCHES

    def round(self, placement: int) -> float:
        machine = self.machine
        factor = machine.noise.factor(self.number, placement, machine.rounds)
        machine.rounds += 1
        machine.log.append((self.name, placement))
        return machine.noise.read(self.speed * LAUNCH * factor * self.launches) / self.launches


def kernels(machine: Machine, speeds: Sequence[float], placements: int = 8) -> list[Synthetic]:
    return [
        Synthetic(f"kernel{number}", number, speed, machine, placements)
        for number, speed in enumerate(speeds)
    ]
