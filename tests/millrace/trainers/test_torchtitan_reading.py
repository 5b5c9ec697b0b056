"""Settings as torchtitan's users write them, and what is said of them."""

import pytest
from msgspec.structs import replace

from millrace.figures import layout_bytes, shortage
from millrace.planner.clusters import framework, parse_cluster
from millrace.planner.frameworks.peak_memory import needed_memory
from millrace.planner.search import Pins
from millrace.trainers.asking import planned_as_stated
from millrace.trainers.catalogue import trainer_of
from millrace.trainers.torchtitan import TORCHTITAN
from millrace.trainers.trainer import ReadSettings, SettingsError, SettingsSource

TOML = """
[model]
name = "llama3"
flavor = "70B"
converters = ["quantize.linear.float8"]

[optimizer]
lr = 1.5e-4

[training]
local_batch_size = 8
seq_len = 8192
dataset = "c4"

[parallelism]
tensor_parallel_degree = 8
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_microbatch_size = 2

[activation_checkpoint]
mode = "full"

[compile]
enable = true
"""
LAUNCH = "torchrun --nnodes 16 --nproc_per_node 8 -m torchtitan.train --job.config_file 70b.toml"


def read(files: dict[str, str], nodes: int = 0, devices: int = 0) -> ReadSettings:
    source = SettingsSource(files=files, values={}, nodes=nodes, devices_per_node=devices)
    assert trainer_of(source) is TORCHTITAN
    return TORCHTITAN.read(source)


def test_toml_with_its_launcher() -> None:
    settings = read({"70b.toml": TOML, "": LAUNCH})
    job = settings.job
    assert job.pins == Pins.of(
        {"dp": 4, "tp": 8, "pp": 4, "cp": 1, "micro_batch": 2, "zero": 2, "recompute": "full"}
        | {"schedule": "interleaved-1f1b", "interleave": 2, "sequence_parallel": True}
    )
    assert (job.nodes, job.devices_per_node, job.global_batch) == (16, 8, 32)
    assert (job.model.name, job.model.precision, job.model.seq_len) == ("llama3.1-70b", "fp8", 8192)
    assert job.model.config["hidden"] == 8192
    # 80 layers and two that count for embedding and head over 8 chunks: 10.25 each.
    assert job.chunk_layers == (10, 11, 10, 10, 10, 10, 10, 9)
    assert settings.ignored == ("training.dataset",)
    assert job.software == {"compiled": "1"}


def test_words_of_the_command_line_go_before_the_file() -> None:
    launch = LAUNCH.replace("16", "1") + (
        " --parallelism.pipeline-parallel-degree=1 --compile.no-enable"
        " --training.global_batch_size 32 --parallelism.data_parallel_replicate_degree 1"
    )
    settings = read({"70b.toml": TOML, "": launch})
    assert settings.job.pins == Pins.of(
        {"dp": 1, "tp": 8, "pp": 1, "cp": 1, "micro_batch": 8, "recompute": "full"}
        | {"sequence_parallel": True}
    )
    assert settings.job.global_batch == 32
    assert settings.job.software == {}


def test_a_shipped_configuration_by_name() -> None:
    settings = read(
        {
            "": "torchrun --nproc_per_node=8 -m torchtitan.train --module llama3 "
            "--config llama3_8b --training.local_batch_size 2 activation_checkpoint:full"
        }
    )
    assert settings.job.pins == Pins.of(
        {"dp": 8, "tp": 1, "pp": 1, "cp": 1, "micro_batch": 2, "zero": 3, "recompute": "full"}
    )
    assert any("ChunkedLossWrapper" in sentence for sentence in settings.unplanned)
    assert settings.job.software == {"captured": "step"}


def test_the_script_that_torchtitan_ships() -> None:
    settings = read(
        {
            "": "NGPU=4 MODULE=qwen3 CONFIG=qwen3_0_6b ./run_train.sh "
            "--parallelism.data_parallel_replicate_degree 2"
        }
    )
    job = settings.job
    assert job.devices == 4
    assert job.pins.zero == "3-hybrid"
    assert (job.model.name, job.model.config["qk_norm"]) == ("qwen3-0.6b", "rms")
    assert "activation_checkpoint is selective, torchtitan's default" not in settings.assumed


def test_a_module_that_changes_a_shipped_configuration() -> None:
    module = """
from torchtitan.models.llama3.config_registry import llama3_8b
from torchtitan.config import ParallelismConfig
LENGTH = 4096

def longer():
    config = llama3_8b()
    config.training.seq_len = LENGTH
    config.training.global_batch_size = 64
    config.parallelism = ParallelismConfig(tensor_parallel_degree=2, data_parallel_shard_degree=4)
    return config
"""
    settings = read({"mine.py": "# torchtitan\n" + module})
    assert settings.job.model.seq_len == 4096
    assert (settings.job.pins.dp, settings.job.pins.tp, settings.job.devices) == (4, 2, 8)
    assert settings.assumed == ("1 nodes of 8 devices each, as no launcher says otherwise",)


def test_a_pipeline_that_is_filled_several_times_is_said() -> None:
    launch = LAUNCH + " --training.global_batch_size 128"
    settings = read({"70b.toml": TOML, "": launch})
    assert any("filled and emptied 4 times" in sentence for sentence in settings.unplanned)


def test_every_second_layer_is_a_number_of_layers() -> None:
    text = TOML.replace('mode = "full"', 'mode = "selective"').replace(
        "pipeline_parallel_degree = 4", "pipeline_parallel_degree = 1"
    )
    settings = read({"70b.toml": text, "": LAUNCH})
    assert (settings.job.pins.recompute, settings.job.recompute_layers) == ("full", 40)
    assert "one layer in 2 is recomputed; a plan has the first ones of every chunk" in (
        settings.unplanned
    )


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("tensor_parallel_degree", "tensor_paralel_degree", "did you mean parallelism.tensor_par"),
        ("tensor_parallel_degree = 8", 'tensor_parallel_degree = "8"', "expected int"),
        ('mode = "full"', 'mode = "ful"', "choose selective, full, memory_budget or none"),
        ('flavor = "70B"', 'flavor = "71B"', "known: debugmodel, 1B, 3B, 8B, 70B, 405B"),
        ("[model]", "[model", "the file is no TOML"),
        ("Interleaved1F1B", "LoopedBFS", "plans have GPipe, 1F1B"),
        ("microbatch_size = 2", "microbatch_size = 3", "is no multiple of"),
        ("tensor_parallel_degree = 8", "tensor_parallel_degree = 7", "on 128 devices"),
    ],
)
def test_what_is_wrong_is_named(before: str, after: str, message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read({"70b.toml": TOML.replace(before, after), "": LAUNCH})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("torchrun -m torchtitan.train --job.config_file a.toml", "give this file too"),
        ("torchrun -m torchtitan.train --module llama3 --config llama_8b", "ships none of this"),
        ("torchrun -m torchtitan.train", "expected torchtitan's TOML file"),
        (
            "torchrun -m torchtitan.train --module llama3 --config llama3_8b --training.sq_len 4",
            "did you mean training.seq_len?",
        ),
        (
            "torchrun -m torchtitan.train --module llama3 --config llama3_8b --training.seq_len x",
            "expected int",
        ),
        (
            "torchrun -m torchtitan.train --module llama3 --config llama3_8b",
            "give --nodes and --gpus-per-node",
        ),
    ],
)
def test_what_is_wrong_with_a_command_line_is_named(command: str, message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read({"": command})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "module",
    [
        "def f():\n    return Trainer.Config(training=TrainingConfig(seq_len=g()))",
        "def f(:",
        "def f():\n    return f()",
        "x = " + "(" * 400 + ")" * 400,
        "def f():\n    return Trainer.Config(model_spec=made())",
        "\x00",
    ],
)
def test_a_module_that_cannot_be_followed_is_refused(module: str) -> None:
    with pytest.raises(SettingsError):
        read({"m.py": "# torchtitan\n" + module}, nodes=1, devices=8)


LONG_BATCHES = """
[model]
name = "qwen3"
flavor = "32B"
[training]
local_batch_size = {samples}
seq_len = 4096
[parallelism]
data_parallel_shard_degree = 4
tensor_parallel_degree = 8
[activation_checkpoint]
mode = "full"
"""


@pytest.mark.parametrize(("samples", "measured_gib"), [(16, 43.5), (64, None)])
def test_a_job_needs_what_torchtitan_keeps(samples: int, measured_gib: float | None) -> None:
    """The figure of a local batch of 16 is published; one of 64 exceeds 95 GiB."""
    settings = read({"tp.toml": LONG_BATCHES.format(samples=samples)}, 4, 8)
    cluster = parse_cluster("h100-sxm-96gb-hbm2e-500w:8x4")
    plan = planned_as_stated(settings.job, replace(cluster, software=framework("torchtitan")))
    needed = [stage.by_kind for stage in needed_memory(plan)]
    assert (layout_bytes(plan) or 0) < 0.75 * sum(needed[0].values())
    if measured_gib is None:
        assert "36.9 GiB too few" in shortage(plan, needed)
    else:
        assert sum(needed[0].values()) / 2**30 == pytest.approx(measured_gib, rel=0.05)
        assert not shortage(plan, needed)
