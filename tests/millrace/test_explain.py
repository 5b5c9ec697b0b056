"""`millrace plan --explain`, `--optimize-for` and questions without an answer."""

import json

import pytest

from millrace.commands.planning import uneven_batch

PLAN = ("plan", "gpt-demo", "--global-batch", "4", "--precision", "bf16", "--seq-len", "32")


def test_explain_gives_layers_with_their_times_and_a_reason_per_choice(call):
    code, out, _ = call(*PLAN, "--cluster", "a100-sxm-80gb:2x1", "--explain", "--json")
    document = json.loads(out)
    assert code == 0
    layers = [layer["name"] for layer in document["layers"]]
    assert layers == ["shapes", "blocks", "stages", "simulation", "proof"]
    took = sum(layer["seconds"] for layer in document["layers"])
    assert 0 < took <= document["search_time_s"]
    assert {reason["choice"] for reason in document["explain"]} >= {"dp", "tp", "pp", "recompute"}
    assert all(reason["line"] for reason in document["explain"])
    assert document["cost_usd_per_mtoken"] > 0
    assert document["energy_j_per_token"] > 0


def test_explained_text_names_layers_and_choices(call):
    _, out, _ = call(*PLAN, "--cluster", "a100-sxm-80gb:1x1", "--explain")
    assert "layers of the search" in out
    assert "what decided each choice" in out
    assert "recompute = none: full loses" in out
    assert "per million tokens" in out


def test_cost_per_token_may_use_fewer_devices(call):
    on = ("--cluster", "a100-sxm-80gb:2x1", "--optimize-for", "cost", "--json")
    code, out, _ = call(*PLAN, *on)
    assert code == 0
    assert json.loads(out)["ranks"] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--cluster", "h800-sxm-80gb:2x1", "--optimize-for", "cost"), 2, "price_usd_per_hour"),
        (("--cluster", "h800-sxm-80gb:2x1", "--optimize-for", "speed"), 2, "throughput, cost"),
        (("--cluster", "a100-sxm-80gb:8x1", "--dp", "8"), 1, "--global-batch 8"),
        (("--cluster", "a100-sxm-80gb:2x1", "--dp", "3"), 1, "do not divide the 2"),
        (
            ("--cluster", "a100-sxm-80gb:1x1", "--memory-limit", "592MiB", "--offload", "none"),
            1,
            "It fits with --offload optimizer",
        ),
    ],
)
def test_what_has_no_answer_says_what_binds_and_what_would_do(call, arguments, code, said):
    exit_code, out, err = call(*PLAN, *arguments)
    assert (exit_code, out) == (code, "")
    assert said in err


@pytest.mark.parametrize(
    ("batch", "devices", "said"),
    [
        (510, 64, "at most 2 of 64 devices can be replicas; with 512, 64 can"),
        (512, 64, ""),
        (508, 64, "at most 4 of 64 devices can be replicas; with 512, 64 can"),
        (480, 64, ""),
        (8, 64, ""),
        (1, 8, ""),
    ],
)
def test_a_batch_beside_one_that_divides_better_is_told(batch, devices, said):
    assert uneven_batch(batch, devices).partition(": ")[2] == said
