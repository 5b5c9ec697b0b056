"""Header: the comment of an exported script that says which cluster a plan was made for."""

import re

from millrace.trainers.job import TrainingJob
from millrace.trainers.trainer import HEADER, SettingsSource


def header_of(job: TrainingJob) -> str:
    """Comment line with the cluster, the framework and the model's name of a job.

    Parameters
    ----------
    job : TrainingJob
        Names with white space are left out: they are no catalogue's.

    Examples
    --------
    >>> from millrace.models.zoo.catalogue import model_spec
    >>> from millrace.planner.search import Pins
    >>> header_of(TrainingJob(model=model_spec("gpt2-small"), global_batch=8, nodes=1,
    ...     devices_per_node=8, pins=Pins(), framework="megatron-core", cluster="h100:8x1"))
    '# millrace: cluster=h100:8x1 framework=megatron-core model=gpt2-small'
    """
    words = {"cluster": job.cluster, "framework": job.framework, "model": job.model.name}
    named = [f"{name}={word}" for name, word in words.items() if re.fullmatch(r"\S+", word)]
    return " ".join(("#", HEADER, *named))


def read_header(source: SettingsSource) -> dict[str, str]:
    """Words of the header of settings, by name; none where they were not exported.

    Parameters
    ----------
    source : SettingsSource
        The settings.
    """
    line = re.search(rf"^# {HEADER} (.*)$", source.text, re.M)
    if line is None:
        return {}
    pairs = (word.partition("=") for word in line[1].split())
    return {name: value for name, equals, value in pairs if equals}
