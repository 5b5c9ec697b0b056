"""Python module of configurations: the value that a function would return, read and never run.

Literals, keyword arguments, attributes that are set later, constants of the module and torchtitan's
shipped configurations are followed. Whatever else a value is made of makes it `NOT_EVALUATED`.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.trainers.torchtitan.settings_table import NEWEST, table_of
from millrace.trainers.trainer import SettingsError

TEXT_MAX = 1 << 20  # characters of a module; shipped ones have 20,000
DEPTH_MAX = 50  # of functions that call each other
TRAINER_CONFIG = "Trainer.Config"


class NotEvaluated:
    """A value that only running the module would tell."""

    def __repr__(self) -> str:
        return "a value that is worked out when the module runs"


NOT_EVALUATED = NotEvaluated()


@dataclass(slots=True, kw_only=True)
class ConfigCall:
    """Call of a class or function of torchtitan: its dotted name and its arguments."""

    name: str
    arguments: list[Any] = field(default_factory=list)
    keywords: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Module:
    """Module of configurations: its constants, its functions, and where its names come from."""

    constants: dict[str, Any]
    functions: Mapping[str, ast.FunctionDef]
    origins: Mapping[str, str]

    def configuration(self, function: str) -> ConfigCall:
        """Call of `Trainer.Config` that a function returns.

        Parameters
        ----------
        function : str
            As `--config` names it; empty: the only one that returns a configuration.

        Raises
        ------
        SettingsError
            There is no such function, or it returns something else.
        """
        returned = {
            name: value
            for name in ([function] if function else self.functions)
            if isinstance(value := self._result(name, 0), ConfigCall)
            and value.name == TRAINER_CONFIG
        }
        if len(returned) != 1:
            names = ", ".join(returned or self.functions) or "none"
            raise SettingsError(
                f"--config {function or 'NAME'}: expected a function that returns "
                f"`Trainer.Config(…)`; the module has {names}"
            )
        return next(iter(returned.values()))

    def _result(self, name: str, depth: int) -> Any:
        if name not in self.functions:
            return shipped(name)
        if depth > DEPTH_MAX:
            return NOT_EVALUATED
        names: dict[str, Any] = {}
        for statement in self.functions[name].body:
            if isinstance(statement, ast.Return) and statement.value is not None:
                return self.value(statement.value, names, depth)
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                value = self.value(statement.value, names, depth)
                self._assign(statement.targets[0], value, names)
        return NOT_EVALUATED

    def _assign(self, target: ast.expr, value: Any, names: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self._owner(target.value, names)
            if owner is not None:
                owner.keywords[target.attr] = value

    def _owner(self, node: ast.expr, names: dict[str, Any]) -> ConfigCall | None:
        """Call whose keyword an assignment sets, new where the configuration had left it out."""
        if isinstance(node, ast.Name):
            owner = names.get(node.id)
            return owner if isinstance(owner, ConfigCall) else None
        if isinstance(node, ast.Attribute):
            outer = self._owner(node.value, names)
            if outer is None:
                return None
            inner = outer.keywords.setdefault(node.attr, ConfigCall(name=node.attr))
            return inner if isinstance(inner, ConfigCall) else None
        return None

    def value(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        """Value of an expression, or `NOT_EVALUATED`."""
        if isinstance(node, ast.Call):
            return self._call(node, names, depth)
        if isinstance(node, ast.Name):
            return names.get(node.id, self.constants.get(node.id, NOT_EVALUATED))
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value, names, depth)
            return (
                owner.keywords.get(node.attr, NOT_EVALUATED)
                if isinstance(owner, ConfigCall)
                else NOT_EVALUATED
            )
        if isinstance(node, ast.Subscript):
            owner, key = (self.value(part, names, depth) for part in (node.value, node.slice))
            return owner.get(key, NOT_EVALUATED) if isinstance(owner, dict) else NOT_EVALUATED
        if isinstance(node, ast.List):
            return [self.value(element, names, depth) for element in node.elts]
        if isinstance(node, ast.Tuple):
            return tuple(self.value(element, names, depth) for element in node.elts)
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return NOT_EVALUATED

    def _call(self, node: ast.Call, names: Mapping[str, Any], depth: int) -> Any:
        name = ast.unparse(node.func)
        arguments = [self.value(argument, names, depth) for argument in node.args]
        if name in self.functions:
            return self._result(name, depth + 1)
        if name == "os.environ.get" and len(arguments) == 2:
            return arguments[1]
        if name == "float" and arguments == ["inf"]:
            return float("inf")
        if name in self.origins and not arguments and not node.keywords:
            config = shipped(name)
            if config is not NOT_EVALUATED:
                return config
        keywords = {
            keyword.arg: self.value(keyword.value, names, depth)
            for keyword in node.keywords
            if keyword.arg is not None
        }
        if name == "model_registry":
            keywords["model"] = self.origins.get(name, "")
        return ConfigCall(name=name, arguments=arguments, keywords=keywords)


def shipped(name: str, model: str = "") -> Any:
    """Call of a configuration that torchtitan ships; `NOT_EVALUATED` where it ships no such one.

    Parameters
    ----------
    name, model : str
        As `--config` and `--module` take them; an empty model: any.
    """
    for key, row in table_of(NEWEST).configs.items():
        owner, _, config = key.partition(".")
        if config != name or model not in ("", owner):
            continue
        call = ConfigCall(name=TRAINER_CONFIG)
        converters = [ConfigCall(name=f"{converter}.Config") for converter in row["converters"]]
        call.keywords["model_spec"] = ConfigCall(
            name="model_registry",
            arguments=[row["flavor"]],
            keywords={
                "model": owner,
                "converters": converters,
                "moe_comm_backend": row["expert_backend"],
            },
        )
        checkpoint = row["activation_checkpoint"]
        call.keywords["activation_checkpoint"] = (
            None if checkpoint is None else ConfigCall(name=f"{checkpoint}.Config")
        )
        loss = "CrossEntropyLoss" if name.endswith("_ce_loss") else "ChunkedLossWrapper"
        call.keywords["loss"] = ConfigCall(name=f"{loss}.Config")
        for setting, value in row["settings"].items():
            section, _, key_name = setting.partition(".")
            owner_call = call.keywords.setdefault(section, ConfigCall(name=section))
            owner_call.keywords[key_name] = value
        return call
    return NOT_EVALUATED


def parse_module(text: str) -> Module:
    """Module of a text.

    Parameters
    ----------
    text : str
        Python.

    Raises
    ------
    SettingsError
        It is no Python, or too long.
    """
    if len(text) > TEXT_MAX:
        raise SettingsError(f"the module has {len(text):,} characters; at most {TEXT_MAX:,}")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise SettingsError(f"the module is no Python{line}") from None
    functions, origins = {}, {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            functions[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            owner = (node.module or "").removeprefix("torchtitan.models.").partition(".")[0]
            origins.update({alias.asname or alias.name: owner for alias in node.names})
    module = Module(constants={}, functions=functions, origins=origins)
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            _set_constants(module, node.targets[0], node.value)
    return module


def _set_constants(module: Module, target: ast.expr, value: ast.expr) -> None:
    if isinstance(target, ast.Name):
        module.constants[target.id] = module.value(value, {}, 0)
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for name, part in zip(target.elts, value.elts, strict=False):
            _set_constants(module, name, part)
