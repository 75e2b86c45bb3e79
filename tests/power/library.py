# SPDX-License-Identifier: Apache-2.0
"""Right kernels and wrong ones of every operation, by which the judge's power is measured.

    for one in faults("gdn_decode"):
        found = outcomes([("made", record)], [one])

A right variant is a kernel that an expert calls right: it computes what the contract says and rounds where
served kernels round. A fault is the same kernel with one bug that a real kernel had, or may have. A judge
must pass every variant and fail every fault, but those that the contract itself allows (`excuse`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

LARGE = ("gdn_prefill", "gdn_decode", "swa_decode")
"""Operations with enough faults for a second file, `numeric_faults`."""
OPERATIONS = (*LARGE, "v4_decode", "v4_compress", "indexer_logits", "indexer_topk")

Kernel = Callable[..., "dict[str, Tensor]"]


@dataclass(frozen=True)
class Specimen:
    """One kernel. `group` is the part of it that varies or is wrong. `excuse`: why the contract allows a
    fault, None if it does not. `repeats`: the fault shows only when the same call is repeated."""

    name: str
    operation: str
    group: str
    right: bool
    kernel: Kernel
    excuse: str | None = None
    repeats: bool = False

    @property
    def label(self) -> str:
        return f"{self.group}: {self.name}"


def variants(op: str) -> tuple[Specimen, ...]:
    """The right kernels of an operation."""
    return _specimens(op, "variants", "VARIANTS")


def faults(op: str) -> tuple[Specimen, ...]:
    """The wrong kernels of an operation."""
    found = _specimens(op, "faults", "FAULTS")
    return (*found, *_specimens(op, "numeric_faults", "FAULTS")) if op in LARGE else found


def _specimens(op: str, file: str, name: str) -> tuple[Specimen, ...]:
    module = importlib.import_module(f"tests.power.{op}_{file}")
    found: tuple[Specimen, ...] = getattr(module, name)
    return found


class Shelf:
    """Collects the specimens of one file."""

    def __init__(self, operation: str, *, right: bool) -> None:
        self._operation = operation
        self._right = right
        self._found: list[Specimen] = []

    def add(
        self, group: str, name: str, kernel: Kernel, *, excuse: str | None = None, repeats: bool = False
    ) -> None:
        self._found.append(Specimen(name, self._operation, group, self._right, kernel, excuse, repeats))

    def done(self) -> tuple[Specimen, ...]:
        """All of them; ValueError if two have one name."""
        labels = [one.label for one in self._found]
        if twice := {label for label in labels if labels.count(label) > 1}:
            raise ValueError(f"{self._operation}: two specimens are called {sorted(twice)[0]!r}")
        return tuple(self._found)
