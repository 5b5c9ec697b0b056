"""Rows that name a model of the zoo are asked with their whole plan pinned, or say why not."""

from pathlib import Path

import pytest

from millrace import cli
from millrace.models.model_counts import training_flops
from millrace.models.zoo.catalogue import build, model_spec
from millrace.published import named_models
from millrace.published.named_models import reported_flops, zoo_name
from millrace.published.question import InexpressibleError
from millrace.published.reading import Row, TableFormat, read_table
from millrace.published.summary import document, needs_more, ran_out
from millrace.published.validation import RowQuestion, ask, validate
from tests.millrace.published.rows import NAMED, written


def read(path: Path, **changed: str) -> Row:
    """A row as it is read, with some columns changed."""
    (row,) = read_table(written(path / "named.csv", changed, plain=NAMED)).rows
    return row


def asked(path: Path, **changed: str) -> RowQuestion:
    """Question of a row."""
    return ask(read(path, **changed), TableFormat.NAMED)


def test_the_layout_is_told_by_its_header_and_sources_are_repositories(tmp_path: Path):
    table = read_table(written(tmp_path / "a.csv", {}, plain=NAMED))
    assert table.layout is TableFormat.NAMED
    assert table.rows[0]["source"] == "NVIDIA/Megatron-LM(dev)"


def test_a_row_pins_its_plan(tmp_path: Path):
    row_question = asked(tmp_path, tp="2", pp="2", vp="2", dispatcher="hybridep", notes="full CG")
    assert row_question.pins.document == {
        "dp": 2,
        "tp": 2,
        "pp": 2,
        "cp": 1,
        "ep": 4,
        "etp": 1,
        "micro_batch": 1,
        "schedule": "interleaved-1f1b",
        "interleave": 2,
        "zero": 1,
        "sequence_parallel": True,
    }
    assert row_question.cluster is not None
    software = row_question.cluster.software
    assert software.name == "megatron-core"
    assert software.host_ns == 0  # the step is captured
    assert software.merges  # tokens that go to one rank are sent once
    assert "all_to_all" not in software.pieces


def test_storage_is_split_as_the_source_says(tmp_path: Path):
    fsdp = asked(tmp_path, source_file="NVIDIA-NeMo/Automodel:docs/x.mdx", fsdp="8", ep="8")
    assert (fsdp.pins.zero, fsdp.pins.ep) == (3, 8)
    xla = asked(
        tmp_path,
        model="llama-demo",
        gpu="TPU7x (Ironwood chip)",
        source_file="AI-Hypercomputer/tpu-recipes:README.md",
        **dict.fromkeys(("tp", "pp", "cp", "ep", "mbs"), ""),
    )
    assert xla.pins.document == {"dp": 8, "tp": 1, "pp": 1, "cp": 1, "micro_batch": 2, "zero": 3}
    assert xla.cluster is not None
    assert xla.cluster.device.name == "tpu-v7x-ironwood"


@pytest.mark.parametrize(
    ("written_as", "mode", "again", "note"),
    [
        ("selective:none", "none", None, ()),
        ("full", "full", None, ()),
        ("selective:moe_act", "selective", ("expert-activations",), ()),
        (
            "selective:layernorm+mhc",
            "selective",
            ("norms",),
            ("recompute of mhc left out",),
        ),
        ("selective:mhc", "none", None, ("recompute of mhc left out",)),
    ],
)
def test_modules_that_are_recomputed_are_planned_or_noted(
    tmp_path: Path, written_as: str, mode: str, again: tuple[str, ...] | None, note: tuple[str, ...]
):
    row_question = asked(tmp_path, recompute=written_as)
    assert row_question.pins.recompute == mode
    assert row_question.notes == note
    assert row_question.cluster is not None
    if again is not None:
        assert row_question.cluster.software.selective.again == again


def test_names_may_have_sizes_behind_them():
    assert zoo_name("Nemotron-3-Nano-30B-A3B") == "nemotron-3-nano"
    assert zoo_name("gpt-oss-20b") == "gpt-oss-20b"
    assert zoo_name("qwen3-next-80b-a3b") == "qwen3-next-80b-a3b"


def test_the_first_layers_of_a_model_alone(tmp_path: Path):
    spec = named_models.model(read(tmp_path, model="nemotron-3-nano (5 layers)"))
    assert (spec.config["layers"], spec.config["pattern"]) == (5, "MEMEM")
    spec = named_models.model(read(tmp_path, model="gpt-oss-20b (5 layers)"))
    assert spec.config["full_layers"] == (1, 3)


def test_a_layout_with_a_further_module_has_one(tmp_path: Path):
    row_question = asked(tmp_path, pp="2", layout="Ettt|tmL")
    assert row_question.question is not None
    assert row_question.question.model.config["mtp_layers"] == 1
    assert row_question.notes == ("uneven layers as the search splits them",)


def test_a_step_time_follows_from_tokens_or_flops(tmp_path: Path):
    told = asked(tmp_path, step_time_s="", tokens_per_s_per_gpu="1000").measured_s
    assert told == pytest.approx(16 * 128 / (1000 * 8))
    flops = asked(tmp_path, step_time_s="", tflops_per_gpu="1")
    assert flops.measured_s > 0
    assert "step time from TFLOP/s" in flops.notes
    with pytest.raises(InexpressibleError, match="blank"):
        named_models.measured_s(read(tmp_path, step_time_s=""))


def test_trainers_count_half_of_causal_attention():
    spec = model_spec("gpt2-small", 1024)
    all_keys, masked = training_flops(build(spec, 1)), reported_flops(spec)
    assert all_keys - masked == 3 * 12 * 2 * 1024 * 1024 * 768  # 12 layers, two products


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": "gpt-17"}, "line 2: there is no model `gpt-17`"),
        ({"kind": "LoRA fine-tuning"}, "rank of the adapters"),
        ({"gpu": "C64"}, "no device `c64`"),
        ({"count": "7", "tp": "2"}, r"dp × tp × pp × cp is 6, on 7"),
    ],
)
def test_a_row_that_cannot_be_asked_says_why(tmp_path: Path, changed: dict[str, str], said: str):
    reason = asked(tmp_path, **changed).reason
    assert said in reason


def test_runs_that_ended_for_want_of_memory_have_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = written(
        tmp_path / "a.csv",
        {"peak_mem_gb": "1.5", "tflops_per_gpu": "3"},
        {"step_time_s": "", "quality": "OOM (negative row)"},
        {"model": "gpt-17"},
        plain=NAMED,
    )
    table = read_table(path)
    outcomes = validate(table)
    assert [ran_out(outcome) for outcome in outcomes] == [False, True, False]
    assert needs_more(outcomes[1]) is False
    figures = document(outcomes, table.layout)
    assert figures["out_of_memory"] == {"rows": 1, "predicted": 0}
    assert (figures["count"], figures["expressed"]) == (3, 2)
    first, second, _ = figures["rows"]
    assert second["measured_s"] is second["error"] is None
    rate = first["predicted_tokens_per_s_per_gpu"]
    assert rate == pytest.approx(16 * 128 / 8 / first["predicted_s"])
    assert first["predicted_tflops_per_gpu"] == pytest.approx(3 * 0.01 / first["predicted_s"])
    assert cli.run(["validate", str(path), "--processes", "1"]) == 0
    shown = capsys.readouterr().out
    assert "not expressed: line 4: there is no model `gpt-17`" in shown
    assert "want of memory: 0 of 1 need more" in shown
    path = written(tmp_path / "b.csv", {"quality": "OOM"}, plain=NAMED)
    assert (
        cli.run(["validate", str(path), "--processes", "1", "--plot", str(tmp_path / "b.svg")]) == 0
    )
    assert "1 rows, 1 expressed\n" in capsys.readouterr().out
