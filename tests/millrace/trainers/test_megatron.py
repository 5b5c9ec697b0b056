"""Megatron-LM's command line: what is written is read back, and what scripts say is worked out."""

import re
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
from millrace.planner.frameworks.model_settings import with_narrow_parts
from millrace.planner.memory import plan_memory
from millrace.planner.plan import recompute_modes
from millrace.planner.search import Pins
from millrace.trainers.deepspeed.deepspeed_trainer import DEEPSPEED
from millrace.trainers.exporting import export_plan
from millrace.trainers.job import TrainingJob
from millrace.trainers.job_of_plan import job_of
from millrace.trainers.job_plans import plan_of_job
from millrace.trainers.megatron import MEGATRON_BRIDGE, MEGATRON_CORE
from millrace.trainers.megatron.given_arguments import GivenArguments
from millrace.trainers.trainer import ReadSettings, SettingsError, SettingsSource
from tests.millrace.trainers.trained_jobs import llamas, plain, read_back
from tests.plan_requests import plan_of
from tests.small_models import small

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
    layers, stages = int(model.config["layers"]), 2
    uneven = (layers - layers // stages, layers // stages) if layers % stages else ()
    return TrainingJob(
        model=model,
        training=TrainingSpec(),
        global_batch=64,
        nodes=2,
        devices_per_node=8,
        chunk_layers=uneven,
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


def test_a_head_in_8_bits_comes_back_and_attention_in_8_bits_is_said():
    model = with_narrow_parts(model_spec("llama3-8b", precision="mxfp8"), ("head", "attention"))
    there = job(model)
    written = MEGATRON_CORE.write(there)
    assert any("fp8_dot_product_attention" in sentence for sentence in written.unsaid)
    assert read_back(MEGATRON_CORE, there).job.model.config["narrow_parts"] == "head"


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
    assert plain(read_back(MEGATRON_CORE, there).job) == plain(there)


HYBRIDS = ("nemotron-3-nano", "nemotron-3-super", "qwen3-next-80b-a3b", "qwen3.5-35b-a3b")


def dropless(model: ModelSpec) -> ModelSpec:
    """A model whose experts drop no token, and whose time steps have no lower limit."""
    config = {**model.config, "capacity_factor": 1.0}
    if sizes := model.config.get("state_space"):
        config["state_space"] = {**sizes, "step_min": 0.0}
    return changed(model, config=config)


@pytest.mark.parametrize("name", HYBRIDS)
def test_layers_of_several_kinds_come_back(name: str):
    model = model_spec(name, precision="bf16")
    there = job(dropless(model))
    written = MEGATRON_CORE.write(there)
    hybrid = bool(model.config.get("bare_layers"))
    assert ("pretrain_hybrid.py" in written.files["launch.sh"]) == hybrid
    assert ("--hybrid-layer-pattern" in written.arguments) == hybrid
    assert ("--linear-attention-freq" in written.arguments) != hybrid
    assert plain(read_back(MEGATRON_CORE, there).job) == plain(there)


def test_a_hybrid_pattern_says_the_chunks_of_a_pipeline():
    model = model_spec("nemotron-3-nano", precision="bf16")
    model = dropless(model)
    there = replace(
        job(model, interleave=2, schedule="interleaved-1f1b"),
        chunk_layers=(12, 14, 14, 12),
    )
    written = MEGATRON_CORE.write(there)
    pattern = written.arguments[written.arguments.index("--hybrid-layer-pattern") + 1]
    assert [len(chunk) for chunk in pattern.split("|")] == [12, 14, 14, 12]
    assert "--num-virtual-stages-per-pipeline-rank" not in written.arguments
    assert plain(read_back(MEGATRON_CORE, there).job) == plain(there)


def test_hybrid_patterns_of_users_are_read():
    words = (
        "--hybrid-layer-pattern 'M-M*|M-M-' --mamba-num-heads 8 --mamba-num-groups 2 "
        "--pipeline-model-parallel-size 2 --squared-relu"
    )
    config = settings_of(words).job.model.config
    assert config["pattern"] == "M-M*M-M-"
    assert config["layers"] == 8
    assert config["state_space"]["heads"] == 8
    assert config["activation"] == "relu2"
    assert settings_of("--is-hybrid-model").job.model.config["pattern"] == 24 * "M"
    sparse = settings_of(
        "--multi-latent-attention --experimental-attention-variant dsa --dsa-indexer-topk 64 "
        "--dsa-indexer-n-heads 4 --dsa-indexer-head-dim 32 --kv-lora-rank 32 --qk-head-dim 16 "
        "--qk-pos-emb-head-dim 16 --v-head-dim 16 --position-embedding-type rope"
    )
    assert sparse.job.model.config["index_topk"] == 64
    for wrong, sentence in {
        "--hybrid-layer-pattern M-X": "none of `X`",
        "--experimental-attention-variant gated_delta_net": "--linear-attention-freq is missing",
        "--experimental-attention-variant dsa --multi-latent-attention": "--dsa-indexer-topk is",
        "--hybrid-layer-pattern 'M|M|M' --pipeline-model-parallel-size 2": "no multiple of 2",
    }.items():
        with pytest.raises(SettingsError, match=re.escape(sentence)):
            settings_of(wrong)


@pytest.mark.parametrize("zero", [0, 1])
def test_muon_comes_back(zero: int):
    there = job(model_spec("llama3-8b", precision="bf16"), zero=zero)
    there = replace(there, training=TrainingSpec(optimizer="muon", momentum=0.95))
    written = MEGATRON_CORE.write(there)
    assert ("dist_muon" in written.arguments) == bool(zero)
    assert plain(read_back(MEGATRON_CORE, there).job) == plain(there)


def test_what_a_trainer_cannot_be_told_of_training_is_refused():
    plan = plan_of(small("gpt"), 1)
    for trainer, training, sentence in (
        (DEEPSPEED, TrainingSpec(optimizer="muon", momentum=0.95), "optimizer muon: settings for"),
        (MEGATRON_CORE, TrainingSpec(lora_rank=8), "adapters of rank 8: settings for megatron"),
    ):
        with pytest.raises(InfeasibleError, match=sentence):
            export_plan(changed(plan, training=training), trainer)


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
        given = GivenArguments()
        given.add_words(written.arguments)
        assert (given["tensor_model_parallel_size"], given.unread) == (2, [])


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
        ("--num-layers 25 --pipeline-model-parallel-size 2", "not divide 25 layers over 2 stages"),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 5",
            "of 2 chunks",
        ),
        ("--num-layers -24", "--num-layers -24: expected 1 or more"),
        ("--num-layerz 3", "did you mean --num-layers.*--ignore num-layerz"),
        ("--num-layers x", "--num-layers x: expected a whole number"),
        ("--num-layers", "--num-layers: expected a value"),
        ("--position-embedding-type spiral", "expected one of learned_absolute"),
        ("--tensor-model-parallel-size 3", "does not divide"),
        ("--global-batch-size 30", "do not divide it"),
        ("--num-experts 8 --expert-model-parallel-size 3", "--expert-model-parallel-size 3"),
        ("--num-experts 8 --moe-layer-freq [0,2]", "--moe-layer-freq"),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Etq|tL", "`q` is no"),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|tL", "24 layers"),
    ],
)
def test_what_cannot_be_understood_is_named(words, message):
    with pytest.raises(SettingsError, match=message.replace("$", r"\$")):
        read(f"torchrun --nproc-per-node 8 pretrain_gpt.py {SIZES} {words}")


def test_layers_lie_in_stages_as_megatron_lays_them():
    """Without the embedding's and the loss's part where they are counted, or as the ends say."""
    both = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    ends = "--decoder-first-pipeline-num-layers 5 --decoder-last-pipeline-num-layers 3"
    cases = {
        f"--num-layers 30 {both}": (7, 8, 8, 7),
        "--num-layers 31 --account-for-loss-in-pipeline-split": (8, 8, 8, 7),
        f"--num-layers 28 {ends}": (5, 10, 10, 3),
        f"--num-layers 30 {both} --num-layers-per-virtual-pipeline-stage 4": (3, *[4] * 6, 3),
        "--num-layers 32": (),
    }
    for words, layers in cases.items():
        text = f"torchrun --nproc-per-node 8 x.py {SIZES} --pipeline-model-parallel-size 4 {words}"
        assert read(text).chunk_layers == layers, words


@pytest.mark.parametrize("program", ["pretrain_bert.py", "pretrain_t5.py", "multimodal/train.py"])
def test_programs_that_train_other_models_are_refused(program):
    with pytest.raises(SettingsError, match=rf"{Path(program).name} trains another model"):
        read(f"torchrun --nproc-per-node 8 examples/{program} {SIZES}")
    assert read(f"torchrun --nproc-per-node 8 /vision/pretrain_gpt.py {SIZES}").model.name


def test_arguments_of_earlier_versions_are_read():
    read_job = read(f"torchrun --nproc-per-node 8 pretrain_gpt.py {SIZES} --layernorm-epsilon 1e-6")
    assert read_job.model.config["epsilon"] == 1e-6


def settings_of(words: str, left_out: tuple[str, ...] = (), **values: str) -> ReadSettings:
    text = f"torchrun --nproc-per-node 8 pretrain_gpt.py {SIZES} {words}"
    source = SettingsSource(files={"": text}, values=values, left_out=frozenset(left_out))
    return MEGATRON_CORE.read(source)


def test_arguments_of_other_years_and_forks_say_what_they_meant():
    """The release is named, and what it does where nothing is said is planned."""
    old = settings_of("--DDP-impl local --checkpoint-activations --checkpoint-num-layers 2")
    assert (old.job.framework, old.job.training.attention) == ("megatron-2022", "unfused")
    assert old.job.pins.recompute == "full"
    assert "read as Megatron-LM of 2021, the last year that has --checkpoint" in old.assumed[0]
    assert old.ignored == ("--DDP-impl",)
    flash = settings_of("--DDP-impl local --use-flash-attn")
    assert (flash.job.framework, flash.job.training.attention) == ("megatron-core", "flash")
    mixed = settings_of("--layernorm-epsilon 1e-6 --moe-router-dtype fp32")
    assert mixed.job.training.attention == "flash"
    forked = settings_of("--deepspeed --zero-stage 1 --num_key_value_heads 4 --use-flash-attn-v2")
    assert (forked.job.framework, str(forked.job.pins.zero)) == ("megatron-deepspeed", "1")
    assert forked.job.model.config["kv_heads"] == 4
    assert forked.job.training.attention == "flash"
    every_second = settings_of("--deepspeed_config x.json --num-experts 4").job.model.config
    assert every_second["dense_layers"] == tuple(range(1, 24, 2))
    assert every_second["experts_per_token"] == 1
    blocks = settings_of("--moe-num-experts 8 --moe-capacity-factor 0").job.model.config
    assert blocks["experts"] == 8
    spread = settings_of(
        "--num-layer-list 11,13 --pipeline-model-parallel-size 2 --num-experts 8 "
        "--n-shared-experts 2 --first-k-dense-replace 3 --moe-ffn-hidden-size 64"
    )
    assert spread.job.chunk_layers == (11, 13)
    assert spread.job.model.config["shared_hidden"] == 128
    assert spread.job.model.config["dense_layers"] == (0, 1, 2)
    alibi = settings_of("--position-embedding-type alibi --glu-activation swiglu")
    assert alibi.job.model.config["alibi"] == 8
    assert alibi.job.model.config.get("gated", True)


def test_what_has_no_influence_is_not_checked():
    """Nor is a rate that is open; what no release has is named, what is left out is not read."""
    words = (
        "--tokenizer-type Mine --lr $5 --lr-decay-style 1-sqrt --save-interval $N 3 --my-own 1 2"
    )
    free = settings_of(words, tokenizer_model="/x", distributed_backend="gloo2")
    names = {"--tokenizer-type", "--lr", "--lr-decay-style", "--save-interval"}
    assert names | {"--tokenizer-model", "--distributed-backend"} == {*free.ignored}
    assert free.unread == ("--my-own",)
    assert free.job == settings_of("").job
    assert settings_of("--rotary-base x --num-layerz 3", ("num-layerz",)).unread == ()
    with pytest.raises(SettingsError, match=r"--set TP: neither .* nor a variable"):
        settings_of("", TP="2")
    assert (
        settings_of("", sequence_parallel="true", tensor_model_parallel_size="2").job.pins.tp == 2
    )


def test_what_a_plan_has_no_place_for_is_said_or_refused():
    said = {
        "--optimizer adaptive_muon": "planned as AdamW",
        "--optimizer dist_muon": "deals them",
        "--optimizer muon --tensor-model-parallel-size 2": "planned as duplicated",
        "--use-precision-aware-optimizer --main-grads-dtype bf16 --exp-avg-dtype fp8 "
        "--exp-avg-sq-dtype fp8": "8 bytes a parameter fewer",
        "--optimizer-cpu-offload --optimizer-offload-fraction 0.5": "planned with all of",
        "--distribute-saved-activations": "split among tensor parallel ranks",
        "--use-megatron-fsdp": "its FSDP",
        "--no-bias-gelu-fusion": "not fused",
        "--recompute-activation-function": "planned as kept",
    }
    for words, sentence in said.items():
        free = settings_of(words)
        assert [sentence in text for text in free.unplanned] == [True], words
        assert not free.ignored, words
    for words in ("--lora-rank 8", "--heterogeneous-layers-config-path x"):
        with pytest.raises(SettingsError, match="--ignore"):
            settings_of(words)
        assert settings_of(words, (words.split()[0].strip("-"),)).job == settings_of("").job
    latent = settings_of("--o-lora-rank 8")
    assert latent.unread == ("--o-lora-rank",)


def test_a_vocabulary_that_is_not_given_is_the_tokenizers():
    """By its kind, by its files where a model's, or by the model's sizes; else supposed."""
    sizes = SIZES.replace("--vocab-size 50257", "--tensor-model-parallel-size 2")
    widths = sizes.replace("2048 --max", "512 --max").replace("-size 2048", "-size 1152")
    tokenizer = "--tokenizer-type HuggingFaceTokenizer --tokenizer-model"
    vocabularies = {
        sizes: 50432,
        f"{widths} --tokenizer-type Llama2Tokenizer": 32000,
        f"{widths} {tokenizer} deepseek-ai/DeepSeek-V3": 129280,
        f"{sizes} {tokenizer} mine": 50432,
        f"{widths} --vocab-file a.json --merge-file a.txt": 50432,
    }
    for words, vocabulary in vocabularies.items():
        settings_read = MEGATRON_CORE.read(SettingsSource(files={"": f"x.py {words}"}, values={}))
        assert settings_read.job.model.config["vocab"] == vocabulary, words
        assert "a vocabulary of" in " ".join(settings_read.assumed)
    for words in (f"{tokenizer} mine", "--vocab-file vocab.txt"):
        source = SettingsSource(files={"": f"x.py {widths} {words}"}, values={})
        assumed = " ".join(MEGATRON_CORE.read(source).assumed)
        assert "50,257, GPT-2's, since --vocab-size is missing" in assumed


def test_rotary_positions_have_two_arguments():
    for words in ("--use-rotary-position-embeddings", "--position-embedding-type rotary"):
        config = read(f"torchrun --nproc-per-node 8 x.py {SIZES} {words}").model.config
        assert config["rotary_dims"] == 128
    none = settings_of("--no-position-embedding")
    assert none.job.model.config.get("rotary_dims", 0) == 0


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
        ("train.micro_batch_size=$MBS", "train.micro_batch_size=: expected a number"),
        ("--peft_scheme lora", "--ignore peft_scheme"),
    ],
)
def test_what_bridge_would_not_take_is_named(words, message):
    with pytest.raises(SettingsError, match=message.replace("$", r"\$")):
        MEGATRON_BRIDGE.read(SettingsSource(files={"": f"run_recipe.py {words} lr=1"}, values={}))


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
