"""The contract of an operation: its tensors, scalars, conventions, stages and kernels.

An operation is one folder of this package and exposes `OPERATION` in `<folder>/contract.py`. The workbench
reads everything that it must know from that object: what to capture, convert, validate, poison and compare,
and where a coordinate is. So a new operation changes nothing outside its folder.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

Scalar = int | float | bool | str | None


class ContractError(ValueError):
    """A call breaks its operation's contract. The message names tensor, position and value."""


class Role(StrEnum):
    INPUT = "input"
    OUTPUT = "output"
    MUTATED = "mutated"  # read and written in place


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of an operation.

    `axes` are symbolic sizes in the default conventions; `axes_by` has those that a convention changes, as
    {(convention, value): axes}. `dtypes` are torch's names without the prefix. `pool_index` names the index
    tensor that selects rows of axis 0: capture stores only the rows that a call can access.
    """

    name: str
    axes: tuple[str, ...]
    dtypes: tuple[str, ...]
    role: Role
    meaning: str
    optional: bool = False
    pool_index: str | None = None
    axes_by: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    minus_infinity: bool = False  # -inf is a valid value

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
    default: Scalar  # None: derived from the shapes; `meaning` says how
    meaning: str


@dataclass(frozen=True, slots=True)
class Convention:
    """A representation in which implementations of one operation differ; `values[0]` is the default.
    `rounds`: a conversion computes other numbers, and does not only lay the same ones out otherwise."""

    name: str
    values: tuple[str, ...]
    meaning: str
    rounds: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """An intermediate tensor of the staged design, which a bisection can compare."""

    tensor: TensorSpec
    formula: str
    rounded_to: str  # its dtype between kernels: a dtype, or the tensor that has the same dtype


@dataclass(frozen=True, slots=True)
class Limit:
    """The bound of a stage besides the ratio to torch's error, or `instead` of it; or, `added`, a part of the
    exact value by which the ratio's bound increases.

    x is the kernel's result, y the exact one. For every chunk and head, in the Frobenius norm: |x - y| <=
    relative |y| + absolute. With `block` also for every block x block part of the last two axes: |x - y| <=
    relative max(|y|, sqrt(block)) + absolute. The root is the norm of an identity of that size; it is needed
    because an off-diagonal part may be zero.
    """

    relative: float
    absolute: float = 0.0
    block: int | None = None
    instead: bool = False
    added: bool = False


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The bound of an output that replaces the ratio to torch's error: |x - y| <= absolute + relative |y|."""

    absolute: float
    relative: float = 0.0


@dataclass(frozen=True, slots=True)
class Region:
    """Rows [start, stop) of axis 0 that belong to one chunk (or state) of one sequence."""

    start: int
    stop: int
    sequence: int
    chunk: int | None = None
    token: int | None = None  # position of row `start` in its sequence, if rows are tokens or states after
    tokens: int | None = None  # if a row is a whole chunk [Hv, C, ...]: how many of its C tokens count


@dataclass(frozen=True, slots=True)
class Partition:
    """Which rows of a tensor count, and the sequences that own them. Rows in no region never count."""

    regions: tuple[Region, ...]
    head_axis: int | None
    token_axis: int | None = None  # if axis 0 is sequences: the axis of their tokens


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operation: inputs, and mutated tensors with their contents before the call, by contract
    name."""

    tensors: Mapping[str, Tensor]
    scalars: Mapping[str, Scalar]
    conventions: Mapping[str, str]


def _no_limit(call: Call, stage: str) -> Limit | None:
    return None


def _no_leeway(call: Call, output: str) -> Tensor | None:
    return None


def _no_stage_leeway(call: Call, stage: str, exact: Mapping[str, Tensor]) -> Tensor | None:
    return None


def _nothing_stale(call: Call, output: str, shape: tuple[int, ...]) -> Tensor | None:
    return None


def _as_it_is(call: Call) -> Call:
    return call


Kernel = Callable[..., Any]
"""A kernel takes the contract's tensors and scalars as keyword arguments by name. Outputs are buffers to
fill, poisoned with NaN; mutated tensors are written in place. A kernel may instead return outputs, which
replace the buffers: one tensor, a tuple in contract order, or a dict by name. A parameter `stages` receives a
dict to fill with intermediates by stage name. A kernel that accepts several values of a convention has a
parameter of the convention's name. Parameters that a kernel does not have are not passed, and optional
tensors that the call lacks are not either. A kernel raises NotImplementedError for a call that it does not
support, and ImportError, which says what to install, for a missing package. `params.takes_params` makes a
kernel of a function that receives its call as one object."""


Launch = Callable[[], object]
"""A call bound to its tensors. Each launch does only the kernel's own work on them."""

Shaped = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of a tensor to allocate."""


@dataclass(frozen=True, slots=True)
class Work:
    """The minimal cost of a call: bytes read from and written to memory, each once, and floating-point
    operations, where a multiply-add counts as two."""

    read: int
    written: int
    flop: int

    @property
    def bytes(self) -> int:
        return self.read + self.written


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a kernel that can run alone: it computes the stages and outputs `gives` of a call from the
    stages `takes`.

    `target` is called like the kernel, in conventions that the kernel accepts, with a dict `stages` of the
    stages in `takes`, if any, in the contract's shapes. It returns its results by name, or fills the buffers
    of outputs. A tensor that the call mutates may be changed in place, which is a copy if the step returns
    it. A kernel's steps, run one after another, each on the earlier steps' results, give the kernel's bits.
    """

    name: str
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    target: str | Kernel  # "package.module:function", imported on demand


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """An implementation: its function, the conventions that it accepts, and its requirements."""

    target: str  # "package.module:function", imported on demand
    conventions: Mapping[str, tuple[str, ...]]  # accepted values; if left out, the default only
    devices: tuple[str, ...] = ("cpu", "cuda")
    meaning: str = ""
    needs: tuple[str, ...] = ()  # distributions, beyond this project's own requirements
    cuda_tensors: bool = False  # on the simulator too its tensors are on CUDA: those of a virtual GPU
    fp64: bool = False  # an oracle: returns everything in fp64 and writes nothing in place
    sources: str = ""  # "package.module:function": options -> a Source for each kernel compiled ahead of time
    archs: tuple[str, ...] = ()  # targets of its sources; empty means any
    prepare: str = ""
    """"package.module:function", called like the kernel, returns a `Launch`. Tensors then have the form that
    launches need, everything is compiled and tuned, and a launch neither allocates nor waits for the device.
    So a CUDA graph can contain many. If it is empty, a launch is a call of the kernel."""
    steps: tuple[Step, ...] = ()
    """The kernel's steps in order, for an operation with stages. A function that no operation lists has an
    attribute of that name."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A call cut into independent chunks: each is a sequence that begins with the state before it.

    `of` takes a call and the stages `needs`, unrounded, and returns the call of its chunks in the same order.
    Stages have their rows in the same positions; `rows` truncates or extends their first axis to the cut
    call's. `carried` are stages and outputs that are computed from what one chunk passes to the next; `back`
    converts those of the cut call to those of the original call.
    """

    carried: tuple[str, ...]
    needs: tuple[str, ...]
    of: Callable[[Call, Mapping[str, Tensor]], Call]
    rows: Callable[[Call, str, Tensor], Tensor]
    back: Callable[[Call, Mapping[str, Tensor]], dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Ranges:
    """Statistics of values that determine the numerical difficulty of a call: a few figures by name ("min",
    "max", "99 %"). The unit "2^" means that the values are exponents of 2."""

    name: str
    label: str
    values: Mapping[str, float]
    unit: str = ""


@dataclass(frozen=True, slots=True)
class NamedRows:
    """The rows of its pools that a call names, for a caller that must not wait for a device.

    `of` reads only `tensors`: pool -> integers, as many as the shapes determine, on the device of the index
    tensors. They include all rows that the call may access, possibly with repeats and with numbers that are
    no row.
    """

    tensors: tuple[str, ...]  # those of them that the call has
    of: Callable[[Call], dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Axis:
    """Units of a call that can be removed: sequences, heads, unused slots.

    `keep` makes the call with only the given units, ascending, at least `least` of them. It raises
    ContractError if they make no valid call. `of_pool`: the units are rows of a pool, and the others are
    renumbered. `unit_at`: the unit that computes a place of an output, which has a sequence, chunk or head;
    None if the place does not say.
    """

    name: str
    units: int
    keep: Callable[[Sequence[int]], Call]
    least: int = 1
    of_pool: bool = False
    unit_at: Callable[[Mapping[str, int]], int | None] = lambda place: None


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


@dataclass(frozen=True, slots=True)
class Accesses:
    """The rows that the sequences of a call read before it and write by its end, of one pool or of gathered
    rows. `gdnbench lineage` compares the contents of a read with those of an earlier write.

    `chain`: a name shared by the operations that use the same pool, such as "state". `reads` and `writes` are
    int64 on the host, without the rows of padding sequences (slot -1); a row that a sequence writes several
    times is in `writes` once, for the last token.
    """

    chain: str
    before: str  # the tensor whose rows are read
    after: str | None  # the tensor whose rows are written; None: the call only reads
    reads: Tensor  # [n, 3]: sequence, row of `before`, position of its content less that of the first token
    writes: Tensor  # [m, 3]: sequence, row of `after`, tokens of this call that its content has consumed
    tokens: Tensor  # int64 on the host: the tokens of each sequence in this call
    pooled: bool  # rows are slots of a pool; otherwise they are gathered, and capture names their slots
    split: int = 1  # how many rows the tensor has in each row of axis 0: the tokens of a page
    parts: tuple[int, ...] | None = None
    """With `split`: a page holds so many elements of each of its rows, then so many more of each, and so on,
    as fp8_ds_mla does. None: row after row."""
    window: bool = False  # a read row is one token's, not a state after all tokens before it
    compressed: int = 0
    """With `window`: rows are of several tokens each, and so many entries are all that a query selects. The
    third column of `reads` is then the query that reads the row, less the sequence's first; a query's reads
    are in the order of its entries, each as often as it is there."""
    recent: bool = False  # a state of the latest few tokens alone, which other prefixes may have too
    columns: int | None = None  # of the last axis of a row, how many are its content; None: all of it
    read_columns: Tensor | None = None  # int64 [n], with `columns`: the first of each read
    write_columns: Tensor | None = None  # int64 [m]: the first of each write; one slot then has several


PADDING = -1
"""What the entries of a set hold that have no index to hold."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What an output that is a set of indices selects from, in the call's rows.

    The output is [R, K] integers. Row r has the candidates values[r, first[r] : first[r] + count[r]] and
    holds the indices, from first[r], of the min(count[r], K) largest of them, then `PADDING`. Their order is
    free, and so is the choice between equal values; a NaN may be selected or not.
    """

    values: Tensor  # [R, N], floating
    first: Tensor  # int64 [R]
    count: Tensor  # int64 [R]


Index = tuple[int | slice, ...]
"""An index of rows of a tensor."""


@dataclass(frozen=True, slots=True)
class Carried:
    """The part of a limit that comes from a state which a kernel computed and another call starts from: the
    limit of rows `at` of `tensor` in the earlier call, times `factor`."""

    tensor: str
    at: Index
    factor: float


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one tensor that a law says are equal in two calls: `one` in the first call, `other` in the
    other. Heads are axis `head_axis` of what the index leaves. `where` names the rows for people.

    `factor`: a power of two; the rows of the other call are that many times those of the first. `underflow`:
    by how much elements may differ in a law that is exact, for products too small for fp32."""

    tensor: str
    where: str
    one: Index
    other: Index
    head_axis: int
    carried: Carried | None = None
    factor: float = 1.0
    underflow: float = 0.0


@dataclass(frozen=True, slots=True)
class Variant:
    """Another call, and the pieces of its results that `law` says are those of the first call. `exact`: bit
    for bit, otherwise but for rounding. `what` says how the call differs."""

    law: str
    what: str
    call: Call
    pieces: tuple[Piece, ...]
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Split:
    """A call in two parts, of which the second starts from the states that the kernel left after the first.

    `second` makes the second call from the first one's results. `first_pieces` and `second_pieces` compare
    the whole call with each part.
    """

    what: str
    first: Call
    second: Callable[[Mapping[str, Tensor]], Call]
    first_pieces: tuple[Piece, ...]
    second_pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Laws:
    """What must hold between the results of related calls, whatever the exact results are. Both callables
    take a valid call on the CPU, with finite values, and leave out what the call is too small for."""

    variants: Callable[[Operation, Call], Iterator[Variant]]
    splits: Callable[[Operation, Call], Iterator[Split]] | None = None


@dataclass(frozen=True)
class Operation:
    """A contract with its name. The callables are pure and receive only a `Call`, and outputs where
    stated."""

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
    touched: Callable[[Call], dict[str, Tensor]]  # pool -> sorted unique rows that the call may access
    partition: Callable[[Call, str], Partition]  # of an output, mutated tensor or stage
    synth: Callable[..., Call]  # makes inputs; its keyword arguments are `gdnbench synth`'s options
    conversions: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    """Description of each conversion of `convert`, by (convention, from, to)."""
    stage_limit: Callable[[Call, str], Limit | None] = _no_limit
    """The bound of the stage of that name in this call, besides the ratio to torch's error."""
    stage_call: Callable[[Call], Call] = _as_it_is
    """The call from which exact stages are computed: intermediates that the contract rounds are rounded."""
    absent: Mapping[str, Callable[[Call], Tensor]] = field(default_factory=dict)
    """What an optional input means where a valid call leaves it out, by tensor: for kernels that require
    it."""
    renumber: Callable[[Call, Mapping[str, Sequence[int]]], dict[str, Tensor]] | None = None
    """Index tensors for pools with only the stored rows, which are given by pool, ascending. Raises
    ContractError for a row that is not stored. None: each row in a pool's index tensor is replaced by its
    position."""
    named_rows: NamedRows | None = None
    """None: a caller that needs the rows of a pool waits for the device."""
    work: Callable[[Call], Work] | None = None
    """The minimal cost of a call, from its shapes and its index tensors."""
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)
    """Bounds of outputs that replace a multiple of torch's error."""
    selections: Mapping[str, Callable[[Call], Selection]] = field(default_factory=dict)
    """Outputs that are sets of indices, and what they select from. Comparisons look at the selected values,
    not at the order of the indices, so these outputs have no tolerance and no leeway."""
    stale: Callable[[Call, str, tuple[int, ...]], Tensor | None] = _nothing_stale
    """Which elements of the output of that name and shape may hold anything: bool in the shape, on the host.
    None for none. They are neither judged nor compared. It reads only index tensors and scalars."""
    leeway: Callable[[Call, str], Tensor | None] = _no_leeway
    """By how much each element of the output of that name may be off besides its bound, for what the contract
    leaves to a kernel, such as approximate exponentials: fp64, in the output's shape and the call's
    conventions. None for nothing. It is computed for outputs that fail without it."""
    stage_leeway: Callable[[Call, str, Mapping[str, Tensor]], Tensor | None] = _no_stage_leeway
    """The same of a stage, for the order in which a kernel sums and for approximate functions, from the
    kernel's call and the exact stages of its `stage_call`."""
    cut_operands: int = 5
    """How many operands of tf32 products, one after another, a tensor core cuts to 10 bits on the way from an
    input to an output. In a gated delta rule: a token's update, the keys that store it, the state, the
    queries that read it, P."""
    line_factors: int = 0
    """How many factors common to all elements of a line of an output a kernel may round to the output's dtype
    where torch's are exact."""
    shrinking: Shrinking | None = None
    """How a call is made smaller."""
    carries: tuple[str, str] | None = None
    """The input that a call takes from an earlier call and the output that it leaves for a later one, row by
    row: two names, or one tensor that it updates. None: calls are independent."""
    cut: Cut | None = None
    """For stages that are carried from chunk to chunk; None if there are none."""
    laws: Laws | None = None
    """The laws that `gdnbench prove` tests kernels for; None if there are none."""
    ranges: Callable[[Call], tuple[Ranges, ...]] | None = None
    """Ranges of a valid call's inputs, on the CPU; none for tensors without elements."""
    accesses: Callable[[Call], tuple[Accesses, ...]] | None = None
    """The rows that a call reads and writes. It reads index tensors and shapes only: the others may be on the
    device "meta". Raises KeyError for a missing index tensor. None: unknown."""
    columns: Callable[[Mapping[str, tuple[int, ...]]], Mapping[str, int]] | None = None
    """By pool, how many columns of its last axis are the content of an access (`Accesses.columns`), from the
    inputs' shapes; `accesses` says which ones. None: the content is the whole row."""
    decodes: bool = False
    """Whether a call computes the next tokens of its sequences: successive calls of a layer then follow one
    another."""
    counted_apart: bool = False
    """Whether capture counts its calls in a layer apart from those of other operations, in step numbers,
    `--first` and `--every`: a layer then calls it beside another one in each step."""

    def spec(self, name: str) -> TensorSpec:
        """The tensor or stage called `name`. Raises KeyError if there is none."""
        for spec in (*self.tensors, *(stage.tensor for stage in self.stages)):
            if spec.name == name:
                return spec
        raise KeyError(name)

    @property
    def default_conventions(self) -> dict[str, str]:
        return {convention.name: convention.values[0] for convention in self.conventions}
