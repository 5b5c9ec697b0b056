"""Memory rows: functional tests of Megatron-LM are read, planned and compared by their state."""

import csv
from pathlib import Path

import pytest

from millrace.published.reading import TableFormat, read_table
from millrace.published.summary import document
from millrace.published.validation import ask, validate
from millrace.trainers.megatron.functional_tests import memory_rows
from millrace.trainers.megatron.functional_tests.memory_rows import arguments, functional_tests

READERS = {TableFormat.TESTS: memory_rows}
SMALL = {
    "test": "gpt/gpt3_mcore_te_tp1_pp1_dist_optimizer_no_mmap_bin_files",
    "platform": "a100",
    "gpus": "8",
    "mem_alloc_bytes": "552128512",
    "mem_max_bytes": "4673062912",
    "num-layers": "12",
    "hidden-size": "512",
    "num-attention-heads": "8",
    "seq-length": "1024",
    "micro-batch-size": "4",
    "global-batch-size": "32",
    "tensor-model-parallel-size": "1",
    "pipeline-model-parallel-size": "1",
    "use-distributed-optimizer": "True",
    "bf16": "True",
}
FLASH = "gpt/gpt3_mcore_te_tp1_pp1_resume_torch_dist_dist_optimizer_no_mmap_bin_files"


def written(path: Path, *rows: dict[str, str]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(SMALL))
        writer.writeheader()
        writer.writerows([SMALL | row for row in rows])
    return path


def test_state_and_peak_of_a_run_are_compared(tmp_path: Path):
    table = read_table(written(tmp_path / "tests.csv", {}))
    assert table.layout is TableFormat.TESTS
    figures = document(validate(table, readers=READERS), table.layout)
    (row,) = figures["rows"]
    assert figures["state"]["rows"] == figures["memory"]["rows"] == 1
    assert row["error"] is None, "steps of tiny models are not judged"
    assert abs(row["memory_error"]) < 0.01, "probabilities of attention lie there with their masks"
    measured = int(SMALL["mem_alloc_bytes"]) / 1e9
    assert row["predicted_state_gb"] == pytest.approx((1 + row["state_error"]) * measured)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, {"residual", "masked_softmax"}),
        ({"test": FLASH}, {"residual", "attention"}),
        ({"test": FLASH, "micro-batch-size": "1"}, {"residual"}),
        ({"test": FLASH, "platform": "h100"}, {"residual"}),
        ({"test": FLASH, "platform": "gb200"}, {"residual", "attention"}),
    ],
)
def test_dropout_and_flash_attention_keep_more(tmp_path: Path, said, expected):
    table = read_table(written(tmp_path / "tests.csv", said))
    asked = ask(table.rows[0], table.layout, readers=READERS).question
    assert {name for name, times in asked.keeping.framework.byte_multiples if times} == expected


def test_a_test_of_another_model_is_listed_with_its_reason(tmp_path: Path):
    table = read_table(written(tmp_path / "tests.csv", {"test": "t5/t5_release"}))
    (outcome,) = validate(table, readers=READERS)
    assert outcome.reason.startswith("line 2: test is `t5/t5_release`: an encoder and a decoder")


def test_arguments_without_a_column_are_those_of_the_test(tmp_path: Path):
    rows = [{}, {"test": "gpt/gpt3_mcore_te_tp4_pp1_qk_layernorm_test_mode"}]
    first, second = read_table(written(tmp_path / "tests.csv", *rows)).rows
    assert not arguments(first)["qk_layernorm"]
    assert arguments(second)["qk_layernorm"]
    assert {row["test"] for row in (first, second)} <= functional_tests().tests.keys()


def test_devices_that_a_row_leaves_blank_are_those_of_its_kind_of_test(tmp_path: Path):
    table = read_table(written(tmp_path / "tests.csv", {"gpus": ""}))
    row_question = ask(table.rows[0], table.layout, readers=READERS)
    assert row_question.pins.dp == 8
    assert "8 devices, as such tests have" in row_question.notes


def test_a_bert_is_the_model_that_its_script_makes(tmp_path: Path):
    row = {"test": "bert/bert_mcore_tp2_pp2_local_spec", "seq-length": "512"}
    row |= {"pipeline-model-parallel-size": "2", "tensor-model-parallel-size": "2"}
    table = read_table(written(tmp_path / "tests.csv", row))
    question = ask(table.rows[0], table.layout, readers=READERS).question
    assert question is not None
    assert question.model.family == "bert"
    config = question.model.config
    assert config["vocab"] == 30720, "30522 words in steps of 128 for each of two ranks"
    assert config["next_sentence"]
    assert config["pre_norms"]
