"""Completions of the shell (Tab): names of models, devices, frameworks, and the closed words.

`millrace --install-completion` teaches the shell to ask. Each function takes what is typed so far
and returns the words that begin with it, and nothing is read but the catalogues.
"""

from millrace.commands.option_words import PRECISIONS, SCHEDULES


def models(incomplete: str) -> list[str]:
    """Names of the zoo that begin with `incomplete`."""
    from millrace.models.zoo.catalogue import NAMES

    return [name for name in NAMES if name.startswith(incomplete)]


def clusters(incomplete: str) -> list[str]:
    """Devices of the catalogue, `local` and `local-gpu`, up to the colon that sizes follow."""
    from millrace.planner.clusters import cluster_files

    devices = ("local", "local-gpu", *cluster_files.names())
    return [f"{name}:" for name in devices if f"{name}:".startswith(incomplete)]


def frameworks(incomplete: str) -> list[str]:
    """Names of the frameworks whose costs are known, that begin with `incomplete`."""
    from millrace.planner.frameworks import framework_tables

    return [name for name in framework_tables.frameworks() if name.startswith(incomplete)]


def schedules(incomplete: str) -> list[str]:
    """Names of the pipeline schedules that begin with `incomplete`."""
    return [name for name in SCHEDULES.split(", ") if name.startswith(incomplete)]


def precisions(incomplete: str) -> list[str]:
    """Names of the precisions that begin with `incomplete`."""
    return [name for name in PRECISIONS.split(", ") if name.startswith(incomplete)]
