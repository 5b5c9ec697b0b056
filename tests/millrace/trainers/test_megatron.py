"""Megatron-LM's command line: what is written is read back, and what scripts say is worked out."""

from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import model_spec
from millrace.planner.errors import InfeasibleError
from millrace.planner.memory import plan_memory
from millrace.planner.plan import recompute_modes
from millrace.planner.search import Pins
from millrace.trainers.job import TrainingJob
from millrace.trainers.job_of_plan import job_of
from millrace.trainers.job_plans import plan_of_job
from millrace.trainers.megatron import MEGATRON_BRIDGE, MEGATRON_CORE
from millrace.trainers.megatron.argument_table import argument_table, given_values
from millrace.trainers.trainer import SettingsError, SettingsSource
from tests.millrace.trainers.trained_jobs import llamas, plain, read_back

MODELS = ("llama3-8b", "gpt3-1.3b", "mixtral-8x7b", "deepseek-v3", "qwen3-8b")
UNSAID = {"ffn_hidden", "rope_amplitude", "rope_truncate", "attention_scale"}
SIZES = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 "
    "--max-position-embeddings 2048 --vocab-size 50257 --micro-batch-size 4 --bf16"
)


def job(model: ModelSpec, **pins: object) -> TrainingJob:
    degrees = {"dp": 4, "tp": 2, "pp": 2, "cp": 1, "micro_batch": 1, "recompute": "none"}
    further = {"schedule": "1f1b", "interleave": 1, "zero": 1, "sequence_parallel": True}
    if model.config.get("experts"):
        further |= {"ep": 4, "etp": 1, "dispatcher": "alltoall", "expert_overlap": False}
    return TrainingJob(
        model=model,
        training=TrainingSpec(),
        global_batch=64,
        nodes=2,
        devices_per_node=8,
        pins=Pins.of({**degrees, **further, **pins}),
        framework="megatron-core",
        cluster="h100:8x2",
    )


def read(text: str, **values: str) -> TrainingJob:
    return MEGATRON_CORE.read(SettingsSource(files={"": text}, values=values)).job


@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_catalogue_come_back(name):
    model = model_spec(name, precision="bf16")
    config = {**model.config, "vocab": -(-int(model.config["vocab"]) // 2) * 2}
    config |= {"capacity_factor": 1.0} if config.get("experts") else {}  # dropless
    model = changed(model, config=config)
    there = job(model)
    back = read_back(MEGATRON_CORE, there).job
    there, back = plain(there), plain(back)
    for there_config in (there.model.config, back.model.config):
        for field in UNSAID & there_config.keys():
            del there_config[field]
    assert back == there


@settings(max_examples=40, deadline=None)
@given(
    model=llamas(heads_multiple=2),
    pins=st.fixed_dictionaries(
        {
            "recompute": st.sampled_from(("none", "selective", "full")),
            "zero": st.sampled_from((0, 1)),
            "sequence_parallel": st.booleans(),
            "micro_batch": st.sampled_from((1, 2, 4)),
        }
    ),
)
def test_jobs_come_back(model, pins):
    config = {**model.config, "activation": "silu"}
    there = job(changed(model, config=config), **pins)
    if model.config["layers"] % 2:
        layers = int(model.config["layers"])
        there = replace(there, chunk_layers=(layers // 2 + 1, layers // 2))
    assert plain(read_back(MEGATRON_CORE, there).job) == plain(there)


def test_layers_of_chunks_and_first_recomputed_layers_come_back():
    there = replace(
        job(
            model_spec("llama3-8b", precision="bf16"),
            recompute="full",
            interleave=2,
            schedule="interleaved-1f1b",
        ),
        chunk_layers=(7, 8, 9, 8),
        recompute_layers=3,
    )
    written = MEGATRON_CORE.write(there)
    assert "Et*7|t*8|t*9|t*8L" in written.arguments
    assert plain(read_back(MEGATRON_CORE, there).job) == plain(there)


def test_the_plan_of_a_job_recomputes_the_first_layers_of_every_chunk():
    model = model_spec("gpt2-small", precision="bf16")
    pins = {"dp": 1, "tp": 1, "interleave": 2, "schedule": "interleaved-1f1b", "zero": None}
    model = changed(model, config={**model.config, "layers": 8})
    there = replace(
        job(model, recompute="full", sequence_parallel=None, **pins),
        chunk_layers=(3, 2, 1, 2),
        recompute_layers=2,
        nodes=1,
        devices_per_node=2,
        global_batch=8,
    )
    plan = plan_of_job(there, "a100:2x1")
    chunks = [[choice.block for choice in chunk.blocks] for chunk in plan.chunks]
    layers = [[name for name in chunk if name.startswith("h.")] for chunk in chunks]
    first = chain(*(chunk[:2] for chunk in layers))
    assert recompute_modes(plan) == dict.fromkeys(first, "full")
    back = job_of(plan, MEGATRON_CORE)
    assert (back.pins.recompute, back.recompute_layers) == ("full", 2)
    assert back.chunk_layers == tuple(map(len, layers)) == there.chunk_layers


@pytest.mark.parametrize(
    ("name", "software"),
    [
        ("llama3-8b", {"overlap": "0", "tensor_overlap": "0", "gradient_bytes": "2"}),
        ("llama3-8b", {"recompute_modules": "core_attn layernorm mlp"}),
        ("deepseek-v3", {"recompute_modules": "core_attn"}),
    ],
)
def test_what_a_framework_is_set_to_otherwise_comes_back(name, software):
    model = model_spec(name, precision="fp16" if "gradient_bytes" in software else "bf16")
    there = replace(job(model, recompute="selective"), software=software)
    assert read_back(MEGATRON_CORE, there).job.software == software


def test_the_core_of_attention_saves_nothing_where_it_is_one_kernel():
    small = SIZES.replace("--num-layers 24", "--num-layers 2")
    small = f"torchrun --nproc-per-node 2 pretrain_gpt.py {small} --global-batch-size 8"
    norms = "--recompute-granularity selective --recompute-modules layernorm"
    memory_bytes, step_s = {}, {}
    for attention in ("flash", "unfused"):
        for text in ("", "--recompute-activations", norms):
            there = read(f"{small} --attention-backend {attention} {text}")
            plan = plan_of_job(there, "a100:2x1")
            memory_bytes[attention, text] = plan_memory(plan)[0].activation_bytes
            step_s[attention, text] = plan.figures["step_time_s"]
            back = job_of(plan, MEGATRON_CORE)
            assert back.software.get("recompute_modules") == there.software.get("recompute_modules")
    core = "flash", "--recompute-activations"
    assert memory_bytes[core] == pytest.approx(memory_bytes["flash", ""], rel=0.01)
    assert step_s[core] > 1.01 * step_s["flash", ""]
    assert memory_bytes["flash", norms] < 0.98 * memory_bytes["flash", ""]
    assert memory_bytes["unfused", "--recompute-activations"] < 0.8 * memory_bytes["unfused", ""]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"zero": 3}, "zero 3"),
        ({"schedule": "zb-h1"}, "schedule zb-h1"),
    ],
)
def test_what_megatron_has_no_setting_for_is_refused(changes, words):
    with pytest.raises(InfeasibleError, match=words):
        MEGATRON_CORE.write(job(model_spec("llama3-8b", precision="bf16"), **changes))


def test_a_field_that_it_has_no_setting_for_is_named():
    with pytest.raises(InfeasibleError, match="no setting for `embedding_scale`"):
        MEGATRON_CORE.write(job(model_spec("gemma2-9b", precision="bf16")))


def test_a_model_that_it_cannot_train_is_refused():
    with pytest.raises(InfeasibleError, match="family `bert`"):
        MEGATRON_CORE.write(job(model_spec("bert-large", precision="bf16")))


def test_every_written_argument_is_one_of_the_parser():
    for name in ("llama3-8b", "gpt3-1.3b"):
        written = MEGATRON_CORE.write(job(model_spec(name, precision="fp8")))
        values, gone = given_values(written.arguments)
        assert not gone
        assert values["tensor_model_parallel_size"] == 2


def test_a_script_is_worked_out_and_not_run(tmp_path):
    script = f"""#!/bin/bash
touch {tmp_path}/ran
TP=${{TP:-2}}; NODES=2
ARGS=({SIZES} --global-batch-size $((16 * NODES * 2)) # samples
    --tensor-model-parallel-size $TP)
if [ "$TP" -gt 1 ]; then ARGS+=(--sequence-parallel)
else ARGS+=(--pipeline-model-parallel-size 9); fi
torchrun --nproc_per_node=8 --nnodes ${{NODES}} --node_rank $RANK train.py "${{ARGS[@]}}" > log
"""
    read_job = MEGATRON_CORE.read(SettingsSource(files={"train.sh": script}, values={})).job
    assert (read_job.pins.dp, read_job.pins.tp, read_job.global_batch) == (8, 2, 64)
    assert read_job.pins.sequence_parallel
    assert (read_job.nodes, read_job.devices_per_node) == (2, 8)
    assert not Path(tmp_path / "ran").exists()
    changed_job = MEGATRON_CORE.read(SettingsSource(files={"t.sh": script}, values={"TP": "4"})).job
    assert changed_job.pins.tp == 4


def test_names_of_the_catalogue_are_found_by_their_sizes():
    assert read(f"torchrun --nproc-per-node 8 pretrain_gpt.py {SIZES}").model.name == "gpt3-1.3b"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--num-layerz 3", "did you mean --num-layers"),
        ("--num-layers x", "--num-layers x: expected a whole number"),
        ("--num-layers", "--num-layers: expected a value"),
        ("--tensor-model-parallel-size $TP", "--set TP=VALUE"),
        ("--position-embedding-type rotary", "expected one of learned_absolute"),
        ("--tensor-model-parallel-size 3", "does not divide"),
        ("--global-batch-size 30", "do not divide it"),
        ("--num-experts 8 --expert-model-parallel-size 16", "--expert-model-parallel-size 16"),
        ("--num-experts 8 --moe-layer-freq [0,2]", "--moe-layer-freq"),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Etq|tL", "`q` is no"),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|tL", "24 layers"),
    ],
)
def test_what_cannot_be_understood_is_named(words, message):
    with pytest.raises(SettingsError, match=message.replace("$", r"\$")):
        read(f"torchrun --nproc-per-node 8 pretrain_gpt.py {SIZES} {words}")


def test_arguments_of_earlier_versions_are_read():
    read_job = read(f"torchrun --nproc-per-node 8 pretrain_gpt.py {SIZES} --layernorm-epsilon 1e-6")
    assert read_job.model.config["epsilon"] == 1e-6
    assert "--data-impl" in argument_table().earlier


@pytest.mark.parametrize("name", MODELS)
def test_overrides_of_bridge_come_back(name):
    model = model_spec(name, precision="bf16")
    config = {**model.config, "vocab": -(-int(model.config["vocab"]) // 2) * 2}
    config |= {"capacity_factor": 1.0} if config.get("experts") else {}  # dropless
    there = replace(
        job(changed(model, config=config), recompute="full", zero=1),
        software={"gradient_bytes": "2", "tensor_overlap": "0"},
        recompute_layers=2,
    )
    back = plain(read_back(MEGATRON_BRIDGE, there).job)
    there = plain(there)
    for there_config in (there.model.config, back.model.config):
        for field in UNSAID & there_config.keys():
            del there_config[field]
    assert back == there


def test_a_recipe_of_bridge_with_overrides_is_a_job():
    words = (
        "torchrun --nproc-per-node 8 --nnodes 4 scripts/training/run_recipe.py "
        "--recipe llama3_8b_pretrain_config --mode pretrain model.tensor_model_parallel_size=2 "
        "train.micro_batch_size=1 train.global_batch_size=128 model.sequence_parallel=true "
        "logger.log_interval=1"
    )
    read_recipe = MEGATRON_BRIDGE.read(SettingsSource(files={"": words}, values={}))
    assert read_recipe.job.model.name == "llama3-8b"
    pins = read_recipe.job.pins
    assert (pins.dp * pins.cp, pins.tp, pins.micro_batch) == (16, 2, 1)
    assert read_recipe.ignored == ("logger.log_interval",)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--recipe llama3_8b_pretrian_config", "did you mean llama3_8b_pretrain_config"),
        ("model.tensor_model_parallel_sizes=2", "did you mean model.tensor_model_parallel_size"),
        ("train.micro_batch_size=two", "train.micro_batch_size=two: expected a number"),
        ("train.micro_batch_size=$MBS", "--set MBS=VALUE"),
    ],
)
def test_what_bridge_would_not_take_is_named(words, message):
    with pytest.raises(SettingsError, match=message.replace("$", r"\$")):
        MEGATRON_BRIDGE.read(SettingsSource(files={"": f"run_recipe.py {words} lr=1"}, values={}))


SECTIONS = """
ENV_VARS: {CUDA_DEVICE_MAX_CONNECTIONS: 1}
MODEL_ARGS:
  --num-layers: 24
  --hidden-size: 2048
  --num-attention-heads: 16
  --seq-length: 2048
  --max-position-embeddings: 2048
  --vocab-size: 50304
  --micro-batch-size: 4
  --tensor-model-parallel-size: 2
  --sequence-parallel: true
  --disable-bias-linear: false
  --bf16: true
"""
NESTED = """
language_model: {num_layers: 24, hidden_size: 2048, num_attention_heads: 16, add_bias_linear: true}
model_parallel: {tensor_model_parallel_size: 2, sequence_parallel: true, bf16: true}
seq_length: 2048
max_position_embeddings: 2048
vocab_size: 50304
micro_batch_size: 4
"""


@pytest.mark.parametrize("text", [SECTIONS, NESTED])
def test_arguments_in_yaml_are_a_job(text):
    source = SettingsSource(files={"gpt.yaml": text}, values={}, nodes=1, devices_per_node=8)
    assert MEGATRON_CORE.recognizes(source)
    read_job = MEGATRON_CORE.read(source).job
    assert read_job.model.name == "gpt3-1.3b"
    assert (read_job.pins.dp, read_job.pins.tp, read_job.pins.micro_batch) == (4, 2, 4)
    assert read_job.pins.sequence_parallel


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_attention_heads: [", "no YAML"),
        ("- num_attention_heads: 1", "expected arguments by name"),
        ("num_layers: two\nnum_attention_heads: 1", "expected a whole number"),
    ],
)
def test_yaml_that_cannot_be_understood_is_named(text, message):
    with pytest.raises(SettingsError, match=message):
        MEGATRON_CORE.read(SettingsSource(files={"gpt.yaml": text}, values={}))


def test_recomputation_is_read_in_each_of_its_spellings():
    """The mode, the layers of a chunk (0: all), and the options that are planned otherwise."""
    spellings = {
        "": ("none", 0, ()),
        "--recompute-activations": ("selective", 0, ()),
        "--checkpoint-activations": ("full", 0, ()),
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1": (
            ("full", 0, ())
        ),
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2": (
            ("full", 0, ("--recompute-num-layers 2",))
        ),
        "--recompute-granularity full --recompute-method block --recompute-num-layers 24": (
            ("full", 0, ())
        ),
        "--recompute-granularity full --recompute-method block --recompute-num-layers 5": (
            ("full", 5, ())
        ),
        "--recompute-granularity selective --recompute-modules core_attn mhc": (
            ("selective", 0, ("--recompute-modules mhc",))
        ),
    }
    for text, expected in spellings.items():
        source = SettingsSource(files={"": f"{SIZES} --global-batch-size 64 {text}"}, values={})
        settings_read = MEGATRON_CORE.read(source)
        notes = [note.partition(":")[0] for note in settings_read.unplanned if "recompute" in note]
        job_read = settings_read.job
        mode = job_read.pins.recompute
        assert (mode, job_read.recompute_layers, tuple(notes)) == expected, text
