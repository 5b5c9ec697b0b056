"""Jobs that are written for torchtitan and read again are the same jobs."""

import dataclasses

import msgspec
import pytest
from hypothesis import given, settings

from millrace.models.zoo.catalogue import model_spec
from millrace.planner.errors import InfeasibleError
from millrace.planner.search import Pins
from millrace.trainers.job import TrainingJob
from millrace.trainers.torchtitan import TORCHTITAN
from millrace.trainers.torchtitan.python_module import parse_module
from millrace.trainers.torchtitan.settings_table import NEWEST, table_of
from millrace.trainers.trainer import SettingsSource
from tests.millrace.trainers.jobs import spelled_out, torchtitan_jobs


def llama_job(**pins: object) -> TrainingJob:
    """A job of Llama 3 8B on eight devices."""
    pinned = {"dp": 8, "tp": 1, "pp": 1, "cp": 1, "micro_batch": 1, "zero": 3, "recompute": "none"}
    return TrainingJob(
        model=msgspec.structs.replace(model_spec("llama3-8b"), seq_len=8192, precision="bf16"),
        global_batch=64,
        nodes=1,
        devices_per_node=8,
        pins=Pins.of(pinned | pins),
        framework="torchtitan",
    )


@given(torchtitan_jobs())
@settings(max_examples=150, deadline=None)
def test_a_job_goes_round(job: TrainingJob) -> None:
    written = TORCHTITAN.write(job)
    read = TORCHTITAN.read(SettingsSource(files=written.files, values={}))
    assert spelled_out(read.job) == spelled_out(job)
    assert not read.assumed
    assert not written.unsaid[:-1] or job.model.precision == "nvfp4"  # which experts do not have


@given(torchtitan_jobs())
@settings(max_examples=40, deadline=None)
def test_what_is_written_is_in_the_table_with_a_value_it_takes(job: TrainingJob) -> None:
    module = parse_module(TORCHTITAN.write(job).files["millrace_job.py"])
    for section, call in module.configuration("job").keywords.items():
        if section in ("training", "parallelism", "compile", "lr_scheduler", "dataloader"):
            for name, value in call.keywords.items():
                table_of(NEWEST).check(f"{section}.{name}", value)


def test_overrides_of_a_command_line_say_the_job_but_for_the_stages() -> None:
    written = TORCHTITAN.write(llama_job(dp=4, tp=2, zero=2, recompute="full"))
    words = " ".join(written.arguments)
    module = written.files["millrace_job.py"].replace("FullAC.Config()", "None")
    launch = f"torchrun --nproc-per-node 8 -m torchtitan.train {words}"
    source = SettingsSource(files={"millrace_job.py": module, "": launch}, values={})
    assert TORCHTITAN.read(source).job.pins == Pins.of(
        {"dp": 4, "tp": 2, "pp": 1, "cp": 1, "micro_batch": 1, "zero": 2}
        | {"recompute": "full", "sequence_parallel": True}
    )


def test_a_pipeline_takes_the_whole_share_of_a_replica_as_its_local_batch() -> None:
    job = llama_job(dp=2, pp=4, micro_batch=2, schedule="1f1b", interleave=1)
    files = TORCHTITAN.write(job).files
    text = files["millrace_job.py"]
    assert "local_batch_size=32," in text  # 64 samples over 2 replicas
    assert "pipeline_parallel_microbatch_size=2," in text
    assert TORCHTITAN.read(SettingsSource(files=files, values={})).job.pins == job.pins


def test_gradients_are_accumulated_where_there_is_no_pipeline() -> None:
    text = TORCHTITAN.write(llama_job(micro_batch=2)).files["millrace_job.py"]
    assert "local_batch_size=2," in text
    assert "global_batch_size=64," in text


@pytest.mark.parametrize(
    ("pins", "reason"),
    [
        ({"zero": 1}, "it splits storage as ZeRO-2 and 3 do"),
        ({"dp": 4, "cp": 2, "zero": 0}, "over context-parallel ranks it always splits"),
        ({"dp": 4, "pp": 2, "schedule": "zb-h1"}, "it has no schedule zb-h1"),
        ({"dp": 1, "tp": 8, "micro_batch": 3}, "64 samples are no multiple of 1 × 3"),
        ({"dp": 16}, "dp × tp × pp × cp is 16, on 8 devices"),
        ({"pp": 8, "dp": 1, "micro_batch": 16}, "needs 8 microbatches, not 4"),
    ],
)
def test_what_torchtitan_would_refuse_is_refused(pins: dict[str, object], reason: str) -> None:
    with pytest.raises(InfeasibleError) as refused:
        TORCHTITAN.write(llama_job(**pins))
    assert reason in str(refused.value)


def test_a_model_of_another_make_is_refused_by_the_fields_that_differ() -> None:
    gemma = dataclasses.replace(llama_job(), model=model_spec("gemma2-2b"))
    with pytest.raises(InfeasibleError, match=r"post_norms is True"):
        TORCHTITAN.write(gemma)


def test_rings_are_said_to_be_gathers() -> None:
    written = TORCHTITAN.write(llama_job(dp=4, cp=2, ring=True))
    assert written.unsaid[:-1] == (
        "keys and values are gathered over the cp ranks, not sent round a ring",
    )
