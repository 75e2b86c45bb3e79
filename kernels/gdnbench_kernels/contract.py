"""What an operation is: its tensors, scalars, conventions, stages and kernels, each named once.

An operation lives in one folder of this package and exposes `OPERATION` in `<folder>/contract.py`. Everything
that the workbench must know of it (what to capture, convert, validate, poison, compare and where a coordinate
lies) is asked of that object, so a new operation changes nothing outside its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

Scalar = int | float | bool | str | None


class ContractError(ValueError):
    """A call breaks its operation's contract; the message names tensor, position and value."""


class Role(StrEnum):
    INPUT = "input"
    OUTPUT = "output"
    MUTATED = "mutated"  # read and written in place


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of an operation.

    `axes` are symbolic sizes in the default conventions; `axes_by` gives those that a convention changes, as
    {(convention, value): axes}. `dtypes` are torch's names without the prefix. `pool_index` names the index
    tensor that selects rows of axis 0: only the rows a call can touch are captured.
    """

    name: str
    axes: tuple[str, ...]
    dtypes: tuple[str, ...]
    role: Role
    meaning: str
    optional: bool = False
    pool_index: str | None = None
    axes_by: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    minus_infinity: bool = False  # -inf is a value like any other

    def axes_in(self, conventions: Mapping[str, str]) -> tuple[str, ...]:
        """The axes of this tensor under `conventions`."""
        for (name, value), axes in self.axes_by.items():
            if conventions.get(name) == value:
                return axes
        return self.axes


@dataclass(frozen=True, slots=True)
class ScalarSpec:
    name: str
    kind: type
    default: Scalar  # None: derived from the shapes, as `meaning` says
    meaning: str


@dataclass(frozen=True, slots=True)
class Convention:
    """A choice in which implementations of one operation differ; `values[0]` is the default."""

    name: str
    values: tuple[str, ...]
    meaning: str


@dataclass(frozen=True, slots=True)
class Stage:
    """An intermediate tensor of the staged design: what a bisection can look at."""

    tensor: TensorSpec
    formula: str
    rounded_to: str  # what it is rounded to between kernels: a dtype, or the tensor whose dtype it takes


@dataclass(frozen=True, slots=True)
class Limit:
    """What a stage must keep to beside the ratio to torch's error, or `instead` of it; or, `added`, a part
    of the exact value that the ratio is widened by.

    x is the kernel's, y exact. For every chunk and head, in the Frobenius norm: |x - y| <= relative |y| +
    absolute. With `block` also for every block x block part of the last two axes: |x - y| <= relative
    max(|y|, sqrt(block)) + absolute, the root being the norm of an identity of that size, since a part off
    the diagonal may be zero.
    """

    relative: float
    absolute: float = 0.0
    block: int | None = None
    instead: bool = False
    added: bool = False


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What an output is held to instead of the ratio to torch's error: |x - y| <= absolute + relative |y|."""

    absolute: float
    relative: float = 0.0


@dataclass(frozen=True, slots=True)
class Region:
    """Rows [start, stop) of axis 0 that belong to one chunk (or state) of one sequence."""

    start: int
    stop: int
    sequence: int
    chunk: int | None = None
    token: int | None = None  # position of row `start` in its sequence, where rows are tokens or states after
    tokens: int | None = None  # where a row is a whole chunk [Hv, C, ...]: how many of its C tokens count


@dataclass(frozen=True, slots=True)
class Partition:
    """Which rows of a tensor count, and to whom they belong. Rows in no region never count."""

    regions: tuple[Region, ...]
    head_axis: int | None
    token_axis: int | None = None  # where axis 0 counts sequences: the axis of their tokens


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operation: inputs and mutated tensors as they were before it, by contract name."""

    tensors: Mapping[str, Tensor]
    scalars: Mapping[str, Scalar]
    conventions: Mapping[str, str]


def _no_limit(call: Call, stage: str) -> Limit | None:
    return None


def _as_it_is(call: Call) -> Call:
    return call


Kernel = Callable[..., Any]
"""A kernel takes the contract's tensors and scalars as keyword arguments by name, outputs among them as
buffers to fill (poisoned with NaN); mutated tensors are written in place. It may instead return outputs: one
tensor, a tuple in contract order, or a dict by name; what it returns replaces the buffer. A kernel that has a
parameter `stages` gets a dict there to fill with its intermediates by stage name; one that accepts several
values of a convention has a parameter of the convention's name and gets the value there. A parameter it does
not have is not passed, nor is an optional tensor that the call lacks. What a kernel cannot do it refuses with
NotImplementedError; a missing package is an ImportError whose message says what to install."""


Launch = Callable[[], object]
"""A call bound to its tensors. Each time it does the kernel's own work on them and nothing else."""

Shaped = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of a tensor that is to be allocated."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a call costs whoever computes it: bytes that must come from memory and go to it, each once, and
    floating-point operations, a multiply-add being two."""

    read: int
    written: int
    flop: int

    @property
    def bytes(self) -> int:
        return self.read + self.written


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a kernel that runs alone: it makes the stages and outputs `gives` of a call and the stages
    `takes`.

    `target` is called as the kernel is, in conventions that the kernel takes, with a dict `stages` of what it
    takes, if that is anything, in the contract's shapes. It returns what it gives by name; of outputs it may
    fill the buffers instead, and what the call mutates it may change in place, in a copy if it gives that.
    Run one after another, each on what the ones before gave, a kernel's steps leave the bits that the kernel
    leaves.
    """

    name: str
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    target: str | Kernel  # "package.module:function", imported only when asked for


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """An implementation: where it is, which conventions it takes, and what it needs to run."""

    target: str  # "package.module:function", imported only when asked for
    conventions: Mapping[str, tuple[str, ...]]  # accepted values; one left out means its default only
    devices: tuple[str, ...] = ("cpu", "cuda")
    meaning: str = ""
    needs: tuple[str, ...] = ()  # distributions, beyond this project's own requirements
    fp64: bool = False  # an oracle: returns everything in fp64, mutated tensors too, and writes to none
    sources: str = ""  # "package.module:function": options -> a Source for each kernel compiled ahead
    archs: tuple[str, ...] = ()  # those that its sources compile for; any unless given
    prepare: str = ""
    """"package.module:function", called as the kernel is, returns a `Launch`: tensors are in the form that
    its launches want, everything is compiled and tuned, and a launch neither allocates nor waits for the
    device, so that a CUDA graph can hold many. Where it is left out, a launch is a call of the kernel."""
    steps: tuple[Step, ...] = ()
    """What it is made of, in the order it runs, for an operation with stages. A function that no operation
    lists has an attribute of that name."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A call cut into its chunks, none of which waits for another: each is a sequence of its own that begins
    with the state before it.

    `of` takes a call and the stages `needs`, unrounded, and returns the call of its chunks in the same order.
    Stages have their rows in the same places, and `rows` cuts or fills up their first axis to what the cut
    call has. `carried` are stages and outputs that are made of what one chunk hands to the next; `back` takes
    those of the cut call and returns them as the call itself has them.
    """

    carried: tuple[str, ...]
    needs: tuple[str, ...]
    of: Callable[[Call, Mapping[str, Tensor]], Call]
    rows: Callable[[Call, str, Tensor], Tensor]
    back: Callable[[Call, Mapping[str, Tensor]], dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Ranges:
    """Between what values something in a call lies that decides how hard it is to compute: a few figures by
    what they are ("min", "max", "99 %"). The unit "2^" says that the values are exponents of 2."""

    name: str
    label: str
    values: Mapping[str, float]
    unit: str = ""


@dataclass(frozen=True, slots=True)
class NamedRows:
    """Which rows of its pools a call names, for a caller that must not wait for a device.

    `of` looks at `tensors` alone: pool -> integers, as many as the shapes say, on the device of the index
    tensors. All rows that the call may touch are among them, and there may be repeats and numbers that are
    no row.
    """

    tensors: tuple[str, ...]  # where the call has them
    of: Callable[[Call], dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Axis:
    """Units of a call that can be removed: sequences, heads, unused slots.

    `keep` makes the call with only the given units, ascending, at least `least` of them. It raises
    ContractError if they make no valid call. `of_pool`: the units are rows of a pool, and the others are
    renumbered.
    """

    name: str
    units: int
    keep: Callable[[Sequence[int]], Call]
    least: int = 1
    of_pool: bool = False


@dataclass(frozen=True, slots=True)
class Shrinking:
    """How to make calls of an operation smaller. All callables take valid calls."""

    axes: Callable[[Operation, Call], tuple[Axis, ...]]
    """The axes along which a call can shrink, larger parts first. The rest keeps its values; offsets, chunk
    tables and slots are adapted."""
    extent: Callable[[Call], dict[str, int]]
    """The sizes of a call for people, by singular noun: {"token": 9991}."""
    level: Callable[[Call], dict[str, float]]
    """A constant, in its range, for all elements of a floating tensor; 1 for a tensor left out."""
    placed: Callable[[Call, Mapping[str, Sequence[int]]], dict[str, Tensor]] | None = None
    """The inverse of `Operation.renumber`: the index tensors of a call whose pool rows move to the given
    rows, by pool. None without pools."""


@dataclass(frozen=True)
class Operation:
    """A named contract. The callables are pure and see only a `Call` (and outputs where said)."""

    name: str
    summary: str
    tensors: tuple[TensorSpec, ...]
    scalars: tuple[ScalarSpec, ...]
    conventions: tuple[Convention, ...]
    stages: tuple[Stage, ...]
    kernels: Mapping[str, KernelEntry]  # at least "reference" (fp64 oracle) and "torch" (same dtype)
    validate: Callable[[Call], None]  # raises ContractError
    convert: Callable[[Call, Mapping[str, str]], Call]  # inputs into other conventions
    convert_outputs: Callable[[Mapping[str, Tensor], Mapping[str, str], Mapping[str, str]], dict[str, Tensor]]
    outputs: Callable[[Call], dict[str, Shaped]]  # shapes to allocate
    touched: Callable[[Call], dict[str, Tensor]]  # pool -> sorted unique rows the call may read or write
    partition: Callable[[Call, str], Partition]  # of an output, mutated tensor or stage
    synth: Callable[..., Call]  # makes inputs; its keyword arguments are `gdnbench synth`'s options
    conversions: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    """What `convert` does, as a short text by (convention, from, to)."""
    stage_limit: Callable[[Call, str], Limit | None] = _no_limit
    """What stage of that name is held to in this call beside torch's error."""
    stage_call: Callable[[Call], Call] = _as_it_is
    """The call whose exact stages are asked for: with what the contract itself rounds on the way rounded."""
    renumber: Callable[[Call, Mapping[str, Sequence[int]]], dict[str, Tensor]] | None = None
    """Index tensors for pools that have only the rows stored, by pool, ascending; ContractError for a row
    that is not. None: a pool's index tensor names its rows, and each is replaced by its position."""
    named_rows: NamedRows | None = None
    """None: whoever wants the rows of a pool on a device waits for it."""
    work: Callable[[Call], Work] | None = None
    """What a call costs, from its shapes and its index tensors."""
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)
    """Outputs that are not held to a multiple of torch's error."""
    shrinking: Shrinking | None = None
    """How a call is made smaller."""
    carries: tuple[str, str] | None = None
    """What a call gets of an earlier one and what it leaves to a later one, row by row: two names, or one
    tensor that it updates. None: a call knows nothing of others."""
    cut: Cut | None = None
    """For stages that are carried from chunk to chunk; None where none is."""
    ranges: Callable[[Call], tuple[Ranges, ...]] | None = None
    """Ranges of a valid call's inputs, on the CPU; of something that it has no element of, none."""
    decodes: bool = False
    """Whether a call makes the next tokens of its sequences: the steps of a layer then follow one another."""

    def spec(self, name: str) -> TensorSpec:
        """The tensor or stage called `name`; KeyError if there is none."""
        for spec in (*self.tensors, *(stage.tensor for stage in self.stages)):
            if spec.name == name:
                return spec
        raise KeyError(name)

    @property
    def default_conventions(self) -> dict[str, str]:
        return {convention.name: convention.values[0] for convention in self.conventions}
