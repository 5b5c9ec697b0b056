"""YAML of Megatron's arguments: in sections, nested, with variables, and Primus' presets."""

import pytest

from millrace.trainers.megatron import MEGATRON_CORE
from millrace.trainers.trainer import ReadSettings, SettingsError, SettingsSource

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


def test_variables_flags_and_empty_lists_of_yaml_are_read():
    text = SECTIONS.replace("micro-batch-size: 4", "micro-batch-size: ${MBS}")
    text = text.replace("-size: 2\n", "-size: ${TP:2}\n").replace("parallel: true", "parallel: 1")
    text += "  high_priority_stream_groups: []\n  --my-own: 2\n"
    source = SettingsSource(files={"gpt.yaml": text}, values={"MBS": "4"}, devices_per_node=8)
    settings_read = MEGATRON_CORE.read(source)
    pins = settings_read.job.pins
    assert (pins.tp, pins.micro_batch, pins.sequence_parallel) == (2, 4, True)
    assert (settings_read.ignored, settings_read.unread) == (
        ("CUDA_DEVICE_MAX_CONNECTIONS",),
        ("--my-own",),
    )
    open_source = SettingsSource(files={"gpt.yaml": text}, values={})
    with pytest.raises(SettingsError, match="--set MBS=VALUE"):
        MEGATRON_CORE.read(open_source)
    for flag, asked in (("--log-throughput: ${LOG}", False), ("--fp16: ${HALF}", True)):
        source = SettingsSource(files={"gpt.yaml": f"{text}  {flag}\n"}, values={"MBS": "4"})
        if asked:
            with pytest.raises(SettingsError, match="--set HALF=VALUE"):
                MEGATRON_CORE.read(source)
        else:
            assert "--log-throughput" in MEGATRON_CORE.read(source).ignored


PRIMUS = """
work_group: ${TEAM:amd}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: ${MODEL:llama2_7B}.yaml
    overrides: {micro_batch_size: 1, global_batch_size: 64, seq_length: 4096, num_layers: 16,
      train_data_path: null, tensor_model_parallel_size: "${TP:1}"}
"""


def test_a_preset_of_primus_is_a_file_or_a_model_of_the_catalogue():
    def primus(values: dict[str, str], **files: str) -> ReadSettings:
        texts = {"run.yaml": PRIMUS, **{f"{name}.yaml": text for name, text in files.items()}}
        return MEGATRON_CORE.read(SettingsSource(files=texts, values=values, devices_per_node=8))

    named = primus({"TP": "2"})
    config = named.job.model.config
    assert (config["hidden"], config["layers"], named.job.model.precision) == (4096, 16, "bf16")
    assert (str(named.job.pins.zero), named.job.pins.sequence_parallel) == ("1", True)
    assert "llama2_7B.yaml is llama2-7b" in named.assumed[0]
    base = "{hidden_size: 512, num_attention_heads: 8, vocab_size: 32000, swiglu: true}"
    files = {"base": base, "mine": "{bases: [base.yaml], hidden_size: 1024, num_layers: 4}"}
    preset = primus({"MODEL": "mine"}, **files).job.model.config
    assert (preset["hidden"], preset["heads"], preset["layers"]) == (1024, 8, 16)
    with pytest.raises(SettingsError, match=r"mine\.yaml: this preset of Primus is not given"):
        primus({"MODEL": "mine"}, mine=files["mine"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_attention_heads: [", "no YAML"),
        ("- num_attention_heads: 1", "holds no mapping"),
        ("model: {num_attention_heads: 8, num_moe_experts: 8}", "section `model` it is NeMo's"),
        (
            "num_attention_heads: [8, 16]\nnum_layers: [2]\nhidden_size: 8",
            "expected a whole number",
        ),
        ("num_layers: two\nnum_attention_heads: 1", "expected a whole number"),
    ],
)
def test_yaml_that_cannot_be_understood_is_named(text, message):
    with pytest.raises(SettingsError, match=message):
        MEGATRON_CORE.read(SettingsSource(files={"gpt.yaml": text}, values={}))
