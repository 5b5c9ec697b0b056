"""Rows of published runs become questions and pins; plans become the words of pins again."""

from pathlib import Path

import pytest

from benchmarks.against_people import (
    Compared,
    Comparison,
    changes,
    lines,
    report,
    sample,
    summary,
    values,
    wrong_kind,
)
from millrace.published.language import cluster, model, pins, question
from millrace.published.question import InexpressibleError
from models.spec import TrainingSpec
from models.zoo.catalogue import build, model_spec
from planner.search import Pins, SearchRequest, search

# What a row leaves out below is as here: a GPT of 1.1 billion parameters on one node.
PLAIN = {
    "line": "2",
    "source": "a paper",
    "tier": "A",
    "framework": "megatron-core",
    "model": "gpt-1b",
    "layers": "24",
    "hidden": "1920",
    "heads": "20",
    "kv_heads": "20",
    "ffn_hidden": "7680",
    "vocab": "50257",
    "seq_len": "1024",
    "gpu": "a100-sxm-80gb",
    "gpus": "8",
    "gpus_per_node": "8",
    "inter_node_net": "",
    "dp": "4",
    "tp": "2",
    "pp": "1",
    "interleave": "1",
    "cp": "1",
    "ep": "1",
    "zero": "1",
    "sequence_parallel": "1",
    "micro_batch": "2",
    "global_batch": "64",
    "recompute": "none",
    "precision": "bf16",
    "iteration_time_s": "1.5",
    "peak_mem_gb": "",
    "notes": "",
}


def row(**changed: str) -> dict[str, str]:
    return PLAIN | changed


def test_a_gpt_row_is_a_gpt_with_its_vocabulary_padded_for_the_tensor_parallel_ranks():
    spec = model(row())
    assert spec.family == "gpt"
    assert spec.config["vocab"] == 50432  # of 256
    assert model(row(framework="pytorch-fsdp")).config["vocab"] == 50257
    assert build(spec, 1).tokens_per_sample == 1024


def test_a_llama_row_is_the_decoder_of_the_zoo():
    spec = model(
        row(
            model="llama3-8b", layers="32", hidden="4096", heads="32", kv_heads="8",
            ffn_hidden="14336", vocab="128256", seq_len="8192", tp="1",
        )
    )  # fmt: skip
    known = model_spec("llama3-8b", 8192, "bf16")
    assert build(spec, 1).parameter_count == build(known, 1).parameter_count


def test_a_mixture_row_has_the_experts_of_its_notes():
    spec = model(
        row(
            model="deepseek-v3-671b", layers="61", hidden="7168", heads="128", kv_heads="128",
            ffn_hidden="18432", vocab="129280", seq_len="4096", tp="1", ep="64",
            precision="mxfp8",
            notes="experts=256;topk=8;moe_ffn=2048;shared=1;first 3 layers dense;"
            "MLA(q_lora=1536,kv_lora=512,qk_head=128+64rope,v_head=128)",
        )
    )  # fmt: skip
    known = model_spec("deepseek-v3", 4096, "bf16")
    for name in ("head_dim", "value_dim", "kv_lora", "q_lora", "experts", "expert_hidden"):
        assert spec.config[name] == known.config[name], name
    assert spec.config["dense_layers"] == (0, 1, 2)
    assert spec.config["shared_hidden"] == 2048
    assert spec.precision == "bf16"
    every_other = "experts=128;topk=1;moe_ffn=8192;shared=1(8192);MoE every 2nd layer"
    assert model(row(notes=every_other)).config["dense_layers"] == tuple(range(0, 24, 2))


def test_a_stated_network_is_shared_by_the_devices_of_a_node():
    node = {"gpus": "16", "dp": "8"}
    assert cluster(row(**node)).nodes == 2
    rates = {
        "4x100Gb/s Omni-Path per node": 0.34 * 6.25e9,
        "RoCE 1600 Gbps per node": 0.94 * 25e9,
        "RDMA CX-7 400 Gb/s per GPU": 0.97 * 50e9,
        "InfiniBand 8x50 GB/s per node": 0.97 * 50e9,
    }
    for text, rate in rates.items():
        found = cluster(row(**node, inter_node_net=text))
        assert found.inter_node.bandwidth_bytes_per_s == pytest.approx(rate), text


def test_a_rack_is_one_island_whatever_its_trays():
    rack = {"gpu": "gb200", "gpus_per_node": "4", "tp": "1"}
    assert cluster(row(**rack, gpus="64")).nodes == 1
    assert cluster(row(**rack, gpus="256")).devices_per_node == 64


def test_blank_fields_are_not_pinned():
    assert pins(row()) == Pins(
        dp=4, tp=2, pp=1, cp=1, micro_batch=2, recompute="none", zero=1, sequence_parallel=True
    )
    free = pins(row(recompute="", micro_batch="", zero="", sequence_parallel=""))
    assert free == Pins(dp=4, tp=2, pp=1, cp=1)


def test_choices_without_a_meaning_at_the_degrees_of_a_row_are_not_pinned():
    alone = pins(row(dp="1", tp="1", gpus="1", sequence_parallel="0"))
    assert alone.zero is None
    assert alone.sequence_parallel is None
    assert alone.schedule is None


def test_zero_over_context_parallel_ranks_is_pinned_and_obeyed():
    asked, pinned = question(
        row(dp="1", tp="1", cp="2", gpus="2", layers="2", zero="3", sequence_parallel="",
            global_batch="2", micro_batch="1")
    )  # fmt: skip
    assert (pinned.zero, pinned.cp) == (3, 2)
    plan = search(
        SearchRequest(
            model=asked.model,
            training=TrainingSpec(),
            cluster=asked.cluster,
            global_batch=2,
            pins=pinned,
        )
    )
    assert values(plan)["zero"] == 3


def test_a_pipeline_of_several_chunks_is_interleaved():
    found = pins(row(pp="2", dp="2", interleave="3"))
    assert (found.pp, found.schedule, found.interleave) == (2, "interleaved-1f1b", 3)
    assert pins(row(pp="2", dp="2")).schedule == "1f1b"


def test_degrees_that_do_not_make_the_devices_are_refused_in_words():
    with pytest.raises(InexpressibleError, match="dp × tp × pp × cp is 16, on 8 devices"):
        question(row(dp="8"))


def test_each_choice_of_the_free_plan_is_tried_alone():
    asked, pinned = question(row(layers="2", gpus="4", dp="2", recompute="full"))
    free = search(
        SearchRequest(
            model=asked.model,
            training=TrainingSpec(),
            cluster=asked.cluster,
            global_batch=asked.global_batch,
            pins=Pins(dp=4, tp=1, pp=1, cp=1, micro_batch=4, recompute="none", zero=1),
        )
    )
    assert [name for name, _ in changes(pinned, free)] == [
        "tp 2 → 1",
        "micro_batch 2 → 4",
        "recompute full → none",
        "sequence_parallel True → False",
    ]


def test_a_sample_goes_round_the_sources_the_same_way_every_time():
    rows = [row(source=name, line=str(n)) for name in "ab" for n in range(5)]
    found = sample(rows, 1, 4)
    assert [one["source"] for one in found] == ["a", "b", "a", "b"]
    assert found == sample(rows, 1, 4)
    assert len(sample(rows, 3, None)) == 4


def test_an_absent_table_is_said_and_skipped():
    told: list[str] = []
    assert report(Path("nowhere.csv"), say=told.append) == []
    assert "no table `nowhere.csv`" in told[0]


def test_what_came_of_a_row_says_what_explains_it():
    beaten = Compared(
        line=7, source="a paper", asked="a model", status="beaten", pinned_s=1.0, free_s=1.1,
        gain=1 / 1.1 - 1, pinned_plan="this", free_plan="that",
    )  # fmt: skip
    assert lines(beaten)[1:] == ["    published: this", "    searched: that"]
    large = Compared(
        line=8, source="a paper", asked="a model", status="infeasible", limit_bytes=10**10,
        memory={"gradient": 9 * 10**9, "parameter": 2 * 10**9},
    )  # fmt: skip
    large.wrong = wrong_kind(large.memory, large.limit_bytes)
    told = "+1.0 GB of 10, half of gradient would do: gradient 9.0, parameter 2.0 GB"
    assert told in lines(large)[1]
    assert wrong_kind({"gradient": 6, "parameter": 6}, 6) == "several"
    assert summary([beaten, large])[0] == "2 rows, 2 expressed: 1 beaten, 1 infeasible"


def test_a_plan_that_does_not_fit_says_the_kinds_of_its_memory():
    small = row(
        layers="2", hidden="8192", heads="64", ffn_hidden="32768", gpu="v100-sxm-16gb",
        precision="fp16", dp="8", tp="1", sequence_parallel="", zero="0", micro_batch="8",
    )  # fmt: skip
    found = Comparison(None, 600.0, freely=False).compare(small)
    assert found.status == "infeasible"
    assert sum(found.memory.values()) > found.limit_bytes
    assert found.memory["optimizer"] > found.memory["parameter"] > 0
