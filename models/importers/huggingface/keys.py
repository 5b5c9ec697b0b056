"""Keys: a configuration's values, read with their type and range checked.

`null` is a value of its own, which only some keys may have. Every complaint names the file and the
key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from millrace.models.errors import ModelError

SIZE_MAX = 2**31 - 1
"""No dim of a published model comes near; larger ones are slips of the pen."""
LAYERS_MAX = 10_000
"""Layers are built one by one, so their number is bounded more tightly."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The values of one JSON object of a configuration.

    In the readers below `default` is the value of a key that is missing, and `null` what an
    explicit `null` stands for; where one is left out, a key that is missing, or `null`, is refused.

    Attributes
    ----------
    values : mapping
        The object, as decoded.
    where : str
        What the object is, for messages: "configuration `config.json`".
    own_names : mapping
        What the object calls a key, where that is another name than the readers'.
    """

    values: Mapping[str, Any]
    where: str
    own_names: Mapping[str, str] = field(default_factory=dict)

    def over(self, defaults: Mapping[str, Any], also: Mapping[str, str] | None = None) -> "Keys":
        """Return the same keys with `defaults` for those that are missing.

        `also` lists other names that a key may have (other name: name); where a key is there under
        both, the other name counts.
        """
        names = also or {}
        values = {names.get(name, name): value for name, value in defaults.items()}
        values |= {name: value for name, value in self.values.items() if name not in names}
        others = {names[name]: name for name in self.values if name in names}
        values |= {name: self.values[other] for name, other in others.items()}
        return replace(self, values=values, own_names={**self.own_names, **others})

    def without(self, *names: str) -> "Keys":
        """Return the same keys but for those named."""
        remaining = {name: value for name, value in self.values.items() if name not in names}
        return replace(self, values=remaining)

    def has(self, name: str) -> bool:
        """True if the key is there and not `null`."""
        return self.values.get(name) is not None

    def integer(
        self,
        name: str,
        default: int | None = None,
        *,
        least: int = 1,
        most: int = SIZE_MAX,
        null: int | None = None,
    ) -> int:
        """Return an integer from `least` to `most`."""
        value = self._value(name, default, null)
        if not self.has(name) and value is not None:
            return int(value)
        return self._integer(name, value, least, most)

    def number(
        self,
        name: str,
        default: float | None = None,
        *,
        least: float = 0.0,
        most: float = 1e30,
        null: float | None = None,
    ) -> float:
        """Return a finite number from `least` to `most`."""
        value = self._value(name, default, null)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most:  # which nan is not
            raise self.error(name, f"expected a number from {least:g} to {most:g}")
        return float(value)

    def flag(self, name: str, default: bool | None = None, *, null: bool | None = None) -> bool:
        """Return true or false."""
        value = self._value(name, default, null)
        if not isinstance(value, bool):
            raise self.error(name, "expected true or false")
        return value

    def text(self, name: str, default: str | None = None, *, null: str | None = None) -> str:
        """Return a string."""
        value = self._value(name, default, null)
        if not isinstance(value, str):
            raise self.error(name, "expected a string")
        return value

    def choice(
        self,
        name: str,
        options: Mapping[str, T],
        default: str | None = None,
        *,
        null: str | None = None,
    ) -> T:
        """Entry of `options` under the string that the key holds."""
        value = self._value(name, default, null)
        if not isinstance(value, str) or value not in options:
            raise self.error(name, f"expected one of {', '.join(options)}")
        return options[value]

    def integers(
        self,
        name: str,
        default: Sequence[int] | None = None,
        *,
        least: int = 1,
        most: int = SIZE_MAX,
        null: Sequence[int] | None = None,
    ) -> tuple[int, ...]:
        """Return a list of integers, each from `least` to `most`."""
        value = self._value(name, default, null)
        if not isinstance(value, list | tuple) or len(value) > LAYERS_MAX:
            raise self.error(name, f"expected a list of at most {LAYERS_MAX} integers")
        return tuple(self._integer(name, item, least, most) for item in value)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings; an empty one where the key is missing or `null`."""
        value = self._value(name, (), ())
        is_list = isinstance(value, list | tuple) and len(value) <= LAYERS_MAX
        if not is_list or not all(isinstance(item, str) for item in value):
            raise self.error(name, f"expected a list of at most {LAYERS_MAX} strings")
        return tuple(value)

    def section(self, name: str) -> "Keys":
        """Return the object under a key; an empty one where the key is missing or `null`."""
        value = self._value(name, {}, {})
        if not isinstance(value, dict):
            raise self.error(name, "expected an object")
        return Keys(values=value, where=f"{self.where}, `{name}`")

    def error(self, name: str, expected: str) -> ModelError:
        """Return the complaint about the key's value, to be raised."""
        shown_value = shown(self.values[name]) if name in self.values else "missing"
        own_name = self.own_names.get(name, name)
        return ModelError(f"{self.where}: `{own_name}` is {shown_value}; {expected}")

    def _value(self, name: str, default: Any, null: Any) -> Any:
        if name not in self.values:
            return default
        value = self.values[name]
        return null if value is None else value

    def _integer(self, name: str, value: Any, least: int, most: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.error(name, f"expected an integer from {least} to {most}")
        return value


def shown(value: Any) -> str:
    """Write a JSON value for a message, shortened."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
