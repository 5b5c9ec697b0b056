"""Notes of older tables become columns once; a table that has columns is read by them alone."""

import re
from pathlib import Path

import pytest

from benchmarks.simulator.columns import write_columns
from millrace.models.documents import FileError
from millrace.published.columns import COLUMNS, NAMES
from millrace.published.notes import with_columns
from millrace.published.reading import LINE, Table, TableFormat, read_table
from millrace.published.validation import ask
from tests.millrace.published.rows import BILLION, DLPERF, NAMED, PLAIN, written

ROOT = Path(__file__).parents[3]

MIXTURE = "experts=8;topk=2;moe_ffn=64;shared=2;first 3 layers dense;MoE every 2nd layer"


def columns_of(**changed: str) -> dict[str, str]:
    """Columns that are filled for a row of the large GPT, without the blank ones."""
    row = with_columns(BILLION | changed)
    return {name: row[name] for name in NAMES if row[name]}


@pytest.mark.parametrize(
    ("changed", "filled"),
    [
        ({}, {}),
        ({"notes": "head_dim=64;sliding window 128 on alternate layers"},
         {"head_dim": "64", "window": "128"}),
        ({"notes": "MLA(kv_lora=256)"},
         {"head_dim": "192", "rotary_dims": "64", "value_dim": "128", "kv_lora": "256",
          "q_lora": "1536"}),
        ({"notes": "squared-ReLU 2-matrix MLP; TP comm overlap; torch.compile"},
         {"gated": "0", "tensor_overlap": "1", "compiled": "1"}),
        ({"notes": "cuda_graph_impl=transformer_engine"}, {"captured": "layers"}),
        ({"notes": "zero1=-1; recompute_num_layers=3; alpha=0.5"},
         {"shard_group": "all", "recompute_num_layers": "3", "activation_offload": "0.5"}),
        ({"notes": "fsdp 8 in node x dcn fsdp 16; cp_comm=a2a"},
         {"shard_group": "128", "cp_comm": "a2a"}),
        ({"notes": "fp32 grad accumulation; recipe X"}, {"gradient_bytes": "4"}),
        ({"notes": "recipe X; no comm overlap"}, {"gradient_bytes": "2", "overlap": "0"}),
        ({"peak_mem_gb": "7", "framework": "pytorch-fsdp", "notes": "GiB; torch.compile"},
         {"peak_unit": "GiB", "peak_figure": "reserved", "loss": "compiled", "compiled": "1"}),
    ],
)  # fmt: skip
def test_words_of_the_notes_become_columns(changed: dict[str, str], filled: dict[str, str]):
    said = columns_of(**changed)
    said.pop("variant", None)
    assert said == filled


def test_experts_of_the_notes_say_how_they_are_reached():
    said = columns_of(notes=f"{MIXTURE};moe_flex_dispatcher_backend=hybridep")
    assert (said["experts"], said["experts_per_token"], said["expert_hidden"]) == ("8", "2", "64")
    assert (said["shared_hidden"], said["dense_layers"], said["expert_interval"]) == (
        "128", "3", "2"
    )  # fmt: skip
    assert (said["dispatcher"], said["expert_overlap"], said["tensor_overlap"]) == (
        "hybridep", "0", "0"
    )  # fmt: skip
    assert columns_of(notes=MIXTURE)["dispatcher"] == "alltoall"


def test_notes_may_know_the_framework_better():
    assert with_columns(PLAIN | {"notes": "MaxText/JAX"})["framework"] == "jax-xla"
    unsaid = PLAIN | {"framework": "", "source": "vtrain-a100"}
    assert with_columns(unsaid)["framework"] == "megatron-deepspeed"


def test_a_table_with_columns_is_read_by_them_alone(tmp_path: Path):
    plain = PLAIN | {"experts": ""}
    noted = {"model": "llama-x", "notes": MIXTURE}
    (row,) = read_table(written(tmp_path / "new.csv", noted, plain=plain)).rows
    assert [name for name in NAMES if row[name]] == []
    asked = ask(row, TableFormat.LANGUAGE)
    assert asked.question is not None
    assert "experts" not in asked.question.model.config


QUESTION = ("question", "pins", "cluster", "measured_s", "peak_bytes", "notes", "reason")


def rewritten(path: Path, plain: dict[str, str], *rows: dict[str, str]) -> tuple[Table, Table]:
    """Tables with notes and without, after the second is seen to ask what the first asks."""
    old = read_table(written(path / "old.csv", *rows, plain=plain))
    write_columns(old, path / "new.csv")
    new = read_table(path / "new.csv")
    assert "notes" not in new.columns
    for before, after in zip(old.rows, new.rows, strict=True):
        first, second = ask(before, old.layout), ask(after, new.layout)
        assert [getattr(first, name) for name in QUESTION] == [
            getattr(second, name) for name in QUESTION
        ]
    return old, new


def test_a_table_written_without_its_notes_asks_the_same(tmp_path: Path):
    notes = [
        "",
        f"{MIXTURE};DeepEP;moe_a2a_overlap=True",
        "MaxText",
        "mla;experts=4;topk=2;moe_ffn=8",
        "torch.compile; zero1=8; recompute_num_layers=2; alpha=0.5",
    ]
    rows = [
        {"notes": note, "model": "llama-x", "gpu": "h100-sxm-80gb", "peak_mem_gb": "7"}
        for note in notes
    ]
    old, new = rewritten(tmp_path, PLAIN, *rows)
    assert {*NAMES} <= {*new.columns}
    assert [row["framework"] for row in new.rows] == [row["framework"] for row in old.rows]


def test_a_table_of_named_models_asks_the_same_without_notes(tmp_path: Path):
    notes = [
        "",
        "median; full CG; activation offload",
        "partial CG; EP overlap; paged stash",
        "Muon",
    ]
    _, new = rewritten(tmp_path, NAMED, *({"notes": note} for note in notes))
    spoken = ({"routing": "forced balance"}, {"routing": "natural (real data)"})
    _, told = rewritten(tmp_path, NAMED | {"routing": ""}, *spoken)
    assert [row["routing"] for row in told.rows] == ["balanced", "natural"]
    columns = ("captured", "expert_overlap", "optimizer", "left_out")
    assert [[row[name] for name in columns] for row in new.rows] == [
        ["", "", "", ""],
        ["step", "", "", "activation offload"],
        ["layers", "1", "", "paged stash"],
        ["", "", "muon", ""],
    ]


def test_a_table_of_dlperf_asks_the_same(tmp_path: Path):
    rewritten(tmp_path, DLPERF, {}, {"variant": "grad_clip=none"})


def test_a_written_table_says_what_was_fitted_to_and_how_tokens_reach_experts(tmp_path: Path):
    rows = [{"notes": "MoE force-balanced"}, {"tier": "B", "notes": "moe_router"}]
    old = read_table(written(tmp_path / "old.csv", *rows))
    write_columns(old, tmp_path / "new.csv", fitted=True)
    new = read_table(tmp_path / "new.csv").rows
    assert [(row["fitted"], row["routing"]) for row in new] == [("1", "balanced"), ("0", "")]


def test_what_columns_say_leaves_the_variant(tmp_path: Path):
    note = "experts=8;topk=2;moe_ffn=64;recompute none inferred from scripts;VPP 2 | dropless"
    _, new = rewritten(tmp_path, PLAIN, {"notes": note, "model": "llama-x"})
    assert new.rows[0]["variant"] == "dropless; VPP 2"


def test_a_framework_that_only_the_source_tells_is_written_too(tmp_path: Path):
    (tmp_path / "old.csv").write_text(
        "source,layers,hidden,heads,seq_len,gpu,gpus,global_batch\nvtrain-x,2,64,2,16,b200,1,4\n"
    )
    write_columns(read_table(tmp_path / "old.csv"), tmp_path / "new.csv")
    assert read_table(tmp_path / "new.csv").rows[0]["framework"] == "megatron-deepspeed"


def test_a_row_of_another_length_is_not_written(tmp_path: Path):
    path = written(tmp_path / "old.csv", {})
    path.write_text(path.read_text() + "a,b\n")
    with pytest.raises(FileError, match="line 3 has 2 fields where the header has 33: correct it"):
        write_columns(read_table(path), tmp_path / "new.csv")


def test_a_word_that_a_column_does_not_have_is_named():
    for name, word, expected in (
        ("captured", "all", "none, layers, step"),
        ("dispatcher", "mail", "alltoall, deepep"),
        ("gated", "yes", "0, 1"),
    ):
        row = PLAIN | {LINE: "2"} | dict.fromkeys(NAMES, "") | {name: word, "experts": "8"}
        row |= {"model": "llama-x", "experts_per_token": "2", "expert_hidden": "64"}
        reason = ask(row, TableFormat.LANGUAGE).reason
        assert f"line 2: {name} is `{word}`: expected one of {expected}" in reason


def test_the_page_has_a_line_for_every_column():
    page = (ROOT / "docs" / "accuracy.md").read_text("utf-8")
    lines = [
        line for line in page.splitlines() if re.match(r"\| `\w+` \| [^|]* \| [^|]* \|$", line)
    ]
    assert lines == [column.line for column in COLUMNS]
