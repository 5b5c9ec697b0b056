"""Loading: the run that a rank belongs to, and the values with which its variables begin."""

from pathlib import Path

from millrace.executor.data import open_dataset
from millrace.executor.job import RunJob
from millrace.executor.kernels import RunState
from millrace.executor.shards import RankValues
from millrace.executor.values.checkpoint import load_checkpoint
from millrace.executor.values.initial import initial_value, stored
from millrace.executor.values.weights import Weights
from millrace.models.spec import ModelSpec


def run_state(job: RunJob) -> RunState:
    """State of the run that the kernels of a rank share."""
    return RunState(
        seed=job.seed,
        dataset=open_dataset(job.data, job.model, job.seed),
        global_batch=job.global_batch,
        microbatches=job.microbatches,
        batch=job.batch,
        first_step=job.first_step,
        arithmetic=float32_arithmetic(job.model),
    )


def float32_arithmetic(model: ModelSpec) -> str:
    """Arithmetic of a GPU's products of a model's float32 operands: fp32 or tf32."""
    return "tf32" if model.precision == "tf32" else "fp32"


def load_values(job: RunJob, state: RankValues) -> None:
    """Fill variables and optimizer state: from a checkpoint, from weights, or as they begin."""
    if job.resume is not None:
        load_checkpoint(Path(job.resume), state)
        return
    weights = None if job.weights is None else Weights(Path(job.weights))
    for index, register in enumerate(state.program.registers):
        if register.tensor not in job.variables or not register.initial:
            continue
        if weights is not None and register.tensor in weights.names:
            values = stored(weights.value(register.tensor), register.dtype)
        else:
            values = initial_value(
                register.tensor,
                register.global_shape,
                register.dtype,
                job.variables[register.tensor],
                job.seed,
            )
        state.load(index, values)
