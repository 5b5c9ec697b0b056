"""DeepSpeed: jobs go out as its JSON with a script and come back; its own parser takes them."""

import ast
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from millrace.models.zoo.catalogue import model_spec
from millrace.planner.errors import InfeasibleError
from millrace.trainers.catalogue import trainer_of
from millrace.trainers.deepspeed import DEEPSPEED
from millrace.trainers.deepspeed.ds_names import check_names, names_table
from millrace.trainers.job import TrainingJob
from millrace.trainers.trainer import SettingsError, SettingsSource
from tests.extras import optional
from tests.millrace.trainers.trained_jobs import (
    job_of_pins,
    llamas,
    plain,
    read_back,
    trainings,
)

GPT = model_spec("gpt2-small", 1024, "bf16")
MIXTRAL = model_spec("mixtral-8x7b", 512, "bf16")
EVEN = {"capacity_factor": 1.0}
PRECISIONS = ("bf16", "fp16", "fp32", "tf32")


@st.composite
def jobs(draw: st.DrawFn) -> TrainingJob:
    """Jobs that DeepSpeed and the exported scripts can be told in full."""
    pins: dict[str, Any] = {
        "dp": draw(st.sampled_from((1, 2, 6, 16))),
        "pp": draw(st.sampled_from((1, 1, 2, 3))),
        "micro_batch": draw(st.integers(1, 4)),
        "recompute": draw(st.sampled_from(("none", "full"))),
    }
    if pins["dp"] > 1:
        pins["zero"] = draw(st.integers(0, 3 if pins["pp"] == 1 else 1))
    if pins["pp"] > 1:
        pins |= {"schedule": "1f1b", "interleave": 1}
    if draw(st.booleans()):
        pins["offload"] = "optimizer"
    model = draw(st.sampled_from((GPT, MIXTRAL)) | llamas())
    model = replace(model, precision=draw(st.sampled_from(PRECISIONS)))
    if model.config.get("experts"):
        model = replace(model, config={**model.config, **EVEN})
        ep = draw(st.sampled_from((1, 2))) if pins["dp"] % 2 == 0 and pins["pp"] == 1 else 1
        dispatcher = draw(st.sampled_from(("alltoall", "deepep"))) if ep > 1 else "alltoall"
        pins |= {"ep": ep, "dispatcher": dispatcher, "expert_overlap": False}
    changes: dict[str, Any] = {}
    layers = int(str(model.config["layers"]))
    if pins["pp"] > 1 and layers > pins["pp"] and draw(st.booleans()):
        ends = (1,) * (pins["pp"] - 1)
        changes["chunk_layers"] = (layers - sum(ends), *ends)
    training = draw(trainings())
    attention = draw(st.sampled_from(("flash", "unfused")))
    if width := draw(st.sampled_from(("", "2", "4"))):
        changes["software"] = {"gradient_bytes": width}
    changes["training"] = replace(training, attention=attention)
    return job_of_pins(model, pins, framework="deepspeed", **changes)


@given(jobs())
@settings(deadline=None, max_examples=60)
def test_a_job_that_is_written_is_read_back(job: TrainingJob):
    back = read_back(DEEPSPEED, job)
    assert plain(back.job) == plain(job)
    assert back.assumed == ()
    assert back.unplanned == ()


@given(jobs())
@settings(deadline=None, max_examples=20)
def test_all_that_is_written_is_in_the_table(job: TrainingJob):
    written = DEEPSPEED.write(job)
    document = json.loads(written.files["ds_config.json"])
    table = names_table()
    assert check_names(document, "ds_config.json") == []
    assert set(document) <= set(table.names)
    for name, section in document.items():
        for field, value in section.items() if name in table.sections else ():
            row = table.sections[name][field]
            assert not row.choices or value in row.choices
    launcher = re.search(r"deepspeed (.*) \\", written.files["launch.sh"])
    assert launcher is not None
    options = [word for word in launcher[1].split() if word.startswith("--")]
    assert set(options) <= set(table.launcher)


@given(jobs())
@settings(deadline=None, max_examples=10)
def test_its_own_parser_takes_what_is_written(job: TrainingJob):
    config = optional("deepspeed.runtime.config", "trainers")
    document = json.loads(DEEPSPEED.write(job).files["ds_config.json"])

    class Replicas:
        """Ranks of the job, as DeepSpeed asks for them."""

        def get_data_parallel_world_size(self) -> int:
            return int(job.pins.dp or 1)

    distributed = pytest.MonkeyPatch()
    distributed.setattr(config.dist, "get_rank", lambda *_: 0)
    try:
        parsed = config.DeepSpeedConfig(document, mpu=Replicas())
    finally:
        distributed.undo()
    assert parsed.train_micro_batch_size_per_gpu == job.pins.micro_batch
    assert parsed.train_batch_size == job.global_batch
    assert int(parsed.zero_config.stage) == int(job.pins.zero or 0)
    assert parsed.bfloat16_config.enabled == (job.model.precision == "bf16")
    assert parsed.expert_parallel_config.autoep_size == (job.pins.ep or 1)


@pytest.mark.parametrize("pins", [{"dp": 2}, {"pp": 2, "schedule": "1f1b"}])
def test_the_script_takes_the_arguments_that_it_is_started_with(pins: dict[str, int]):
    written = DEEPSPEED.write(
        job_of_pins(GPT, pins, chunk_layers=(7, 5) if "pp" in pins else (), framework="deepspeed")
    )
    script = written.files["train.py"]
    options = [
        node.value
        for node in ast.walk(ast.parse(script))
        if isinstance(node, ast.Constant) and str(node.value).startswith("--")
    ]
    theirs = ("--deepspeed", "--deepspeed_config")  # of deepspeed.add_config_arguments
    assert {word for word in written.arguments if word.startswith("--")} <= {*options, *theirs}
    assert ("--stage-layers" in written.arguments) == ("pp" in pins)


TRAINER = """{
  "bf16": {"enabled": "auto"},
  "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": "auto",
    "offload_optimizer": {"device": "cpu"}},
  "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto"}},
  "steps_per_print": 5
}"""
LLAMA = '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100}'
COMMAND = """deepspeed --num_nodes=2 --num_gpus 4 run_clm.py --model_name_or_path x --bf16 \\
  --per_device_train_batch_size 2 --gradient_accumulation_steps 3 --gradient_checkpointing True \\
  --learning_rate 2e-5 --block_size 512 --deepspeed ds.json"""


def given_texts(values: dict[str, str] | None = None, **files: str) -> SettingsSource:
    names = {name.replace("_", "."): text for name, text in files.items()}
    return SettingsSource(files=names, values=values or {})


def test_what_is_left_to_transformers_is_taken_from_its_arguments():
    settings = given_texts(ds_json=TRAINER, run_sh=COMMAND, config_json=LLAMA)
    assert trainer_of(settings) is DEEPSPEED
    back = DEEPSPEED.read(settings)
    assert back.job.global_batch == 48
    assert (back.job.nodes, back.job.devices_per_node) == (2, 4)
    assert back.job.pins.document == {
        "dp": 8, "tp": 1, "pp": 1, "cp": 1, "micro_batch": 2,
        "recompute": "full", "zero": 3, "offload": "optimizer",
    }  # fmt: skip
    assert back.job.model.seq_len == 512
    assert back.job.model.precision == "bf16"
    assert back.job.training.learning_rate == 2e-5
    assert back.job.training.beta2 == 0.999
    assert back.assumed == ()
    assert "steps_per_print" in back.ignored


def test_defaults_that_are_taken_are_said():
    bare = COMMAND.replace("--per_device_train_batch_size 2", "").replace("--block_size 512", "")
    back = DEEPSPEED.read(given_texts({"model": "gpt2"}, ds_json=TRAINER, run_sh=bare))
    assert back.job.pins.micro_batch == 8
    assert back.job.model.name == "gpt2-small"
    assert [said[:30] for said in back.assumed] == [
        "train_micro_batch_size_per_gpu",
        "nothing says how long sequence",
    ]


def test_devices_come_of_a_hostfile_or_of_the_batch():
    command = "deepspeed --hostfile=hosts train.py --seq-len 64"
    hosts = "worker-0 slots=4\nworker-1 slots=4\n"
    both = given_texts(
        ds_json='{"train_batch_size": 16}', run_sh=command, hosts=hosts, config_json=LLAMA
    )
    back = DEEPSPEED.read(both)
    assert (back.job.nodes, back.job.devices_per_node, back.job.pins.micro_batch) == (2, 4, 2)
    batch = '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, '
    batch += '"gradient_accumulation_steps": 2}'
    back = DEEPSPEED.read(given_texts(ds_json=batch, config_json=LLAMA))
    assert (back.job.nodes, back.job.devices_per_node) == (2, 8)


def test_what_a_plan_has_no_words_for_is_said():
    zero = '{"stage": 3, "zero_quantized_weights": true, "zero_hpz_partition_size": 8, '
    zero += '"offload_param": {"device": "nvme", "nvme_path": "/x"}, "mics_shard_size": 4}'
    text = (
        f'{{"train_batch_size": 32, "optimizer": {{"type": "Lion"}}, "zero_optimization": {zero}}}'
    )
    back = DEEPSPEED.read(given_texts(ds_json=text, run_sh=COMMAND, config_json=LLAMA))
    assert back.job.pins.zero == "3-hybrid"
    said = " ".join(back.unplanned)
    for word in ("zero_quantized_weights", "zero_hpz", "offload_param", "refuses it", "Lion"):
        assert word in said


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (('"stage": 3', '"stge": 3'), "no setting `zero_optimization.stge`; did you mean `stage`"),
        (('"device"', '"devise"'), "`zero_optimization.offload_optimizer.devise`; did you mean"),
        (('"gradient_clipping"', '"gradient_cliping"'), "ignores it; did you mean `gradient_clip"),
        (('"stage": 3', '"stage": 4'), "`stage` is 4; expected an integer from 0 to 3"),
        (('"steps_per_print": 5', '"x": }'), "`ds.json` is no JSON"),
        (('"train_batch_size": "auto"', '"train_batch_size": 7'), "train_batch_size 7 is not 2"),
    ],
)
def test_what_cannot_be_understood_is_named(change: tuple[str, str], cause: str):
    settings = given_texts(ds_json=TRAINER.replace(*change), run_sh=COMMAND, config_json=LLAMA)
    with pytest.raises(SettingsError, match=re.escape(cause)):
        DEEPSPEED.read(settings)


def test_without_a_model_or_devices_it_says_what_to_give():
    with pytest.raises(SettingsError, match="or --set model=NAME"):
        DEEPSPEED.read(given_texts(ds_json=TRAINER, run_sh=COMMAND))
    with pytest.raises(SettingsError, match="--num_nodes and --num_gpus"):
        DEEPSPEED.read(given_texts(ds_json='{"train_batch_size": 8}', config_json=LLAMA))


@pytest.mark.parametrize(
    ("model", "pins", "changes", "cause"),
    [
        ("gemma3-1b", {}, {}, "a qwen3 comes nearest, but for post_norms True"),
        ("bert-base", {}, {}, "is of family bert"),
        ("llama3-8b", {"tp": 2}, {}, "degrees above one are dp, pp, ep"),
        ("llama3-8b", {"dp": 4, "zero": "3-hybrid"}, {}, "zero is 0 or 1 or 2 or 3"),
        ("llama3-8b", {"dp": 2, "pp": 2, "zero": 3}, {}, "zero is 0 or 1"),
        ("mixtral-8x7b", {"dp": 2, "pp": 2, "ep": 2}, {}, "splits no experts"),
        ("llama3-8b", {"recompute": "selective"}, {}, "recompute is none or full"),
        ("llama3-8b", {"recompute": "full"}, {"recompute_layers": 2}, "all layers or none"),
        ("llama3-8b", {"dp": 2}, {"global_batch": 7}, "no multiple of 2"),
    ],
)
def test_what_cannot_run_is_refused(model: str, pins: dict, changes: dict, cause: str):
    length = 128 if model == "bert-base" else 1024
    job = job_of_pins(model_spec(model, length, "bf16"), pins, **changes)
    with pytest.raises(InfeasibleError, match=re.escape(cause)):
        DEEPSPEED.write(job)


@pytest.mark.parametrize(
    ("model", "model_type"),
    [
        ("gpt3-175b", "gpt2"),
        ("llama3.1-8b", "llama"),
        ("mistral-7b", "mistral"),
        ("qwen2-7b", "qwen2"),
        ("qwen3-8b", "qwen3"),
        ("mixtral-8x7b", "mixtral"),
        ("qwen3-30b-a3b", "qwen3_moe"),
        ("deepseek-v3", "deepseek_v3"),
        ("deepseek-v2-lite", "deepseek_v2"),
    ],
)
def test_a_model_of_the_zoo_is_written_as_its_own_type(model: str, model_type: str):
    written = DEEPSPEED.write(job_of_pins(model_spec(model, 512, "bf16"), {"dp": 8, "zero": 3}))
    assert json.loads(written.files["config.json"])["model_type"] == model_type
