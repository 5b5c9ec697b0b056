"""Torchtitan's own parser takes what is exported, and its own code builds the model from it."""

import dataclasses
import json
import subprocess
import sys
from math import log, prod
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.models.zoo.catalogue import build, model_spec
from millrace.planner.search import Pins
from millrace.trainers.job import TrainingJob
from millrace.trainers.torchtitan import TORCHTITAN
from millrace.trainers.torchtitan.job_settings import settings_of
from millrace.trainers.torchtitan.pipeline_stages import divided
from tests.extras import optional

optional("torchtitan", "trainers")
ROOT = Path(__file__).resolve().parents[3]
MIXED = {"ep": 8, "dispatcher": "alltoall"}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama3-8b": ("3", {"dp": 16, "recompute": "selective"}),
    "llama3.1-70b": ("3-hybrid", {"dp": 8, "tp": 4, "cp": 2, "recompute": "full", "ring": False}),
    "qwen2-7b": ("2", {"dp": 2, "tp": 4, "pp": 2, "schedule": "1f1b", "interleave": 1}),
    "qwen3-0.6b": ("0", {"dp": 16, "recompute": "none"}),
    "mixtral-8x7b": ("3", {"dp": 8, "tp": 2, "recompute": "full", **MIXED}),
    "qwen3-30b-a3b": (
        "3",
        {"dp": 2, "tp": 4, "pp": 2, "schedule": "zb-v", "interleave": 2, **MIXED},
    ),
    "deepseek-v2-lite": ("2", {"dp": 4, "tp": 4, "recompute": "selective", **MIXED}),
    "deepseek-v3": ("3", {"dp": 16, "tp": 1, "recompute": "full", **MIXED}),
    "llama-demo": ("", {"dp": 1, "recompute": "selective"}),
    "mixtral-demo": ("", {"dp": 1, "recompute": "full"}),
    "deepseek-demo": ("", {"dp": 1, "recompute": "none"}),
}


def job_of(name: str) -> TrainingJob:
    zero, pins = JOBS[name]
    demo = name.endswith("-demo")
    model = msgspec.structs.replace(
        model_spec(name), seq_len=64 if demo else 4096, precision="bf16"
    )
    pinned = {"tp": 1, "pp": 1, "cp": 1, "micro_batch": 1}
    devices = pins["dp"] * pins.get("tp", 1) * pins.get("cp", 1) * pins.get("pp", 1)
    return TrainingJob(
        model=model,
        global_batch=64,
        nodes=max(1, devices // 8),
        devices_per_node=min(8, devices),
        pins=Pins.of(
            pinned | pins | ({"zero": int(zero) if zero.isdigit() else zero} if zero else {})
        ),
        framework="torchtitan",
    )


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Answers of torchtitan to all jobs, and how it divides layers."""
    folders = []
    for name in JOBS:
        written = TORCHTITAN.write(job_of(name))
        folder = tmp_path_factory.mktemp("torchtitan") / name
        folder.mkdir()
        for file, text in written.files.items():
            (folder / file).write_text(text, "utf-8")
        (folder / "arguments.json").write_text(json.dumps(written.arguments), "utf-8")
        folders.append(str(folder))
    run = subprocess.run(
        [sys.executable, "-m", "tests.millrace.trainers.torchtitan_parser", *folders],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return dict(json.loads(run.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", JOBS)
def test_its_parser_reads_the_settings_that_were_meant(name: str, answers: dict[str, Any]) -> None:
    job, answer = job_of(name), answers["folders"][name]
    for setting, value in settings_of(job).items():
        section, _, field = setting.partition(".")
        if section in ("training", "parallelism"):
            assert answer[section][field] == value
    assert answer["ranks"] == job.devices


@pytest.mark.parametrize("name", JOBS)
def test_the_model_that_it_builds_has_as_many_weights(name: str, answers: dict[str, Any]) -> None:
    graph = build(msgspec.structs.replace(job_of(name).model, seq_len=64), 1)
    shapes = graph.tensors_by_name
    weights = [shapes[op.outputs[0]].shape for op in graph.ops if op.trains]
    assert answers["folders"][name]["parameters"] == sum(prod(shape) for shape in weights)


@pytest.mark.parametrize("name", [name for name in JOBS if name.endswith("-demo")])
def test_a_first_step_begins_by_predicting_nothing(name: str, answers: dict[str, Any]) -> None:
    vocab = job_of(name).model.config["vocab"]
    assert answers["losses"][name] == pytest.approx(log(float(str(vocab))), rel=0.05)


def test_layers_are_divided_as_it_divides_them(answers: dict[str, Any]) -> None:
    assert len(answers["divisions"]) > 30
    for layers, chunks, first, last, counts in answers["divisions"]:
        settings = {
            "parallelism.pipeline_parallel_degree": chunks,
            "parallelism.pipeline_parallel_first_stage_less_layers": first,
            "parallelism.pipeline_parallel_last_stage_less_layers": last,
            "parallelism.pipeline_parallel_layers_per_stage": None,
        }
        assert divided(layers, settings, 1) == counts


def test_an_export_of_other_nodes_differs_in_its_launcher_alone() -> None:
    job = job_of("llama3-8b")
    other = dataclasses.replace(job, nodes=1, devices_per_node=16)
    first, second = TORCHTITAN.write(job).files, TORCHTITAN.write(other).files
    assert first["millrace_job.py"] == second["millrace_job.py"]
    assert "--nnodes 1 --nproc-per-node 16" in second["launch.sh"]
