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
COMPILED = {"compiled": "1"}
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


def test_of_two_files_the_one_that_the_launch_names_is_read() -> None:
    texts = {name: LONG_BATCHES.format(samples=n) for name, n in (("a.toml", 16), ("b.toml", 64))}
    launch = "torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file=jobs/b.toml"
    assert read({**texts, "": launch}, 4, 8).job.pins.micro_batch == 64
    with pytest.raises(SettingsError, match=r"a\.toml, b\.toml: a job has one TOML file"):
        read(texts, 4, 8)


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


OLDER = """
[model]
name = "llama3"
flavor = "8B"
norm_type = "layernorm"
[optimizer]
fused = true
[training]
batch_size = 8
seq_len = 8192
data_parallel_degree = -1
tensor_parallel_degree = 2
enable_loss_parallel = false
compile = true
steps = 60
warmup_steps = 100
[experimental]
pipeline_parallel_degree = 2
pipeline_parallel_split_points = ["layers.15"]
[float8]
enable_float8_linear = true
[activation_checkpoint]
mode = "full"
"""


def test_names_of_2024_are_read_by_those_of_the_last_toml() -> None:
    settings = read({"old.toml": OLDER}, nodes=1, devices=8)
    job = settings.job
    assert job.pins == Pins.of(
        {"dp": 2, "tp": 2, "pp": 2, "cp": 1, "micro_batch": 4, "zero": 2, "recompute": "full"}
        | {"schedule": "1f1b", "interleave": 1, "sequence_parallel": True}
    )
    assert (job.chunk_layers, job.model.precision, job.software) == ((15, 17), "fp8", COMPILED)
    # A run that ends before its warm-up does is planned: rates change no duration.
    assert (job.training.warmup_steps, job.training.decay_steps) == (60, 60)
    assert settings.assumed[0].startswith(
        "settings of torchtitan before 0.1.0, of 2024-07-31 to 2024-09-10, by experimental."
    )
    assert settings.unplanned == (
        "parallelism.disable_loss_parallel: logits are gathered over the tp ranks",
        "model.norm_type layernorm: planned with RMS norms",
    )
    assert settings.unread == ()


def test_copies_of_2024_are_as_many_as_devices() -> None:
    ddp = 'data_parallel_type = "ddp"\ntensor_parallel_degree = 1'
    text = OLDER.replace("tensor_parallel_degree = 2", ddp)
    text = text.replace("pipeline_parallel_degree = 2", "pipeline_parallel_microbatches = 4")
    job = read({"old.toml": text}, nodes=1, devices=8).job
    assert (job.pins.dp, job.pins.zero, job.pins.micro_batch) == (8, 0, 8)


def test_settings_of_a_fork_are_unread_and_what_has_no_influence_is_not_checked() -> None:
    text = TOML.replace('["quantize.linear.float8"]', '"float8,npu"').replace("1.5e-4", "true")
    text += '[mine]\nx = 1\n[lr_scheduler]\ndecay_type = "stairs"\n[checkpoint]\ninterval = "?"\n'
    launch = f"{LAUNCH} --mine.flag --mine.y 2 --training.mixed_precision_reduce bfloat16"
    source = SettingsSource(
        files={"70b.toml": text, "": launch}, values={}, left_out=frozenset(["optimizer.lr"])
    )
    settings = TORCHTITAN.read(source)
    assert settings.unread == ("mine.x", "mine.flag", "mine.y")
    assert settings.job.model.precision == "fp8"
    assert settings.job.software == {"compiled": "1", "gradient_bytes": "2"}
    assert {"checkpoint.interval", "lr_scheduler.decay_type"} < set(settings.ignored)
    assert "converters npu: a plan has the model as it is without" in settings.unplanned


def test_a_model_without_known_sizes_is_named_by_the_user() -> None:
    text = TOML.replace('"llama3"', '"llama2"')
    assert read({"2.toml": text, "": LAUNCH}).job.model.name == "llama2-70b"
    text = text.replace("70B", "34B")
    source = SettingsSource(files={"2.toml": text, "": LAUNCH}, values={"model": "llama2-13b"})
    job = TORCHTITAN.read(source).job
    assert (job.model.name, job.model.seq_len) == ("llama2-13b", 8192)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("tensor_parallel_degree", "tensor_paralel_degree", "did you mean parallelism.tensor_par"),
        ("tensor_parallel_degree = 8", 'tensor_parallel_degree = "8"', "expected int"),
        ('mode = "full"', 'mode = "ful"', "choose selective, full, memory_budget or none"),
        ('flavor = "70B"', 'flavor = "71B"', "1B, 3B, 8B, 70B, 405B; or give --set model=NAME"),
        ("[model]", "[model", "the file is no TOML"),
        (TOML, "[training]\nepochs = 3\nrounds = 2", "has training.epochs, training.rounds"),
        ("[training]", "[training]\nfp8_linear = 'x'", "choose one of True, False, dynamic"),
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
        assert "39.9 GiB too few" in shortage(plan, needed)
    else:
        assert sum(needed[0].values()) / 2**30 == pytest.approx(measured_gib, rel=0.05)
        assert not shortage(plan, needed)
