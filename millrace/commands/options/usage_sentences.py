"""Sentences about a command line that its parser does not understand: the place, and the fix.

The parser's own words (`Input should be a valid integer, unable to parse string as an integer`)
quote neither the value nor what was meant.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

NUMBERS = {"int": "a whole number", "float": "a number"}  # by the beginning of the parser's code
# What people type for options that have another name here.
MEANT = {
    **dict.fromkeys(("gpu", "gpus", "num-gpus", "device", "devices"), "--cluster"),
    **dict.fromkeys(("batch", "batch-size", "bs", "gbs"), "--global-batch"),
    **dict.fromkeys(("deadline", "days"), "--within"),
    **dict.fromkeys(("microbatch", "mbs"), "--micro-batch"),
}
EXTRA = re.compile(r"unexpected extra argument\(?s?\)? \((.*)\)")


def empty_value(arguments: Sequence[str]) -> str:
    """Sentence about an argument without a letter; empty where every one has some.

    Parameters
    ----------
    arguments : sequence of str
        The command line without the program's name.

    Examples
    --------
    >>> empty_value(["plan", "gpt2", "--framework", ""])
    'the value of --framework is empty: write one, or leave --framework out'
    >>> empty_value(["plan", ""])
    'an argument of `plan` is empty: write one, or leave it out'
    >>> empty_value(["plan", "gpt2"])
    ''
    """
    for before, argument in pairwise(("", *arguments)):
        option, equals, text = argument.partition("=")
        if argument.startswith("--") and equals and not text:
            return _empty(option)
        if not argument.strip():
            if before.startswith("-"):
                return _empty(before)
            command = f" of `{arguments[0]}`" if arguments[0].strip() else ""
            return f"an argument{command} is empty: write one, or leave it out"
    return ""


def _empty(option: str) -> str:
    return f"the value of {option} is empty: write one, or leave {option} out"


def usage_sentence(error: Any, arguments: Sequence[str]) -> str:
    """Sentence about a usage error of the parser, with the page that has more.

    Parameters
    ----------
    error : Exception
        What the parser raised: its class is the parser's own affair, its attributes are read.
    arguments : sequence of str
        The command line without the program's name.
    """
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", None)
    if path is None:  # of an option without its value
        path = " ".join(["millrace", *[word for word in arguments[:1] if word[0] != "-"]])
    return f"{_reason(error, context, arguments)} (see `{path} --help`)"


def _reason(error: Any, context: Any, arguments: Sequence[str]) -> str:
    parameter = getattr(error, "param", None)
    option = getattr(error, "option_name", "")
    message = str(getattr(error, "message", "") or error)
    if hasattr(error, "possibilities"):
        typed = next((word for word in arguments if word.startswith(option)), option)
        return _unknown(typed.partition("=")[0], error.possibilities or (), context)
    if option and "requires" in message:
        return f"{option} needs a value{_meaning(_parameter(option, context))}"
    if option:
        return f"{message[:1].lower()}{message[1:].rstrip('.')}".replace(f"'{option}'", option)
    if parameter is not None and hasattr(error, "param_type"):
        return f"{_name(parameter)} is missing{_meaning(parameter)}"
    if parameter is not None:
        return _wrong_value(error, parameter, message)
    if (extra := EXTRA.search(message)) and context is not None:
        places = [_name(p) for p in context.command.params if p.param_type_name == "argument"]
        takes = " ".join(places) or "no argument"
        return f"`{extra[1]}` is too many: `{context.command_path}` takes {takes}"
    return message.rstrip(".")


def _unknown(option: str, close: Sequence[str], context: Any) -> str:
    """Sentence about an option that a command does not have, with those that are like it."""
    commands = getattr(getattr(context, "command", None), "commands", {})
    owner = next((name for name, c in commands.items() if _has(c.params, option)), "")
    if owner:
        return f"{option} goes behind a command, as in `millrace {owner} {option}`"
    parameters = getattr(getattr(context, "command", None), "params", ())
    place = option.strip("-").upper()
    if any(p.param_type_name == "argument" and _name(p) == place for p in parameters):
        return f"{place} is given without an option: `{context.command_path} {place}`"
    likely = (MEANT.get(option.lstrip("-")), f"--{option.lstrip('-')}")
    close = next(([name] for name in likely if name and _has(parameters, name)), close)
    meant = f"; did you mean {' or '.join(sorted(close))}?" if close else ""
    return f"there is no option {option}{meant}"


def _wrong_value(error: Any, parameter: Any, message: str) -> str:
    """Sentence about a value that an option or argument does not take."""
    details = getattr(error.__cause__, "errors", None)
    if details is None:
        return f"{_name(parameter)}: {message.rstrip('.')}"
    first = details()[0]
    code, text = str(first["type"]), first["input"]
    least, most = getattr(parameter, "min", None), getattr(parameter, "max", None)
    kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    number = NUMBERS.get(getattr(kind, "__name__", "")) or NUMBERS.get(code.partition("_")[0])
    if number is None:
        reason = message.removeprefix("Value error, ").rstrip(".")
        return f"{_name(parameter)} {text}: {reason[:1].lower()}{reason[1:]}"
    bounds = "" if least is None else f" of at least {least:g}"
    if most is not None:
        bounds = f" of at most {most:,}" if least is None else f" from {least:g} to {most:,}"
    return f"{_name(parameter)} {text}: expected {number}{bounds}"


def _parameter(option: str, context: Any) -> Any:
    """Parameter of a context's command that an option belongs to; None where there is none."""
    parameters = getattr(getattr(context, "command", None), "params", ())
    return next((p for p in parameters if _has([p], option)), None)


def _has(parameters: Sequence[Any], option: str) -> bool:
    return any(option in (*p.opts, *p.secondary_opts) for p in parameters)


def _name(parameter: Any) -> str:
    """Name of a parameter as it is typed."""
    if parameter.param_type_name == "option":
        return str(max(parameter.opts, key=len))
    return str(parameter.metavar or parameter.name.upper())


def _meaning(parameter: Any) -> str:
    """First sentence of what help says of a parameter, behind a colon."""
    text = str(getattr(parameter, "help", None) or "")
    return f": {re.split(r'[.;](?= |$)', text, maxsplit=1)[0]}" if text else ""
