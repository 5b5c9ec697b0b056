"""YAML texts: the door through which settings in YAML come in, and go out."""

from typing import Any

from millrace.trainers.trainer import SettingsError, number_text

CHARACTERS_MAX = 1_000_000  # PyYAML takes a second for a tenth of it; settings have thousands


def read_yaml(text: str, where: str) -> dict[str, Any]:
    """Mapping that a text in YAML holds.

    Parameters
    ----------
    text : str
        One document, without anchors and without tags of Python.
    where : str
        Name of the file, for messages.

    Raises
    ------
    SettingsError
        The text is too long, no YAML or no mapping, or repeats parts of itself.

    Examples
    --------
    >>> read_yaml("parallelism: {dp: 2, tp: 4}", "config.yaml")
    {'parallelism': {'dp': 2, 'tp': 4}}
    """
    import yaml

    if len(text) > CHARACTERS_MAX:
        raise SettingsError(
            f"{where} has {len(text):,} characters; settings have at most {CHARACTERS_MAX:,}"
        )
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):  # a kilobyte of them can stand for a billion
                raise SettingsError(f"{where}: `*{event.anchor}` repeats a part; write it out")
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        cause = " ".join(str(error).split())
        raise SettingsError(f"{where} is no YAML: {cause}") from None
    except SettingsError:
        raise
    except (RecursionError, ValueError) as error:
        raise SettingsError(f"{where} is no YAML that can be read: {error}") from None
    if not isinstance(document, dict) or not all(isinstance(name, str) for name in document):
        raise SettingsError(f"{where} holds no mapping of names to settings")
    return document


def write_yaml(document: dict[str, Any]) -> str:
    """Text of a mapping in YAML, its keys in their order."""
    import yaml

    dumper: Any = type("NumberDumper", (yaml.SafeDumper,), {})
    dumper.add_representer(float, _number)
    return str(yaml.dump(document, Dumper=dumper, sort_keys=False, allow_unicode=True))


def _number(dumper: Any, number: float) -> Any:
    """Node of a number as people write it; YAML 1.1 wants a point before an exponent."""
    digits, power, exponent = number_text(number).partition("e")
    if not power:
        return dumper.represent_float(number)
    digits = digits if "." in digits else f"{digits}.0"
    return dumper.represent_scalar("tag:yaml.org,2002:float", f"{digits}e{exponent}")
