"""Changed files: a user's own, in which nothing but the settings of a change differs."""

import re
from dataclasses import replace
from difflib import unified_diff

import pytest

from millrace.files import FileError
from millrace.improvement.changed_files import changed_files
from millrace.improvement.setting_changes import left_out, setting_changes
from millrace.improvement.single_changes import single_changes
from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import model_spec
from millrace.planner.errors import InfeasibleError
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.search import Pins
from millrace.trainers.catalogue import TRAINERS, trainer_of
from millrace.trainers.exporting import write_texts
from millrace.trainers.job import TrainingJob
from millrace.trainers.trainer import SettingsSource

TITAN = """\
# the job of the week
[model]
name = "llama3"
flavor = "8B"
[optimizer]
lr = 3e-4
[training]
local_batch_size = 1   # "a" rank's
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2 # inside a node
[activation_checkpoint]
mode = "selective"  # ["none", "selective", "full"]
selective_ac_option = '2'
[checkpoint]
interval = 500
"""
ZERO = """\
{
\t"train_micro_batch_size_per_gpu": "auto",
\t"gradient_accumulation_steps": "auto",
\t"zero_optimization": {"stage": 2, "overlap_comm": true},
\t"bf16": {"enabled": "auto"}
}
"""
TUNING = """\
deepspeed --num_nodes 1 --num_gpus 8 run_clm.py --deepspeed ds.json \\
  --per_device_train_batch_size 2 --gradient_accumulation_steps 4 \\
  --bf16 True --learning_rate 1e-4 --block_size 2048 \\
  --gradient_checkpointing True
"""
SIZES = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 "
    "--max-position-embeddings 2048 --vocab-size 50257"
)
YAML = """\
MODEL_ARGS:  # of the model
  --num-layers: 24
  --hidden-size: 2048   # wide
  --num-attention-heads: 16
  --seq-length: 2048
  --max-position-embeddings: 2048
  --vocab-size: 50257
  --tensor-model-parallel-size: 4
  --pipeline-model-parallel-size: 2
  --micro-batch-size: 1
  --global-batch-size: 64
  --bf16: true
  --use-distributed-optimizer: true
  --recompute-activations: true
"""
SCRIPT = f"""\
#!/bin/bash
TP=${{TP:-4}}
# --tensor-model-parallel-size 8 was no faster
torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py {SIZES} \\
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size 2 \\
    --micro-batch-size 1 --global-batch-size 64 --bf16 --lr 3e-4 --save ck \\
    --num-layers-per-virtual-pipeline-stage 6 \\
    --recompute-granularity full --recompute-method uniform
"""
BRIDGE = (
    "torchrun --nproc-per-node 8 --nnodes 4 scripts/training/run_recipe.py "
    "--recipe llama3_8b_pretrain_config model.tensor_model_parallel_size=2"
)
SOURCES = {
    "torchtitan": SettingsSource(files={"a.toml": TITAN}, values={}, nodes=1, devices_per_node=8),
    "deepspeed": SettingsSource(
        files={"ds.json": ZERO, "run.sh": TUNING}, values={"model": "llama3-8b"}
    ),
    "megatron-core": SettingsSource(files={"a.yaml": YAML}, values={}, nodes=2, devices_per_node=8),
    "megatron-bridge": SettingsSource(files={"": BRIDGE}, values={}),
}


def exported(name):
    """Source of what a trainer writes of a job."""
    pins = {"dp": 4, "tp": 2, "pp": 2, "cp": 1, "micro_batch": 1, "recompute": "none", "zero": 1}
    pins |= {"schedule": "1f1b", "interleave": 1, "sequence_parallel": True}
    job = TrainingJob(
        model=model_spec("llama3-8b", seq_len=2048, precision="bf16"),
        global_batch=64,
        nodes=2,
        devices_per_node=8,
        pins=Pins.of(pins | ({"zero": 3} if name == "torchtitan" else {})),
        framework=TRAINERS[name].frameworks[0],
        cluster="h100:8x2",
    )
    return SettingsSource(files=TRAINERS[name].write(job).files, values={})


def changed(name, source):
    """Names of changes that the trainer has words for, and what becomes of the files."""
    trainer = TRAINERS[name]
    read = trainer.read(source)
    for change in single_changes(read.job, capabilities(read.job.framework)):
        try:
            words = setting_changes(read.job, change.job, trainer, read.given)
        except InfeasibleError:
            continue
        if words:
            yield change.text, changed_files(source, read, change.job, trainer)


def lines_between(before, after):
    difference = unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return [line for line in list(difference)[2:] if line[0] in "+-"]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        *SOURCES.items(),
        *((name, exported(name)) for name in ("torchtitan", "nanotron", "megatron-core")),
    ],
)
def test_every_change_has_its_lines_in_the_files_and_no_other(name, source):
    texts = dict(changed(name, source))
    assert len(texts) > 5
    for files in texts.values():
        lines = [
            line
            for file, text in source.files.items()
            for line in lines_between(text, files.files[file or "command.sh"])
        ]
        assert 0 < len(lines) <= 2 * len(files.changes) + 2


def test_comments_and_what_is_no_choice_stay():
    files = dict(changed("torchtitan", SOURCES["torchtitan"]))
    assert lines_between(TITAN, files["tp (with cp) 2 (1) → 1 (2)"].files["a.toml"]) == [
        "+context_parallel_degree = 2",
        "-tensor_parallel_degree = 2 # inside a node",
        "+tensor_parallel_degree = 1 # inside a node",
    ]
    assert lines_between(TITAN, files["recompute full → none"].files["a.toml"]) == [
        '-mode = "selective"  # ["none", "selective", "full"]',
        '+mode = "none"  # ["none", "selective", "full"]',
    ]
    files = dict(changed("deepspeed", SOURCES["deepspeed"]))["zero 2 → 3"].files
    assert files["run.sh"] == TUNING
    assert files["ds.json"] == ZERO.replace('"stage": 2', '"stage": 3')


def test_a_script_whose_variable_is_set_elsewhere_is_given_as_a_patch():
    source = SettingsSource(files={"job.sh": SCRIPT}, values={})
    files = dict(changed("megatron-core", source))
    assert lines_between(SCRIPT, files["recompute full → none"].files["job.sh"]) == [
        "-    --num-layers-per-virtual-pipeline-stage 6 \\",
        "-    --recompute-granularity full --recompute-method uniform",
        "+    --num-layers-per-virtual-pipeline-stage 6",
    ]
    patch = files["tp (with dp) 4 (2) → 2 (4)"].files["job.sh.patch"]
    lines = [line for line in patch.splitlines() if line[:1] in "+-"]
    assert lines == ["--- a/job.sh", "+++ b/job.sh", "-TP=${TP:-4}", "+TP=${TP:-2}"]
    deeper = files["interleave 2 → 4"]
    assert [change.text for change in deeper.changes] == [
        "--num-layers-per-virtual-pipeline-stage 6 → 3"
    ]


def test_what_takes_another_program_is_left_to_the_user():
    source = SettingsSource(
        files={"ds.json": ZERO.replace('"stage": 2', '"stage": 0'), "run.sh": TUNING},
        values={"model": "llama3-8b"},
    )
    with pytest.raises(InfeasibleError, match=r"set by hand: .*add pipeline.stages 2"):
        dict(changed("deepspeed", source))


def test_settings_are_told_apart_by_their_trainer():
    assert all(trainer_of(source).name == name for name, source in SOURCES.items())


def test_files_that_were_read_are_not_replaced(tmp_path):
    (tmp_path / "a.toml").write_text(TITAN, "utf-8")
    with pytest.raises(FileError, match="this command reads it"):
        write_texts({"a.toml": TITAN}, tmp_path, read=[tmp_path])
    (path,) = write_texts({"a.toml": TITAN}, tmp_path / "b.toml")
    assert path == tmp_path / "b.toml"
    (path,) = write_texts({"a.toml": TITAN}, tmp_path / "c")
    assert path == tmp_path / "c" / "a.toml"


def test_what_of_a_schedule_a_plan_does_not_have_is_said():
    command = (
        f"torchrun --nproc-per-node 8 pretrain_gpt.py {SIZES} --micro-batch-size 1 "
        "--global-batch-size 64 --bf16 --lr 3e-4 --min-lr 1e-5 --lr-warmup-iters 10 "
        "--lr-decay-style linear --lr-warmup-fraction 0.01 --save ck --adam-beta2 0.95"
    )
    megatron = TRAINERS["megatron-core"]
    read = megatron.read(SettingsSource(files={"": command}, values={}))
    assert left_out(read, megatron) == ("--lr-decay-style linear", "--lr-warmup-fraction 0.01")
    assert "--save" in read.ignored
    words = megatron.write(read.job).arguments
    for name, value in (("--lr", "3e-4"), ("--min-lr", "1e-5"), ("--lr-warmup-iters", "10")):
        assert words[words.index(name) + 1] == value
    deepspeed = TRAINERS["deepspeed"]
    read = deepspeed.read(SOURCES["deepspeed"])
    assert left_out(read, deepspeed) == ("--learning-rate 1e-4",)
    optimizer = '{"optimizer": {"type": "AdamW", "params": {"lr": "auto"}},'
    files = {"ds.json": ZERO.replace("{", optimizer, 1), "run.sh": TUNING}
    read = deepspeed.read(replace(SOURCES["deepspeed"], files=files))
    assert (read.job.training.beta2, left_out(read, deepspeed)) == (0.999, ())
    titan = TRAINERS["torchtitan"]
    read = titan.read(SOURCES["torchtitan"])
    assert left_out(read, titan) == ("lr_scheduler.decay_type linear",)


@pytest.mark.parametrize("name", ["deepspeed", "torchtitan", "nanotron"])
def test_numbers_are_written_as_people_write_them(name):
    pins = Pins.of({"dp": 8, "tp": 1, "pp": 1, "cp": 1, "micro_batch": 1, "recompute": "full"})
    job = TrainingJob(
        model=model_spec("llama3-8b", seq_len=2048, precision="bf16"),
        training=TrainingSpec(learning_rate=3e-4, decay_steps=100, final_fraction=0.1),
        global_batch=8,
        nodes=1,
        devices_per_node=8,
        pins=Pins.of(pins.document | {"zero": 0}),
        framework=name,
    )
    written = "\n".join(TRAINERS[name].write(job).files.values())
    assert "3.0e-4" in written if name == "nanotron" else "3e-4" in written
    assert not re.search(r"\d{9}|0\.000|e-0|99999|00001", written)
