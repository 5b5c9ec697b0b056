"""Mapping from a model type's keys to a zoo family: its reader and its result."""

from collections.abc import Callable
from typing import NamedTuple

from millrace.models.importers.huggingface.keys import Keys
from millrace.models.spec import Config


class Mapped(NamedTuple):
    """Family of the zoo, its configuration, and the longest sequence the model was made for.

    `notes` say which parts of the file's model are not imported.
    """

    family: str
    config: Config
    seq_len: int
    notes: tuple[str, ...] = ()


class ModelType(NamedTuple):
    """Reader of one `model_type`.

    `classes` are the values of `architectures` that are understood, the first one meant where a
    configuration names none; `read` is given the configuration's keys and the class.
    """

    classes: tuple[str, ...]
    read: Callable[[Keys, str], Mapped]
