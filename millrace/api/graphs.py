"""Graphs of a model's training step, without a plan (`millrace.build`)."""

from millrace.importing import open_checked
from millrace.models.graph import Graph
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import build_training


def build(
    model: str | ModelSpec,
    *,
    batch: int = 1,
    seq_len: int | None = None,
    precision: str = "fp32",
) -> Graph:
    """Training graph of a model: its forward pass, gradients and optimizer.

    Parameters
    ----------
    model : str or ModelSpec
        As for `millrace.plan`; a model opened already brings its length and precision.
    batch : int
        Samples of one microbatch, for which the graph's shapes are written.
    seq_len : int, optional
        Tokens of a sample; the model's longest by default.
    precision : str
        fp64, fp32, tf32, bf16, fp16, fp8, mxfp8, mxfp4 or nvfp4: what the model computes in.

    Returns
    -------
    Graph
        Ops of all phases, with shapes for one microbatch of `batch` samples.

    Raises
    ------
    ModelError
        The name, the sequence length or the precision does not exist, or the file cannot be read.

    Examples
    --------
    >>> build("gpt2-small").parameter_count
    124439808
    """
    spec = open_checked(model, seq_len, precision) if isinstance(model, str) else model
    return build_training(spec, TrainingSpec(), batch)
