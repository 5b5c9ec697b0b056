"""Mutants of the source: every change that an operator of cosmic-ray makes in a place that matters.

A mutant is known by its file's name, its operator, the text of its line before and its number among
equal ones, not by where its line stands: a sample drawn at one commit is found again at another,
even where a file has moved to another folder.

Left out are places that no run can tell apart, or that none has to: annotations and unions of
types, `if TYPE_CHECKING` and `if __name__ == "__main__"`, `__all__`, decorators and the keywords of
a class (`frozen`, `kw_only`: a discipline), `strict=` of `zip`, and `assert`, which guards against
our own bugs. Docstrings hold nothing that an operator changes.

Left out are operators that tell nothing about the tests:

- pairs of another kind (`+` to `<<`): TypeError wherever the line runs at all;
- `==` to `is` and `is` to anything but `is not`: the same for what is kept once, as members of an
  enumeration are;
- unary `-` to `+` or `~`: what its deletion or a number's change does too;
- RemoveDecorator: every use of a property or a value fails, or (`cache`) only time is lost;
- VariableReplacer and VariableInserter: they draw their values from a generator without a seed.
"""

import ast
import difflib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, permutations
from pathlib import PurePosixPath
from typing import Any

Position = tuple[int, int]  # a line from 1, a column from 0
Span = tuple[Position, Position]

ORDERS = ("Eq", "NotEq", "Lt", "LtE", "Gt", "GtE")
ARITHMETIC = (
    ("Add", "Sub"),
    ("Mul", "Div", "FloorDiv", "Mod"),
    ("RShift", "LShift"),
    ("BitOr", "BitAnd", "BitXor"),
)
# Operators by kind: a sample takes the kinds in turn.
KINDS = {
    "comparison": (
        *(f"ReplaceComparisonOperator_{a}_{b}" for a, b in permutations(ORDERS, 2)),
        "ReplaceComparisonOperator_Is_IsNot",
        "ReplaceComparisonOperator_IsNot_Is",
    ),
    "arithmetic": (
        *(
            f"ReplaceBinaryOperator_{a}_{b}"
            for alike in ARITHMETIC
            for a, b in permutations(alike, 2)
        ),
        "ReplaceBinaryOperator_Pow_Mul",
    ),
    "condition": (
        "AddNot",
        "ReplaceAndWithOr",
        "ReplaceOrWithAnd",
        "ReplaceUnaryOperator_Delete_Not",
    ),
    "number": ("NumberReplacer", "ReplaceUnaryOperator_Delete_USub"),
    "flow": (
        "ZeroIterationForLoop",
        "ReplaceBreakWithContinue",
        "ReplaceContinueWithBreak",
        "ExceptionReplacer",
    ),
    "boolean": ("ReplaceTrueWithFalse", "ReplaceFalseWithTrue"),
}
KIND_OF = {operator: kind for kind, operators in KINDS.items() for operator in operators}
# Parents of a binary operator in parso's tree; elsewhere `*` and `/` mark parameters or unpack.
BINARY_PARENTS = {"arith_expr", "term", "expr", "xor_expr", "and_expr", "shift_expr", "power"}
TYPES = {"bool", "bytes", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """Change of one place in one file.

    `occurrence` counts the mutants of the file with the same operator and the same line before;
    `nth` is the number by which cosmic-ray knows the place, among all of its operator in the file.
    """

    package: str
    path: str
    line: int
    operator: str
    before: str
    occurrence: int
    nth: int
    after: str = ""

    @property
    def name(self) -> str:
        """Name of its file."""
        return PurePosixPath(self.path).name

    @property
    def place(self) -> tuple[str, str, str, int]:
        """Key of the mutant at every commit: file name, operator, line before and number."""
        return (self.name, self.operator, self.before, self.occurrence)

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Key of the mutant at one commit: path, operator, line before and number."""
        return (self.path, self.operator, self.before, self.occurrence)


def mutants_of(package: str, path: str, source: str) -> list[Mutant]:
    """Mutants of a file that are not left out, in the order of operators and places."""
    from cosmic_ray.ast import ast_nodes, get_ast

    nodes = list(ast_nodes(get_ast(source)))
    outside = _outside(left_out(source))
    lines = source.splitlines()
    counts: Counter[tuple[str, str]] = Counter()
    mutants = []
    for operator in KIND_OF:
        places = (
            (node, span) for node in nodes for span in _operator(operator).mutation_positions(node)
        )
        for nth, (node, ((line, column), _)) in enumerate(places):
            binary = operator.startswith("ReplaceBinaryOperator")
            if (binary and node.parent.type not in BINARY_PARENTS) or not outside((line, column)):
                continue
            before = lines[line - 1].strip()
            occurrence = counts[operator, before]
            counts[operator, before] += 1
            mutants.append(
                Mutant(
                    package=package,
                    path=path,
                    line=line,
                    operator=operator,
                    before=before,
                    occurrence=occurrence,
                    nth=nth,
                )
            )
    return mutants


@cache
def _operator(name: str) -> Any:
    from cosmic_ray.plugins import get_operator

    return get_operator(f"core/{name}")()


def mutated(mutant: Mutant, source: str) -> str:
    """Text of a file with the mutant in it."""
    from cosmic_ray.mutating import mutate_code

    text = mutate_code(source, _operator(mutant.operator), mutant.nth)
    assert isinstance(text, str), mutant
    return text


def left_out(source: str) -> list[Span]:
    """Spans of a file in which no mutant says anything about the tests."""
    lines = source.splitlines()

    def column(line: int, offset: int) -> int:
        return len(lines[line - 1].encode()[:offset].decode())

    return [
        ((node.lineno, column(node.lineno, node.col_offset)),
         (node.end_lineno, column(node.end_lineno, node.end_col_offset)))
        for node in _left_out_nodes(ast.parse(source))
    ]  # fmt: skip


def _left_out_nodes(tree: ast.Module) -> Iterator[Any]:
    for node in ast.walk(tree):
        match node:
            case ast.arg(annotation=ast.expr() as kind) | ast.AnnAssign(annotation=kind):
                yield kind
            case ast.Assert():
                yield node
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                yield node
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
                yield node
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                yield node
            case ast.keyword(arg="strict"):
                yield node
            case ast.BinOp(op=ast.BitOr()) if _is_type(node):
                yield node
            case ast.ClassDef():
                yield from (*node.decorator_list, *node.keywords)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from node.decorator_list
                if node.returns is not None:
                    yield node.returns


def _is_type(node: ast.expr) -> bool:
    """True if an expression reads as a type or a union of types."""
    match node:
        case ast.BinOp(op=ast.BitOr()):
            return _is_type(node.left) and _is_type(node.right)
        case ast.Subscript():
            return _is_type(node.value)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in TYPES or (name[0].isupper() and not name.isupper())
        case ast.Constant(value=value):
            return value is None
    return False


def _outside(spans: Sequence[Span]) -> Callable[[Position], bool]:
    return lambda position: not any(start <= position < end for start, end in spans)


def drawn(
    mutants: Iterable[Mutant], count: int, seed: int, text_of: Callable[[str], str]
) -> list[Mutant]:
    """Sample of a package's mutants: kinds in turn, of each the file that has been drawn least.

    Ties go to the smallest digest of the seed and the mutant's place, so a sample changes only
    where the lines that it could draw from change. No line is drawn twice.

    Parameters
    ----------
    mutants : iterable of Mutant
        Mutants to draw from.
    count : int
        Number of mutants; fewer where there are not so many lines.
    seed : int
        Chooses another sample.
    text_of : callable
        Text of a file by its path.
    """
    left: dict[str, list[tuple[str, Mutant]]] = {kind: [] for kind in KINDS}
    for mutant in mutants:
        digest = hashlib.sha256(repr((seed, *mutant.place)).encode()).hexdigest()
        left[KIND_OF[mutant.operator]].append((digest, mutant))
    sample: list[Mutant] = []
    lines: set[tuple[str, int]] = set()
    files: Counter[str] = Counter()
    for kind in cycle(KINDS):
        if len(sample) == count or not any(left.values()):
            return sample
        open_ = [
            candidate
            for candidate in left[kind]
            if (candidate[1].path, candidate[1].line) not in lines
        ]
        open_.sort(key=lambda candidate: (files[candidate[1].name], candidate[0]))
        left[kind] = open_
        while open_:
            _, mutant = open_.pop(0)
            told = with_after(mutant, text_of(mutant.path))
            if told is not None:
                sample.append(told)
                lines.add((mutant.path, mutant.line))
                files[mutant.name] += 1
                break
    return sample


def with_after(mutant: Mutant, source: str) -> Mutant | None:
    """Mutant with the first line that it changes; None where it is not Python or no change."""
    text = mutated(mutant, source)
    try:
        if ast.dump(ast.parse(text)) == ast.dump(ast.parse(source)):
            return None
        compile(text, mutant.path, "exec")
    except SyntaxError:
        return None
    changes = difflib.ndiff(source.splitlines(), text.splitlines())
    after = next((line[2:].strip() for line in changes if line.startswith("+ ")), "")
    return replace(mutant, after=after)


def found_again(wanted: Mutant, candidates: Iterable[Mutant]) -> Mutant | None:
    """Mutant of another commit at this one: in its own file, its package or another; or None."""
    alike = [mutant for mutant in candidates if mutant.place == wanted.place]
    if not alike:
        return None
    return min(
        alike, key=lambda mutant: (mutant.path != wanted.path, mutant.package != wanted.package)
    )
