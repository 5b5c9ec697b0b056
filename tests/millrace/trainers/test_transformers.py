"""Settings of transformers' Trainer and its kin: YAML, command lines, what a plan leaves out."""

import re

import pytest

from millrace.planner.errors import InfeasibleError
from millrace.planner.plan import OPTIMIZER
from millrace.trainers.catalogue import read_settings, trainer_of
from millrace.trainers.deepspeed import TRANSFORMERS
from millrace.trainers.trainer import ReadSettings, SettingsError, SettingsSource

AUTO = """{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
 "train_batch_size": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}}"""
ACCELERATE = """
distributed_type: FSDP
fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD, fsdp_activation_checkpointing: true}
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""
LAUNCH = """
export MODEL=meta-llama/Llama-3.1-8B-Instruct
accelerate launch --config_file conf/acc.yaml \\
  train.py --model_name_or_path "$MODEL" --max_seq_length 4096 --optim adamw_torch \\
  --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --my_path /x --seed 1
"""
AXOLOTL = """
base_model: Qwen/Qwen3-8B
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_torch_fused
bf16: auto
gradient_checkpointing: true
fsdp_config: {offload_params: true, reshard_after_forward: false}
dp_shard_size: 4
datasets: [{path: x}]
"""
FACTORY = """
model_name_or_path: some/model
deepspeed: ds.json
cutoff_len: 2048
finetuning_type: full
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
bf16: true
"""
PLAIN = "torchrun --nproc_per_node 8 t.py --per_device_train_batch_size 1 --max_length 64"


def read(
    files: dict[str, str], model: str = "", devices: int = 0, left_out: str = ""
) -> ReadSettings:
    source = SettingsSource(
        files=files,
        values={"model": model} if model else {},
        nodes=1 if devices else 0,
        devices_per_node=devices,
        left_out=frozenset(left_out.split()),
    )
    return read_settings(source, None, "--from")[1]


def test_what_deepspeed_leaves_open_is_in_the_yaml_of_its_trainer() -> None:
    settings = read({"sft.yaml": FACTORY, "ds.json": AUTO}, "qwen3-4b", 8)
    job = settings.job
    assert (job.model.precision, job.model.seq_len, job.global_batch) == ("bf16", 2048, 16)
    assert (job.pins.micro_batch, job.pins.zero, job.pins.recompute) == (1, 3, "full")
    assert "--gradient-checkpointing is true, LLaMA-Factory's default" in settings.assumed
    assert settings.unplanned == ()
    single = read(
        {"sft.yaml": FACTORY.replace("bf16: true", "x: 1"), "ds.json": AUTO}, "qwen3-4b", 1
    )
    assert single.job.model.precision == "fp32"
    assert "bf16.enabled is auto, and there is no --bf16: fp32" in single.assumed


def test_accelerate_says_how_devices_share_the_work() -> None:
    files = {"run.sh": LAUNCH, "acc.yaml": ACCELERATE}
    assert trainer_of(SettingsSource(files=files, values={})) is TRANSFORMERS
    settings = read(files)
    job = settings.job
    assert (job.nodes, job.devices_per_node, job.framework) == (2, 8, "pytorch-fsdp")
    assert job.pins.document == {
        "dp": 16, "tp": 1, "pp": 1, "cp": 1, "micro_batch": 2, "recompute": "full",
        "zero": "3-hybrid",
    }  # fmt: skip
    assert (job.model.name, job.model.precision, job.global_batch) == ("llama3.1-8b", "bf16", 128)
    assert settings.assumed == (
        "meta-llama/Llama-3.1-8B-Instruct is llama3.1-8b of `millrace models`, by its name",
    )
    assert (settings.ignored, settings.unread) == (("seed",), ("my-path",))
    assert read(files, left_out="my_path").unread == ()
    with pytest.raises(InfeasibleError, match="--to deepspeed or torchtitan"):
        TRANSFORMERS.write(job)


def test_deepspeed_in_the_words_of_accelerate() -> None:
    inner = (
        "deepspeed_config: {zero_stage: 2, offload_optimizer_device: cpu, gradient_clipping: 2.0}"
    )
    text = re.sub("fsdp_config.*", inner, ACCELERATE).replace("FSDP", "DEEPSPEED")
    job = read({"run.sh": LAUNCH, "acc.yaml": text}).job
    assert (job.framework, job.pins.zero, job.pins.offload) == ("deepspeed", 2, OPTIMIZER)
    assert (job.training.clip_norm, job.pins.micro_batch) == (2.0, 2)
    named = LAUNCH.replace("--config_file conf/acc.yaml", "--use_deepspeed --num_processes $N")
    typed = named.replace("--use_deepspeed", "--deepspeed_config_file x/stage3_offload.conf")
    for launch, zero in ((named, 2), (typed, 3)):
        job = read({"run.sh": "N=8\n" + launch}).job
        assert (job.devices_per_node, job.pins.zero, job.model.precision) == (8, zero, "fp32")


def test_axolotl_has_names_of_its_own() -> None:
    settings = read({"a.yml": AXOLOTL}, devices=4)
    job = settings.job
    assert (job.model.name, job.model.seq_len, job.model.precision) == ("qwen3-8b", 4096, "bf16")
    assert (job.pins.micro_batch, job.global_batch, job.pins.zero) == (2, 32, 2)
    assert (job.pins.recompute, job.pins.offload) == ("full", OPTIMIZER)
    assert settings.unplanned == (
        "fsdp offloads parameters and gradients too; a plan the optimizer's states alone",
    )
    copies = AXOLOTL.replace("dp_shard_size: 4", "dp_replicate_size: 2\ntensor_parallel_size: 2")
    job = read({"a.yml": copies}, devices=8).job
    assert (job.pins.dp, job.pins.tp, job.pins.zero) == (4, 2, "3-hybrid")


@pytest.mark.parametrize(
    ("words", "zero", "remarks"),
    [
        ("", 0, 0),
        ('--fsdp "shard_grad_op auto_wrap"', 2, 0),
        ("--fsdp hybrid_shard_zero2", "3-hybrid", 1),
        ("--deepspeed zero3", 3, 0),
        ("--fsdp true --fsdp_config f.json", 2, 0),
    ],
)
def test_sharding_is_told_in_words(words: str, zero: int | str, remarks: int) -> None:
    command = f"{PLAIN} {words} --torch_dtype bfloat16 --gradient_checkpointing false"
    settings = read({"": command, "f.json": '{"reshard_after_forward": "false"}'}, "gpt2")
    assert (settings.job.pins.zero, settings.job.model.precision) == (zero, "bf16")
    assert len([said for said in settings.unplanned if "f.json" not in said]) == remarks
    assert ("f.json: nothing in this file was read" in settings.unplanned) == (
        "f.json" not in words
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "--finetuning_type lora --lora_rank 8",
            "--finetuning-type lora: planned with adapters of rank 8",
        ),
        ("--lora_r 8", "--lora-r 8: planned with adapters of rank 8"),
        ("--use_peft --lora_r 8", "--use-peft: planned with adapters of rank 8"),
        ("--tuner_type dora", "--finetuning-type dora: planned with adapters of rank 8"),
        ("--load_in_4bit", "--load-in-4bit : weights are quantized"),
        ("--optim adamw_8bit", "--optim adamw_8bit: planned as AdamW"),
        ("--use_galore true", "--use-galore: planned as AdamW"),
        ("--freeze_llm True", "--freeze-llm: parts are not trained"),
        ("--finetuning_type full --stage dpo", "--stage dpo: models beside"),
        ("--use_liger_kernel true", "logits are made in parts"),
        ("--vision_tower x", "images are left out"),
    ],
)
def test_what_is_not_trained_in_full_is_said_first(words: str, said: str) -> None:
    settings = read({"": f"{PLAIN} {words}"}, "gpt2")
    assert said in settings.remarks[0]
    assert len(settings.unplanned) == 1
    assert settings.unread == ()


def test_switches_that_are_off_are_nothing_to_say() -> None:
    words = "--use_peft false --lora_r 8 --freeze_llm False --bits 16 --optim adamw_torch_fused"
    assert read({"": f"{PLAIN} {words}"}, "gpt2").unplanned == ()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"run.sh": LAUNCH}, "conf/acc.yaml: give this file too"),
        ({"": f"{PLAIN} --model_name_or_path a/b"}, "give the config.json of a/b beside them, or"),
        ({"": f"{PLAIN} --deepspeed my.json"}, "--deepspeed my.json: give this file too"),
        ({"": f"{PLAIN} --fsdp half_shard"}, "fsdp `half_shard`: expected one of full_shard"),
        ({"a.yml": AXOLOTL}, "or --nodes and --gpus-per-node"),
    ],
)
def test_what_is_missing_is_asked_for(files: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        read(files)
