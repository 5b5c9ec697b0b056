"""nanotron: jobs go out as its YAML and come back; its own parser takes what is written."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from millrace.models.zoo.catalogue import model_spec
from millrace.planner.errors import InfeasibleError
from millrace.trainers.job import TrainingJob
from millrace.trainers.nanotron import NANOTRON
from millrace.trainers.nanotron.setting_names import ROOT, model_class, settings_table
from millrace.trainers.trainer import SettingsError, SettingsSource
from millrace.trainers.yaml_text import read_yaml, write_yaml
from tests.millrace.trainers.trained_jobs import (
    job_of_pins,
    llamas,
    plain,
    read_back,
    source,
    trainings,
)

LLAMA = model_spec("llama3-8b", 4096, "bf16")


@st.composite
def jobs(draw: st.DrawFn) -> TrainingJob:
    """Jobs that nanotron can be told in full."""
    pins: dict[str, Any] = {
        "dp": draw(st.sampled_from((1, 2, 3, 16))),
        "tp": draw(st.sampled_from((1, 2, 4))),
        "pp": draw(st.sampled_from((1, 2, 5))),
        "cp": draw(st.sampled_from((1, 1, 2))),
        "micro_batch": draw(st.integers(1, 4)),
        "recompute": draw(st.sampled_from(("none", "full"))),
    }
    model = draw(llamas(heads_multiple=pins["tp"], precision=draw(st.sampled_from(PRECISIONS))))
    if pins["dp"] * pins["cp"] > 1:
        pins["zero"] = draw(st.integers(0, 1)) if pins["dp"] > 1 else 0
    if pins["pp"] > 1:
        pins |= {"schedule": draw(st.sampled_from(("1f1b", "gpipe"))), "interleave": 1}
    if pins["tp"] > 1:
        pins["sequence_parallel"] = True
    if pins["cp"] > 1:
        pins["ring"] = False
    extra: dict[str, Any] = {"qkv_bias": draw(st.booleans()), "window": draw(st.sampled_from(SEEN))}
    if draw(st.booleans()):
        extra |= {"experts": 8, "experts_per_token": 2, "expert_hidden": 64}
        extra |= {"normalize_weights": False, "capacity_factor": 1.0}
        extra["dense_layers"] = (0,) if draw(st.booleans()) else ()
        pins |= {"ep": 1, "dispatcher": "alltoall", "expert_overlap": False}
        if pins["tp"] > 1:
            pins["etp"] = 1
    model = replace(model, config={**model.config, **extra})
    alone = {"tensor_overlap": "0"} if pins["tp"] > 1 and draw(st.booleans()) else {}
    return job_of_pins(
        model, pins, framework="nanotron", training=draw(trainings()), software=alone
    )


PRECISIONS, SEEN = ("bf16", "fp16", "fp32"), (0, 128)


@given(jobs())
@settings(deadline=None, max_examples=60)
def test_a_job_that_is_written_is_read_back(job: TrainingJob):
    back = read_back(NANOTRON, job)
    assert plain(back.job) == plain(job)
    assert back.assumed == ()


@given(jobs())
@settings(deadline=None, max_examples=20)
def test_all_that_is_written_is_in_the_table(job: TrainingJob):
    document = read_yaml(NANOTRON.write(job).files["config.yaml"], "config.yaml")
    assert list(faults(document, ROOT, "")) == []


def faults(section: dict[str, Any], name: str, path: str) -> Iterator[str]:
    """Settings that a class lacks, whose value is of another type, or that have to be there."""
    table = settings_table().classes
    for field, row in table[name].items():
        if field not in section:
            required = row.default is msgspec.UNSET and not row.type.startswith("Optional")
            if required:
                yield f"{path}{field} is missing"
            continue
        value = section[field]
        inner = [word for word in re.findall(r"\w+", row.type) if word in table]
        if field == "model_config":
            inner = [model_class(value)]
        if isinstance(value, dict) and inner:
            fits = [list(faults(value, kind, f"{path}{field}.")) for kind in inner]
            if all(fits):
                yield from min(fits, key=len)
        elif isinstance(value, list) and inner:
            for item in value:
                yield from faults(item, inner[0], f"{path}{field}.")
        elif value is not None and not inner and not is_of(value, row.type):
            yield f"{path}{field} is {value!r}: {row.type}"
        elif row.choices and value not in row.choices:
            yield f"{path}{field} is {value!r}: {row.choices}"
    yield from (f"there is no {path}{field}" for field in section if field not in table[name])


def is_of(value: object, kind: str) -> bool:
    """True if a value is of a type, as dacite takes it: an int is no float, a bool no int."""
    kinds = {"int": int, "float": float, "bool": bool, "str": str}
    words = [word for word in re.findall(r"\w+", kind) if word in kinds]
    if isinstance(value, list):
        return "List" in kind and all(type(item) is kinds[words[0]] for item in value)
    return not words or type(value) in [kinds[word] for word in words]


PARSER = """
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

class Absent(ModuleType):
    __path__, __version__ = [], "2.7.0"
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Path if name == "xPath" else MagicMock()

class Finder(MetaPathFinder, Loader):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("flash_attn", "triton", "datasets", "functorch"):
            return ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        return Absent(spec.name)
    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Finder())
from nanotron.config import get_config_from_file
for file in sys.argv[1:]:
    config = get_config_from_file(file)
    parallel = config.parallelism
    world = parallel.dp * parallel.tp * parallel.pp * parallel.context_parallel_size
    print(type(config.model.model_config).__name__, world, config.global_batch_size)
"""


def test_its_own_parser_takes_what_is_written(tmp_path: Path):
    """Kernels that nanotron imports and its settings do not need are stood in for.

    `pip install --no-deps git+https://github.com/huggingface/nanotron@2411b02` and `dacite`.
    """
    spec = find_spec("nanotron")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("nanotron is not installed from its repository")
    config = Path(spec.submodule_search_locations[0]) / "config" / "parallelism_config.py"
    if "context_parallel_size" not in config.read_text():
        pytest.skip("nanotron is an older version than is written")
    mixture = {"experts": 8, "experts_per_token": 2, "expert_hidden": 64, "shared_hidden": 32}
    mixture |= {"normalize_weights": False, "capacity_factor": 1.0}
    written = [
        job_of_pins(LLAMA, {"dp": 2, "tp": 4, "pp": 2, "zero": 1, "schedule": "gpipe"}),
        job_of_pins(LLAMA, {"dp": 4, "cp": 2, "zero": 0, "recompute": "full"}),
        job_of_pins(replace(LLAMA, config={**LLAMA.config, **mixture}), {"dp": 2, "zero": 1}),
    ]
    files = []
    for number, job in enumerate(written):
        files.append(tmp_path / f"{number}.yaml")
        files[-1].write_text(NANOTRON.write(job).files["config.yaml"])
    parsed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PARSER, *map(str, files)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert parsed.returncode == 0, parsed.stderr
    assert parsed.stdout.splitlines()[-3:] == [
        "LlamaConfig 16 8",
        "Qwen2Config 8 16",
        "Qwen2Config 2 8",
    ]


OLDER = """
general: {project: debug, run: tiny}
model:
  dtype: bfloat16
  init_method: {std: 0.025}
  model_config: {is_llama_config: true, hidden_size: 64, intermediate_size: 128, vocab_size: 256,
    num_attention_heads: 4, num_hidden_layers: 4, rms_norm_eps: 1.0e-05}
optimizer: {accumulate_grad_in_fp32: true, adam_beta1: 0.9, adam_beta2: 0.95, adam_eps: 1.0e-08,
  clip_grad: 1.0, torch_adam_is_fused: true, weight_decay: 0.01, zero_stage: 0,
  learning_rate_scheduler: {learning_rate: 0.0003, lr_decay_steps: 8, lr_warmup_steps: 2,
    lr_warmup_style: linear, min_decay_lr: 1.0e-05}}
parallelism: {dp: 2, pp: 2, tp: 2, tp_linear_async_communication: false, tp_mode: REDUCE_SCATTER}
tokenizer: {tokenizer_name_or_path: gpt2}
tokens: {batch_accumulation_per_replica: 3, micro_batch_size: 4, sequence_length: 32,
  train_steps: 10}
data: {seed: 42, dataset: {hf_dataset_or_datasets: HuggingFaceH4/testing_alpaca_small}}
"""

SIZES = OLDER[OLDER.index("is_llama") : OLDER.index("}\noptimizer")]


def test_the_settings_of_the_release_are_read_too():
    back = NANOTRON.read(SettingsSource(files={"tiny.yaml": OLDER}, values={}))
    assert back.job.global_batch == 24
    assert (back.job.nodes, back.job.devices_per_node, back.job.cluster) == (1, 8, "")
    assert back.job.pins.schedule == "gpipe"
    assert back.job.training.beta2 == 0.95
    assert "all forward passes first" in back.assumed[0]
    assert {"data", "tokenizer"} <= set(back.ignored)
    assert any("tp_linear_async_communication" in said for said in back.unplanned)


def test_settings_that_no_version_has_are_named_and_left_out():
    text = OLDER.replace("{dp: 2,", "{dp: 2, tp_mod: 2,") + "doremi: {alpha: 1}\n"
    source = SettingsSource(files={"tiny.yaml": text}, values={}, left_out=frozenset(["tp_mod"]))
    assert NANOTRON.read(source).unread == ("doremi",)
    with pytest.raises(SettingsError, match="--ignore tp_mod"):
        NANOTRON.read(SettingsSource(files={"tiny.yaml": text}, values={}))


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (("zero_stage", "zero_stges"), "no setting `optimizer.zero_stges`; did you mean `zero_st"),
        (("vocab_size", "vocab"), "`model.model_config.vocab`; did you mean `vocab_size`"),
        (("dp: 2", "dp: two"), "`parallelism`: `dp` is 'two'; expected an integer"),
        (("dp: 2, ", ""), "`dp` is missing"),
        (("{dp: 2, pp: 2, tp: 2,", "{dp: 2, pp: 2, tp: 2, pp_engine: dualpipe,"), "afab, 1f1b"),
        (("tokens: {", "tokens: {{"), "is no YAML"),
        (("rms_norm_eps: 1.0e-05", "rms_norm_eps: 1e-5"), "`rms_norm_eps` is '1e-5'; expected a"),
        (("dtype: bfloat16", "dtype: &x bfloat16\n  ddp_bucket_cap_mb: *x"), "repeats a part"),
        ((SIZES, "is_starcoder2_config: true"), "a Starcoder2Config is not read"),
    ],
)
def test_what_cannot_be_understood_is_named(change: tuple[str, str], cause: str):
    text = OLDER.replace(*change)
    with pytest.raises(SettingsError, match=re.escape(cause)):
        NANOTRON.read(SettingsSource(files={"tiny.yaml": text}, values={}))


def test_other_numbers_of_devices_than_its_degrees_are_refused():
    settings = SettingsSource(files={"tiny.yaml": OLDER}, values={}, nodes=3, devices_per_node=8)
    with pytest.raises(SettingsError, match="is 8, on 3 nodes of 8 devices"):
        NANOTRON.read(settings)


@pytest.mark.parametrize(
    ("model", "pins", "changes", "cause"),
    [
        ("gpt2-small", {}, {}, "is of family gpt"),
        ("qwen3-8b", {}, {}, "qk_norm 'rms'"),
        ("llama3-8b", {"tp": 16}, {}, "has 8: choose a divisor"),
        ("llama3-8b", {"dp": 2, "zero": 3}, {}, "zero is 0 or 1"),
        ("llama3-8b", {"recompute": "selective"}, {}, "recompute is none or full"),
        ("llama3-8b", {"cp": 2, "ring": True}, {}, "keys and values are gathered"),
        ("llama3-8b", {"pp": 2, "schedule": "1f1b", "interleave": 2}, {}, "one chunk"),
        ("llama3-8b", {"recompute": "full"}, {"recompute_layers": 2}, "all layers or none"),
        ("llama3-8b", {}, {"global_batch": 7, "pins": {"dp": 2}}, "no multiple of 2"),
    ],
)
def test_what_cannot_run_is_refused(model: str, pins: dict, changes: dict, cause: str):
    if "pins" in changes:
        pins = changes.pop("pins")
    job = job_of_pins(model_spec(model, 1024, "bf16"), pins, **changes)
    with pytest.raises(InfeasibleError, match=re.escape(cause)):
        NANOTRON.write(job)


def test_what_it_decides_itself_is_said():
    pins = {"dp": 2, "tp": 1, "pp": 4, "zero": 1, "schedule": "1f1b", "interleave": 1}
    written = NANOTRON.write(job_of_pins(LLAMA, pins))
    assert any("9, 9, 8, 6 to the stages" in said for said in written.unsaid)
    assert any("9, 9, 8, 6" in said for said in NANOTRON.read(source(written)).unplanned)


def test_positions_that_are_stretched_are_said_and_not_refused():
    written = NANOTRON.write(job_of_pins(model_spec("llama3.1-8b", 4096, "bf16"), {"dp": 8}))
    assert any("rope_scaling none, the plan has llama3" in said for said in written.unsaid)


def test_yaml_goes_out_and_comes_back():
    document = {"a": {"b": [1, 2.5, None, True, "x: y"]}, "c": 1e-05}
    assert read_yaml(write_yaml(document), "x") == document
