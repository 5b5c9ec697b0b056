"""Rows of language models become questions and pins."""

import pytest
from msgspec.structs import replace

from benchmarks.planner.against_people import values
from millrace.models.zoo.catalogue import build, model_spec
from millrace.planner.cluster import ExpertLoad
from millrace.planner.frameworks.experts import IN_TURNS, dispatcher_of, overlaps
from millrace.planner.search import Pins
from millrace.published.columns import NAMES
from millrace.published.language import approximations, cluster, measured_s, model, pins, question
from millrace.published.question import InexpressibleError
from tests.millrace.published.rows import row
from tests.plan_requests import plan_of


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
    zoo_spec = model_spec("llama3-8b", 8192, "bf16")
    assert build(spec, 1).parameter_count == build(zoo_spec, 1).parameter_count


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
    zoo_spec = model_spec("deepseek-v3", 4096, "bf16")
    same = ("head_dim", "value_dim", "kv_lora", "q_lora", "experts", "expert_hidden")
    for name in (*same, "router_groups", "kept_groups"):
        assert spec.config[name] == zoo_spec.config[name], name
    assert spec.config["dense_layers"] == (0, 1, 2)
    assert spec.config["shared_hidden"] == 2048
    assert spec.precision == "mxfp8"


def test_a_qwen3_row_norms_its_queries_and_keys_as_that_of_the_zoo():
    spec = model(
        row(
            model="qwen3-30b-a3b", layers="48", hidden="2048", heads="32", kv_heads="4",
            head_dim="128", ffn_hidden="6144", vocab="151936", seq_len="4096", tp="1",
        )
    )  # fmt: skip
    zoo_spec = model_spec("qwen3-30b-a3b", 4096, "bf16")
    same = ("heads", "kv_heads", "head_dim", "qk_norm")
    assert [spec.config[name] for name in same] == [zoo_spec.config[name] for name in same]


@pytest.mark.parametrize(
    ("every", "sparse"), [("1st", range(24)), ("2nd", range(1, 24, 2)), ("4th", range(3, 24, 4))]
)
def test_the_last_of_every_so_many_layers_has_experts(every: str, sparse: range):
    notes = f"experts=128;topk=1;moe_ffn=8192;shared=1(8192);MoE every {every} layer"
    dense = model(row(notes=notes)).config["dense_layers"]
    assert set(range(24)) - set(dense) == set(sparse)


def sent_by(notes: str):
    return cluster(row(notes=notes, gpu="h100-sxm-80gb")).software


def test_notes_say_how_tokens_travel():
    plain = sent_by("experts=8;topk=2;moe_ffn=64;shared=0")
    deepep = sent_by("experts=8;topk=2;moe_ffn=64;shared=0;DeepEP")
    overlapped = sent_by("experts=8;topk=2;moe_ffn=64;shared=0;moe_a2a_overlap=True")
    captured = sent_by(
        "experts=8;topk=2;moe_ffn=64;moe_a2a_overlap=True;cuda_graph_impl=full_iteration"
    )
    assert not plain.merges
    assert plain.routing > 0
    assert deepep == replace(plain, merges=True)
    assert overlapped.host_ns == IN_TURNS * plain.host_ns
    assert captured.host_ns == 0


def test_a_row_of_columns_takes_the_dispatcher_that_a_plan_would():
    mixture = {"experts": "8", "experts_per_token": "2", "expert_hidden": "64"}
    columns = dict.fromkeys(NAMES, "") | mixture
    for gpu, name in (("h100-sxm-80gb", "deepep"), ("a100-sxm-80gb", "alltoall")):
        free = cluster(row(**columns, gpu=gpu)).software
        assert (dispatcher_of(free), overlaps(free)) == (name, True)
    stated = columns | {"dispatcher": "alltoall", "expert_overlap": "0"}
    assert not overlaps(cluster(row(**stated)).software)


def test_where_experts_drop_tokens_the_device_waits_for_no_counts():
    mixture = {"experts": "8", "experts_per_token": "2", "expert_hidden": "64"}
    columns = dict.fromkeys(NAMES, "") | mixture
    waits, ahead = (
        cluster(row(**columns | {"token_drop": word})).software.routing for word in ("0", "1")
    )
    assert 0 < ahead < waits
    with pytest.raises(InexpressibleError, match="older than Hopper"):
        question(row(**columns | {"dispatcher": "deepep"}, model="llama-x"))


def test_a_row_says_whether_its_experts_get_equal_shares():
    mixture = {"experts": "8", "experts_per_token": "2", "expert_hidden": "64"}
    columns = dict.fromkeys(NAMES, "") | mixture
    loads = {
        (word, name): cluster(row(**columns | {"routing": word}, model=name)).software.load
        for word in ("", "balanced", "natural")
        for name in ("mixtral-8x7b", "deepseek-v3-671b")
    }
    unequal = [load for (word, _), load in loads.items() if word == "natural"]
    assert {*loads.values()} == {ExpertLoad(), *unequal}
    assert unequal[0].deviation > unequal[1].deviation > 0  # which a bias balances
    with pytest.raises(InexpressibleError, match="routing"):
        question(row(**columns | {"routing": "fair"}, model="llama-x"))


def test_products_of_gpt_oss_have_biases():
    notes = "experts=128;topk=4;moe_ffn=2880;shared=0;head_dim=64"
    config = model(row(model="gpt-oss-120b", notes=notes)).config
    assert {"expert_bias", "qkv_bias", "out_bias"} <= config.keys()
    assert "expert_bias" not in model(row(notes=notes)).config


def test_a_stated_network_is_shared_by_the_devices_of_a_node():
    stated = cluster(row(gpus="16", dp="8", inter_node_net="4x100Gb/s Omni-Path per node"))
    assert stated.nodes == 2
    assert stated.inter_node.bandwidth_bytes_per_s == pytest.approx(0.2 * 6.25e9)


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
    plan = plan_of(asked.model, asked.cluster, 2, pins=pinned)
    assert values(plan)["zero"] == 3


def test_a_pipeline_of_several_chunks_is_interleaved():
    pinned = pins(row(pp="2", dp="2", interleave="3"))
    assert (pinned.pp, pinned.schedule, pinned.interleave) == (2, "interleaved-1f1b", 3)
    assert pins(row(pp="2", dp="2")).schedule == "1f1b"


def test_degrees_that_do_not_make_the_devices_are_refused_in_words():
    with pytest.raises(InexpressibleError, match="dp × tp × pp × cp is 16, on 8 devices"):
        question(row(dp="8"))


def test_attention_and_precision_are_the_rows_and_what_is_not_known_is_the_nearest():
    asked, _ = question(row(flash_attention="0", precision="fp8", gpu="h100-sxm-80gb"))
    assert (asked.training.attention, asked.model.precision) == ("unfused", "fp8")
    fp4_row = row(precision="fp4", dp="16", notes="zero1=8; recompute_num_layers=3; alpha=0.5")
    assert model(fp4_row).precision == "nvfp4"
    assert [note.split()[0] for note in approximations(fp4_row)] == [
        "precision",
        "recompute_num_layers=3:",
        "memory",
        "activation",
    ]
    assert approximations(row(dp="8", tp="1", notes="zero1=8")) == []


def test_a_step_that_is_not_printed_follows_from_the_tokens_of_a_second():
    rate_row = row(iteration_time_s="", tokens_per_s_per_gpu="1000")
    assert measured_s(rate_row) == 64 * 1024 / 8000


def test_a_misspelt_choice_is_named():
    with pytest.raises(InexpressibleError, match="recompute is `some`: expected one of none"):
        question(row(recompute="some"))


@pytest.mark.parametrize("notes", ["", "sliding window 4", "experts=4;topk=2;MoE every 2"])
@pytest.mark.parametrize("kind", ["gpt-x", "llama-x"])
def test_more_layers_than_can_be_built_are_refused_at_once(kind: str, notes: str):
    for layers in ("1000000", "1e15"):
        with pytest.raises(InexpressibleError, match=f"layers is `{layers}`: .* at most 1000"):
            question(row(model=kind, layers=layers, notes=notes))


def test_a_number_of_the_notes_that_is_none_is_refused():
    with pytest.raises(InexpressibleError, match="experts is `9999"):
        question(row(model="llama-x", notes=f"experts={'9' * 5000}"))
