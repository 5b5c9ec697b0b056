"""Given arguments: values by destination, of which only those that are asked for are checked."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, NamedTuple

from millrace.trainers.megatron.argument_table import (
    FLAGS,
    Argument,
    defaults,
    option_of,
    row_of,
    value_of,
)
from millrace.trainers.megatron.earlier_arguments import last_year, todays_words
from millrace.trainers.trainer import SettingsError

ON, OFF = ("true", "1", "yes", "on", ""), ("false", "0", "no", "off")
NEAR = 0.9  # ratio from which a name is taken for a slip of another


class _Said(NamedTuple):
    """Argument as it was typed, with the words that follow; or the value of a flag."""

    row: Argument
    name: str
    words: tuple[str, ...]
    flag: bool | None = None


class GivenArguments(Mapping[str, Any]):
    """Values of all arguments by destination: what is given, else the default.

    A value is read when it is asked for. What is never asked for has no influence, and whatever it
    says is no fault.

    Attributes
    ----------
    names : list of str
        Arguments that are given, as they are typed.
    unread : list of str
        Those that no release has.
    """

    def __init__(self, left_out: frozenset[str] = frozenset()) -> None:
        self.names: list[str] = []
        self.unread: list[str] = []
        self._left_out = {name.replace("_", "-") for name in left_out}
        self._said: dict[str, _Said] = {}
        self._gone: list[str] = []
        self._asked: set[str] = set()

    def __getitem__(self, dest: str) -> Any:
        said = self._said.get(dest)
        if said is None:
            return defaults()[dest]
        if said.flag is None and _is_flag(said.row):
            text = said.words[0]
            name = re.sub(r"\W", "", text)
            hint = f", by --set {name}=VALUE" if "$" in text else ""
            raise SettingsError(f"{said.name}: {text}: expected true or false{hint}")
        value = value_of(said.row, said.name, said.words) if said.flag is None else said.flag
        self._asked.add(dest)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(defaults())

    def __len__(self) -> int:
        return len(defaults())

    @property
    def options(self) -> dict[str, Any]:
        """Values by option as it is typed; a flag that is on is True."""
        options: dict[str, Any] = {}
        for said in self._said.values():
            if said.flag is None and not _is_flag(said.row):
                with suppress(SettingsError):  # of a value that no plan depends on
                    options[said.name] = value_of(said.row, said.name, said.words)
            elif said.flag is not None and said.flag is FLAGS.get(said.row.kind, said.flag):
                options[said.name] = True
        return options

    def gives(self, *dests: str) -> bool:
        """True if one of some destinations is given."""
        return any(dest in self._said for dest in dests)

    def add_words(self, words: Sequence[str]) -> None:
        """Add the arguments of a command line; the last of a destination counts."""
        name, following = "", list[str]()
        for word in (*words, "--"):
            if not (word.startswith("--") or (word[:1] == "-" and not word[1:2].isdigit())):
                following.append(word)
                continue
            if name:
                self._add(name, following)
            name, equals, attached = word.partition("=")
            following = [attached] if equals else []

    def add_pair(self, key: str, value: Any) -> None:
        """Add an argument by its option, with dashes or without, or by its destination.

        Parameters
        ----------
        key : str
            As a file has it, `--num-layers`, `norm_epsilon` or `sequence_parallel`.
        value : object
            Text, number, truth or list of them; None takes back what was given.
        """
        option = key if key.startswith("--") else f"--{key.replace('_', '-')}"
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        row = (None if key.startswith("--") else row_of(key)) or row_of(option)
        if row is None or value is None or value == []:
            if row is not None:
                self._said.pop(row.dest, None)
            elif value not in (None, False, []):
                self._add(option, _texts(value))
        elif _is_flag(row):
            text = str(value).strip().lower()
            if text not in (*ON, *OFF):  # a fault where a plan asks for it
                self._set(_Said(row, key, (str(value),)))
                return
            inverted = row.kind == "off" and key != row.dest
            if text in ON and self._today(option, ()):
                return
            self._set(_Said(row, option, (), (text in ON) != inverted))
        else:
            texts = [str(value)] if isinstance(value, list) and not row.many else _texts(value)
            if not self._today(option, texts):
                self._set(_Said(row, option, tuple(texts)))

    def suppose(self, dest: str, word: str) -> None:
        """Add a value that a release has by default, where none is given."""
        row = row_of(dest)
        if row is not None and dest not in self._said:
            self._said[dest] = _Said(row, row.names[0], (word,))

    def without_influence(self, usual: Sequence[str]) -> Iterator[str]:
        """Yield names of what was given and never asked for.

        Parameters
        ----------
        usual : sequence of str
            Destinations of which a plan has what they say.
        """
        for dest, said in self._said.items():
            if dest not in self._asked and dest not in usual:
                yield said.name
        yield from self._gone

    def check_slips(self) -> None:
        """Refuse arguments that no release has and that are nearly ones that matter."""
        asked = [option_of(dest) for dest in self._asked]
        for name in self.unread:
            alike = [option for option in asked if abs(len(option) - len(name)) < 2]
            if close := get_close_matches(name, alike, n=1, cutoff=NEAR):
                raise SettingsError(
                    f"{name}: Megatron-LM has no such argument; did you mean {close[0]}? If not, "
                    f"go on without it by --ignore {name.lstrip('-')}"
                )

    def _add(self, name: str, words: Sequence[str]) -> None:
        if name.lstrip("-").replace("_", "-") in self._left_out:
            return
        self.names.append(name)
        row = row_of(name)
        if self._today(name, words):
            return
        if row is None:
            (self.unread if last_year(name) is None else self._gone).append(name)
        elif _is_flag(row):
            self._set(_Said(row, name, (), FLAGS.get(row.kind, name == row.names[0])))
            self.unread += words
        else:
            self._set(_Said(row, name, tuple(words)))

    def _today(self, name: str, words: Sequence[str]) -> bool:
        """True if an argument is called otherwise today, and is added so."""
        today = todays_words(name, words)
        if today is None:
            return False
        position = 0
        while position < len(today):
            end = position + 1
            while end < len(today) and not today[end].startswith("--"):
                end += 1
            row = row_of(today[position])
            if row is not None:
                flag = FLAGS.get(row.kind)
                self._set(_Said(row, name, tuple(today[position + 1 : end]), flag))
            position = end
        return True

    def _set(self, said: _Said) -> None:
        names = {name.lstrip("-") for name in (said.row.dest.replace("_", "-"), *said.row.names)}
        if not names & self._left_out:
            self._said[said.row.dest] = said


def _is_flag(row: Argument) -> bool:
    return row.kind in FLAGS or row.kind == "either"


def _texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]
