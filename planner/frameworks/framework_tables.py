"""Framework tables (`frameworks.toml`): costs, capabilities and memory of each, by name."""

from difflib import get_close_matches
from functools import lru_cache
from importlib import resources
from typing import NamedTuple

import msgspec

from millrace.planner.cluster import Software
from millrace.planner.errors import ClusterError
from millrace.planner.frameworks.capabilities import EVERYTHING, Capabilities
from millrace.planner.frameworks.framework_memory import USUAL, FrameworkMemory

DEFAULT = "default"  # a framework that has no table takes this one

# Megatron-LM's buckets of gradients hold 40 million parameters or more (distributed_data_parallel,
# `bucket_size`), DeepSpeed's `reduce_bucket_size` is 5e8 elements (both read 2026-11): of this
# order.
BUCKET_BYTES = 200_000_000

# A million parameters of 2 bytes for each replica: Megatron-LM, distributed_data_parallel
# (`bucket_size`: the larger of 40 million and a million times the replicas), read 2026-11. Without
# overlap there is one bucket, which comes to the same. Where buckets have one size for any number
# of ranks (DeepSpeed) or are blocks (PyTorch's FSDP), a framework's table says 0.
BUCKET_PART_BYTES = 2_000_000

# One for all frameworks: fitted on published runs with tensor parallelism, 2026-11 (0.5 to 0.7 on
# A100, H100, V100 and B200).
LINKS = 0.6


# What is the same for all frameworks whose tables do not say it.
DEFAULTS = {"bucket_bytes": BUCKET_BYTES, "bucket_part_bytes": BUCKET_PART_BYTES, "links": LINKS}
LIKE = "like"  # names the framework whose table another shares
RUNS = "runs"  # table of what a framework can run
MEMORY = "memory"  # table of how it uses memory


class FrameworkRecord(NamedTuple):
    """Record of a framework: what it costs, what it can run, and how it uses memory."""

    software: Software
    runs: Capabilities
    memory: FrameworkMemory


@lru_cache(maxsize=1)
def records() -> dict[str, FrameworkRecord]:
    """Record of every framework, and of the default one, by name.

    A table has the fields of `Software`, as a cluster's own `[software]` has, a table `runs` with
    those of `Capabilities` (it runs everything where it has none) and a table `memory` with those
    of `FrameworkMemory`.
    """
    text = (resources.files("millrace.planner.frameworks") / "frameworks.toml").read_text("utf-8")
    tables = msgspec.toml.decode(text, type=dict[str, dict[str, object]])
    framework_records = {}
    for name, table in tables.items():
        settings = {**tables.get(str(table.get(LIKE)), {}), **table}
        settings.pop(LIKE, None)
        runs = msgspec.convert(settings.pop(RUNS, {}), Capabilities)
        for fault in runs.faults():
            raise ClusterError(f"framework `{name}`, {RUNS}: {fault}")
        memory = msgspec.convert(settings.pop(MEMORY, {}), FrameworkMemory)
        software = msgspec.convert({**DEFAULTS, **settings, "name": name}, Software)
        framework_records[name] = FrameworkRecord(software, runs, memory)
    return framework_records


def frameworks() -> dict[str, Software]:
    """Costs of every framework, and the default ones, by name."""
    return {name: framework_record.software for name, framework_record in records().items()}


def capabilities(name: str) -> Capabilities:
    """Capabilities of a framework; everything where it has no record.

    Parameters
    ----------
    name : str
        The framework's, as `Software.name` has it.
    """
    return records()[name].runs if name in records() else EVERYTHING


def framework_memory(name: str) -> FrameworkMemory:
    """Memory of a framework; the usual where it has no record.

    Parameters
    ----------
    name : str
        The framework's, as `Software.name` has it.
    """
    return records()[name].memory if name in records() else USUAL


def has_account(name: str) -> bool:
    """True if a framework's record says how it uses memory.

    Parameters
    ----------
    name : str
        The framework's, as `Software.name` has it.
    """
    return name in records() and records()[name].memory != USUAL


def framework(name: str) -> Software:
    """Settings of the framework `name`.

    Raises
    ------
    ClusterError
        There is no such framework; lists those there are.
    """
    frameworks_by_name = frameworks()
    if name not in frameworks_by_name:
        close = get_close_matches(name, frameworks_by_name, n=3, cutoff=0.4)
        hint = (
            f"did you mean {' or '.join(close)}?"
            if close
            else f"known: {', '.join(frameworks_by_name)}"
        )
        raise ClusterError(f"no framework `{name}`; {hint}")
    return frameworks_by_name[name]
