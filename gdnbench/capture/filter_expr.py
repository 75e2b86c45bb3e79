# SPDX-License-Identifier: Apache-2.0
"""`--when`: a side-effect-free filter expression over a call's scalars and shapes.

Names are `op`, `layer`, `layer_index`, `step`, `call`, `rank`, scalars, conventions, axis sizes (`T`, `Hv`),
and tensors with `q.shape`, `q.dtype` and `q.ndim`. A tensor's name alone is true if the call has the tensor.
A name that the call lacks compares as false with everything.

Standard library only: every Python process below a captured command reads its options at start-up.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from gdnbench.errors import BadInputError

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "len": len,
    "min": min,
    "max": max,
    "abs": abs,
    "any": any,
    "all": all,
    "sum": sum,
}
CALL_NAMES = ("op", "layer", "layer_index", "step", "call", "rank")
_OF_TENSORS = ("shape", "dtype", "ndim")
_NODES = (
    ast.Expression,
    ast.BoolOp,
    ast.boolop,
    ast.UnaryOp,
    ast.unaryop,
    ast.BinOp,
    ast.Compare,
    ast.cmpop,
    ast.IfExp,
    ast.Name,
    ast.Constant,
    ast.Tuple,
    ast.List,
    ast.Subscript,
    ast.Slice,
    ast.expr_context,
    # No power: 9**9**9 would exhaust the program's memory.
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.Div,
    ast.FloorDiv,
    ast.Mod,
)


_SHOWN = 160
"""Maximum characters of an expression in a message."""


class TensorForm(NamedTuple):
    """A tensor's shape and dtype."""

    shape: tuple[int, ...]  # the contract's
    dtype: str  # torch's name without the prefix

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __bool__(self) -> bool:
        return True


class _Absent:
    """The value of a name that the call lacks: false, and every comparison with it is false.

    Arithmetic with it, indexing it and its attributes give it again.
    """

    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def _no(self, *_: object) -> bool:
        return False

    def _itself(self, *_: object) -> _Absent:
        return self

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = _no
    __hash__ = object.__hash__
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = __pos__ = __abs__ = _itself
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __getitem__ = _itself

    @property
    def shape(self) -> _Absent:
        return self

    dtype = ndim = shape


ABSENT: Any = _Absent()


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


def _times(a: Any, b: Any) -> Any:
    if isinstance(a, str | tuple | list) or isinstance(b, str | tuple | list):
        raise TypeError("a product of numbers is wanted")  # 'a' * 10**12 would exhaust the program's memory
    return a * b


def _modulo(a: Any, b: Any) -> Any:
    if isinstance(a, str):
        raise TypeError("a remainder of numbers is wanted")  # as would '%999999999999d' % 1
    return a % b


_NUMERIC = {"<times>": _times, "<modulo>": _modulo}  # no expression can contain these names


class _OfNumbers(ast.NodeTransformer):
    """Replaces products and remainders by the checked functions above, since a name may stand for text."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        name = {ast.Mult: "<times>", ast.Mod: "<modulo>"}.get(type(node.op))
        if name is None:
            return node
        function = ast.copy_location(ast.Name(name, ast.Load()), node)
        return ast.copy_location(ast.Call(function, [node.left, node.right], []), node)


def _multiplies_text(node: ast.AST) -> bool:
    """Whether a literal string, list or tuple is an operand of a product or a remainder."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult | ast.Mod):
        return False
    return any(
        isinstance(one, ast.List | ast.Tuple)
        or (isinstance(one, ast.Constant) and isinstance(one.value, str))
        for one in (node.left, node.right)
    )


class When:
    """A compiled `--when` expression. BadInputError, one line, for text that is not allowed."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._shown = _shown(text)
        try:
            # Options are read at start-up, when Python must not print warnings on the program's stderr.
            with warnings.catch_warnings(action="ignore"):
                tree = ast.parse(text.strip(), mode="eval")
                nodes = list(ast.walk(tree))
                called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
                for node in nodes:
                    self._check(node, called)
                self.names = frozenset(
                    node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in called
                )
                self._as_tensors = frozenset(
                    node.value.id
                    for node in nodes
                    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
                )
                self._code = compile(_OfNumbers().visit(tree), "<--when>", "eval")
        except BadInputError:
            raise
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = getattr(error, "msg", None) or str(error)
            raise BadInputError(f"--when {self._shown} is no Python expression: {reason}") from None

    def _check(self, node: ast.AST, called: Collection[int]) -> None:
        if isinstance(node, ast.Name) and node.id in FUNCTIONS and id(node) not in called:
            raise self._refused(node, "it is a function, which is called")
        if _multiplies_text(node):
            raise self._refused(node, "products and remainders are of numbers")
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and not node.keywords:
                return
            raise self._refused(node, f"the functions are {', '.join(FUNCTIONS)}, without keywords")
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.attr in _OF_TENSORS:
                return
            raise self._refused(node, f"a tensor has {', '.join(_OF_TENSORS)} and nothing else")
        if isinstance(node, ast.Constant) and not isinstance(node.value, int | float | str | None):
            raise self._refused(node, "constants are numbers, strings, True, False and None")
        if not isinstance(node, _NODES):
            kind = type(node).__name__
            raise self._refused(node, f"{kind} is not allowed: arithmetic, comparisons, and, or, not are")

    def _refused(self, node: ast.AST, why: str) -> BadInputError:
        part = ast.get_source_segment(self.text.strip(), node) or self.text
        return BadInputError(f"--when {self._shown}: {_shown(part)} is refused: {why}")

    def check_names(self, known: Collection[str], tensors: Collection[str] | None = None) -> None:
        """BadInputError for a name that no operation has, and for a shape of a name that is not in
        `tensors`."""
        strange = sorted(self.names - set(known) - set(CALL_NAMES))
        if strange:
            raise BadInputError(
                f"--when {self._shown}: no operation has {strange[0]!r}; there are"
                f" {', '.join((*CALL_NAMES, *sorted(known)))}"
            )
        if tensors is not None and (numbers := sorted(self._as_tensors - set(tensors))):
            raise BadInputError(
                f"--when {self._shown}: {numbers[0]!r} is no tensor and has no {', '.join(_OF_TENSORS)}"
            )

    def _value(self, name: str, names: Mapping[str, Any]) -> Any:
        """The value of a name in one call. A name with `.shape`, `.dtype` or `.ndim` stands for a tensor: a
        call in which it is a number, as some operation has it, lacks that tensor."""
        value = names.get(name, ABSENT)
        return value if name not in self._as_tensors or isinstance(value, TensorForm) else ABSENT

    def holds(self, names: Mapping[str, Any]) -> bool:
        """Whether the expression is true for `names`, the values that the call has.

        Raises an error of the expression itself (TypeError, ZeroDivisionError, IndexError); returns False for
        an error caused by a missing name.
        """
        known = {name: self._value(name, names) for name in self.names}
        try:
            return bool(eval(self._code, {"__builtins__": FUNCTIONS, **_NUMERIC}, known))
        except Exception:
            if any(value is ABSENT for value in known.values()):
                return False
            raise
