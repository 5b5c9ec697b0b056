"""A process that trains a model with PyTorch on this machine's cores, as many steps as it is asked.

Started by `training.py` as `python -m benchmarks.executor.torch_worker JOB`, where JOB is a JSON
file of a `TorchJob`. It reads numbers of steps from its input, a line each, and answers with a line
of JSON: seconds of every step, and the loss of the last. Several of one job are joined by gloo.

Initial values and samples are those of Millrace's own run, so that losses can be compared.
"""

import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from benchmarks.gpu.starting_point import sources_of
from benchmarks.gpu.torch_models.settings import Setting
from benchmarks.gpu.torch_models.training import Batch, TorchTraining
from millrace.executor.data import open_dataset
from millrace.executor.values.initial import initial_value
from millrace.models.graph import Graph
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import build

BATCHES = 8  # different ones, made before anything is timed


class TorchJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Order of a process: model, samples of its step, its threads, and which of how many it is.

    `compiled` is a mode of torch.compile; empty: eager. `meeting` is the file by which processes
    find each other.
    """

    model: ModelSpec
    training: TrainingSpec
    batch: int
    threads: int
    compiled: str = ""
    channels_last: bool = False
    rank: int = 0
    ranks: int = 1
    meeting: str = ""


def main(path: Path) -> None:
    """Train as the job says, until the input ends."""
    job = msgspec.json.decode(path.read_bytes(), type=TorchJob)
    torch.set_num_threads(job.threads)
    graph = build(job.model, job.batch)
    trainer = _trainer(job, graph)
    batches = [_batch(job, graph, number) for number in range(BATCHES)]
    steps = 0
    for line in sys.stdin:
        times, loss = [], torch.zeros(())
        for _ in range(int(line)):
            began = time.perf_counter()
            loss = trainer.step(*batches[steps % BATCHES])
            times.append(time.perf_counter() - began)
            steps += 1
        print(msgspec.json.encode((times, loss.item())).decode(), flush=True)


def _trainer(job: TorchJob, graph: Graph) -> TorchTraining:
    variables = [op for op in graph.ops if op.kind == "variable"]
    values = {
        op.outputs[0]: initial_value(
            op.outputs[0], graph.tensor(op.outputs[0]).shape, "float32", op.attributes, 0
        )
        for op in variables
    }
    decayed = {op.outputs[0]: bool(op.attributes["decay"]) for op in variables}
    setting = Setting(numerics="float32", compiled=job.compiled, channels_last=job.channels_last)
    trainer = TorchTraining(job.model, job.training, setting, values, decayed, "cpu")
    if job.ranks > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{job.meeting}", rank=job.rank, world_size=job.ranks
        )
        trainer.forward = DistributedDataParallel(trainer.module, gradient_as_bucket_view=True)
    return trainer


def _batch(job: TorchJob, graph: Graph, number: int) -> Batch:
    """Samples of a step of this process: those of its rank in Millrace's run."""
    data, sources = open_dataset(None, job.model, 0), sources_of(graph)
    first = (number * job.ranks + job.rank) * job.batch
    samples = np.arange(first, first + job.batch)
    read: dict[str, Any] = {
        name: torch.from_numpy(np.ascontiguousarray(data.read(source, samples)))
        for name, source in sources.items()
    }
    if "images" in read:
        order = torch.channels_last if job.channels_last else torch.contiguous_format
        images = read["images"]
        if images.shape[-1] < images.shape[1]:
            images = images.permute(0, 3, 1, 2)
        return images.contiguous(memory_format=order), read["classes"].long()
    if "masked_tokens" in read:
        first_two = torch.stack((read["masked_tokens"], read["segments"]))
        return first_two.long(), read["masked_targets"].long()
    return read["tokens"].long(), read["targets"].long()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
