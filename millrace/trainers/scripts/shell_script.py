"""Shell script as its commands, with variables filled in; nothing is run.

Assignments, arrays, `${NAME:-default}`, `$((2 * N))` and conditions on texts are worked out, as far
as launch scripts of trainers have them. What cannot be (the output of a command, a loop) stays in
the words as it is written.
"""

import ast
import operator
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from millrace.trainers.trainer import SettingsError

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

DEPTH_MAX = 100  # of nested constructs; launch scripts have a handful
WORDS_MAX = 100_000
# What these start is not one job.
_UNREACHED = ("for_statement", "while_statement", "function_definition", "case_statement")
_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}


def commands_of(text: str, values: Mapping[str, str]) -> list[list[str]]:
    """Words of every command of a script, in the order in which it would start them.

    Parameters
    ----------
    text : str
        The script, or a command line.
    values : mapping
        Variables that are set before it starts.

    Raises
    ------
    SettingsError
        The text is no shell script, or nests too deeply.

    Examples
    --------
    >>> commands_of('TP=4; A=(--tp $TP "--x 1"); torchrun -n ${N:-8} train.py ${A[@]}', {})
    [['torchrun', '-n', '8', 'train.py', '--tp', '4', '--x', '1']]
    """
    root = _parser().parse(text.encode()).root_node
    script = _Script(variables={name: [value] for name, value in values.items()})
    script.run(root, 0)
    return script.commands


@cache
def _parser() -> "Parser":
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def _text(node: "Node") -> str:
    return (node.text or b"").decode("utf-8", "replace")


@dataclass(slots=True)
class _Script:
    """State of a script that is worked out: its variables, each a list of words, and commands."""

    variables: dict[str, list[str]]
    commands: list[list[str]] = field(default_factory=list)
    words: int = 0

    def run(self, node: "Node", depth: int) -> None:
        """Work out a node that is a statement, and those inside it."""
        if depth > DEPTH_MAX:
            raise SettingsError(f"the script nests more than {DEPTH_MAX} constructs")
        step = getattr(self, f"_{node.type}", None)
        if step is not None:
            step(node, depth)
            return
        if node.type in (
            "for_statement",
            "while_statement",
            "function_definition",
            "case_statement",
        ):
            return  # what they start is not one job
        for child in node.named_children:
            self.run(child, depth + 1)

    def _variable_assignment(self, node: "Node", depth: int) -> None:
        name_node, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name_node is None or name_node.type != "variable_name":
            return
        name, words = _text(name_node), list[str]()
        if value is not None and value.type == "array":
            for child in value.named_children:
                words += self._expanded(child) if child.type != "comment" else []
        elif value is not None:
            words = [self._joined(value)]
        appended = any(child.type == "+=" for child in node.children)
        if not appended:
            self.variables[name] = words
        elif value is not None and value.type == "array":
            self.variables[name] = [*self.variables.get(name, []), *words]
        else:
            before = self.variables.get(name, [""])
            self.variables[name] = [" ".join(before) + "".join(words)]

    def _if_statement(self, node: "Node", depth: int) -> None:
        children = node.children
        then = next(n for n, child in enumerate(children) if child.type == "then")
        holds = all(self._holds(child) for child in children[1:then] if child.is_named)
        for child in children[then:]:
            if child.type == "elif_clause" and not holds:
                inner = next(n for n, part in enumerate(child.children) if part.type == "then")
                holds = all(self._holds(p) for p in child.children[1:inner] if p.is_named)
                if holds:
                    for part in child.children[inner:]:
                        self.run(part, depth + 1)
                    return
            elif child.type == "else_clause":
                if not holds:
                    self.run(child, depth + 1)
            elif child.is_named and holds and child.type != "elif_clause":
                self.run(child, depth + 1)

    def _command(self, node: "Node", depth: int) -> None:
        words: list[str] = []
        for child in node.named_children:
            if child.type in ("variable_assignment", "comment"):
                continue
            if child.type == "command_name":
                child = child.named_children[0]
            words += self._expanded(child)
        self.words += len(words)
        if self.words > WORDS_MAX:
            raise SettingsError(f"the script has more than {WORDS_MAX:,} words of commands")
        if words and words[0] == "eval" and depth < DEPTH_MAX:
            inner = _parser().parse(" ".join(words[1:]).encode()).root_node
            self.run(inner, depth + 1)
        elif words:
            self.commands.append(words)

    def _holds(self, node: "Node") -> bool:
        """True if a condition on texts holds; conditions on files and commands do not."""
        if node.type in ("test_command", "parenthesized_expression"):
            return all(self._holds(child) for child in node.named_children)
        if node.type == "negated_command" or _text(node).startswith("!"):
            return not any(self._holds(child) for child in node.named_children)
        operators = [child.type for child in node.children if not child.is_named]
        if "||" in operators:
            return any(self._holds(child) for child in node.named_children)
        if "&&" in operators:
            return all(self._holds(child) for child in node.named_children)
        if node.type == "unary_expression":
            text = self._joined(node.named_children[-1], unset="")
            return {"-z": not text, "-n": bool(text)}.get(_text(node.named_children[0]), False)
        if node.type == "binary_expression":
            left, right = (self._joined(node.named_children[k], unset="") for k in (0, -1))
            return _compared(left, _text(node.children[1]), right)
        return _text(node) == "true"

    def _expanded(self, node: "Node") -> list[str]:
        """Words of a node: an unquoted variable is as many as its value has."""
        if node.type in ("simple_expansion", "expansion"):
            return [word for value in self._values(node) for word in value.split()]
        if node.type == "string":
            inner = node.named_children
            if len(inner) == 1 and _text(inner[0]).endswith("[@]}"):
                return self._values(inner[0])
        if node.type == "string" and _text(node).startswith('"-'):
            return self._joined(node).split(maxsplit=1)  # `"--split 99,1,0"` of an array, unquoted
        return [self._joined(node)]

    def _joined(self, node: "Node", unset: str | None = None) -> str:
        """Text of a node, with what it names filled in."""
        if node.type in ("simple_expansion", "expansion"):
            return " ".join(self._values(node, unset))
        if node.type == "arithmetic_expansion":
            return self._calculated(node)
        if node.type == "raw_string":
            return _text(node)[1:-1]
        if node.type == "word":
            return re.sub(r"\\(.)", r"\1", _text(node).replace("\\\n", ""))
        if node.type not in ("string", "concatenation"):
            return _text(node)
        source, text, end = node.text or b"", b"", node.start_byte
        for child in node.children:  # a string's spaces lie between its children
            text += source[end - node.start_byte : child.start_byte - node.start_byte]
            text += b"" if child.type == '"' else self._joined(child, unset).encode()
            end = child.end_byte
        return text.decode("utf-8", "replace").replace("\\\n", "")

    def _values(self, node: "Node", unset: str | None = None) -> list[str]:
        """Value of a variable, as a list; the text itself where the script does not set it."""
        parts = re.fullmatch(r"\$\{?(\w+)(?:\[[@*]\])?(?:(:?[-=?])(.*))?\}?", _text(node), re.S)
        if parts is None:
            return [_text(node)]
        name, rule, default = parts[1], parts[2] or "", (parts[3] or "").removesuffix("}")
        values = self.variables.get(name)
        if values is not None and (any(values) or ":" not in rule):
            return values
        if rule.endswith(("-", "=")):
            return [" ".join(shlex.split(self._filled(default)))] if default else [""]
        if values is not None or "[" in _text(node):
            return values or []
        return [_text(node) if unset is None else unset]

    def _filled(self, text: str) -> str:
        """Text with the variables in it filled in."""
        names = re.compile(r"\$\{?(\w+)\}?")
        return names.sub(lambda hit: " ".join(self.variables.get(hit[1], [hit[0]])), text)

    def _calculated(self, node: "Node") -> str:
        inside = self._filled(_text(node).removeprefix("$((").removesuffix("))"))
        numbers = re.sub(
            r"[A-Za-z_]\w*", lambda hit: " ".join(self.variables.get(hit[0], [hit[0]])), inside
        )
        try:
            return str(_number(ast.parse(numbers.strip(), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return _text(node)


def _number(node: ast.expr) -> int:
    """Value of an expression of whole numbers; ValueError where it has anything else."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        value = _ARITHMETIC[type(node.op)](_number(node.left), _number(node.right))
        if abs(value) < 1 << 62:
            return value
    raise ValueError("no whole number")


def _compared(left: str, sign: str, right: str) -> bool:
    if sign in ("==", "=", "!="):
        return (left == right) != (sign == "!=")
    try:
        return _COMPARISONS[sign](int(left), int(right))
    except (KeyError, ValueError):
        return False
