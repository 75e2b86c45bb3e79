"""`--when`: an expression over a call's scalars and shapes, which nothing can be done with but compute.

Names are `op`, `layer`, `layer_index`, `step`, `call`, `rank`, scalars, conventions, sizes of axes (`T`,
`Hv`) and tensors, of which there is `q.shape`, `q.dtype` and `q.ndim`. A tensor's name alone says whether the
call has it. What a call has not compares as false with everything.

Standard library only: every Python process below a captured command reads its options at start-up.
"""

from __future__ import annotations

import ast
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
    # No power: 9**9**9 would take the program with it.
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.Div,
    ast.FloorDiv,
    ast.Mod,
)


class TensorForm(NamedTuple):
    """A tensor without its elements."""

    shape: tuple[int, ...]  # the contract's
    dtype: str  # torch's name without the prefix

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __bool__(self) -> bool:
        return True


class _Absent:
    """Stands for what this call has not: false, and equal to, below and above nothing; so is what is made
    of it."""

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


class When:
    """Raises BadInputError, in a line, for text that is no such expression."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            tree = ast.parse(text.strip(), mode="eval")
            code = compile(tree, "<--when>", "eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = getattr(error, "msg", None) or str(error)
            raise BadInputError(f"--when {text!r} is no Python expression: {reason}") from None
        for node in ast.walk(tree):
            self._check(node)
        self._code = code
        self.names = frozenset(
            node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id not in FUNCTIONS
        )

    def _check(self, node: ast.AST) -> None:
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
        part = ast.unparse(node) if isinstance(node, ast.expr) else self.text
        return BadInputError(f"--when {self.text!r}: {part!r} is refused: {why}")

    def check_names(self, known: Collection[str]) -> None:
        """BadInputError for a name that no operation has."""
        strange = sorted(self.names - set(known) - set(CALL_NAMES))
        if strange:
            raise BadInputError(
                f"--when {self.text!r}: no operation has {strange[0]!r}; there are"
                f" {', '.join((*CALL_NAMES, *sorted(known)))}"
            )

    def holds(self, names: Mapping[str, Any]) -> bool:
        """Whether the expression is true; `names` has what the call has. An error of the expression's own
        (TypeError, ZeroDivisionError, IndexError) is raised; one for want of a name is false."""
        known = {name: names.get(name, ABSENT) for name in self.names}
        try:
            return bool(eval(self._code, {"__builtins__": FUNCTIONS}, known))
        except Exception:
            if any(value is ABSENT for value in known.values()):
                return False
            raise
