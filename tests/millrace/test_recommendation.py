"""Recommendations: what makes a deadline and a budget, and the frontier of time and cost."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.models.zoo.catalogue import model_spec
from millrace.pictures.frontier_picture import frontier_picture
from millrace.planner.clusters import parse_cluster
from millrace.planner.errors import ClusterError, PlanError
from millrace.scaling.recommendation import recommendation, usual_batch, usual_nodes


def row(
    time_s: float | None, cost_usd: float | None, devices: int = 8, device_doubt: str = ""
) -> dict[str, object]:
    figures = {"time_s": time_s, "cost_usd": cost_usd, "devices": devices, "reason": None}
    return figures | {"device_doubt": device_doubt}


ROWS = [row(9.0, 1.0), row(3.0, 2.0, 16), row(4.0, 3.0), row(1.0, None, 64), row(None, None)]


def test_the_cheapest_and_the_fastest_that_make_it_are_chosen() -> None:
    answer = recommendation(ROWS, 5.0, None)
    assert [r["makes_it"] for r in answer["rows"]] == [False, True, True, True, False]
    assert [r["on_frontier"] for r in answer["rows"]] == [True, True, False, False, False]
    assert answer["choice"]["cheapest"]["cost_usd"] == 2.0
    assert answer["choice"]["fastest"]["devices"] == 64
    assert answer["choice"]["nearest"] is None


def test_without_a_price_nothing_is_within_a_budget() -> None:
    choice = recommendation(ROWS, None, 2.5)["choice"]
    assert choice["fastest"]["devices"] == 16


def test_where_nothing_makes_it_the_nearest_says_by_how_much() -> None:
    choice = recommendation(ROWS, 2.0, 1.0)["choice"]
    assert choice["cheapest"] is None
    assert (choice["nearest"]["time_s"], choice["nearest"]["over"]) == (3.0, 2.0)


def test_a_choice_that_nobody_measured_has_a_measured_one_beside_it() -> None:
    guessed = row(4.0, 0.5, device_doubt="not calibrated: no published run on it was fitted")
    choice = recommendation([guessed, *ROWS], 5.0, None)["choice"]
    assert (choice["cheapest"], choice["cheapest_measured"]["cost_usd"]) == (
        guessed | {"on_frontier": True, "makes_it": True},
        2.0,
    )
    assert (choice["fastest"]["devices"], choice["fastest_measured"]) == (64, None)
    alone = recommendation([guessed], 5.0, None)["choice"]
    assert alone["cheapest_measured"] is None


def test_what_nobody_measured_is_marked_wherever_it_is_chosen(call, tmp_path: Path) -> None:
    asked = ("recommend", "gpt2-small", "--cluster", "a100:8,mi300x:8", "--tokens", "1M")
    sizes = ("--nodes", "1", "--global-batch", "8", "--seq-len", "128", "--dp", "8")
    prices = ("--price-per-gpu-hour", "mi300x:8=0.01", "--price-per-gpu-hour", "a100:8=9")
    code, text, _ = call(*asked, *sizes, *prices)
    assert code == 0
    lines = {line.partition(":")[0]: line for line in text.splitlines()}
    assert "not calibrated: no published run on mi300x was fitted" in lines["cheapest"]
    assert "a100:8" in lines["cheapest of calibrated devices"]
    assert "? not calibrated" in text
    code, text, _ = call(*asked, *sizes, *prices, "--json")
    document = json.loads(text)
    doubts = {row["cluster"]: row["device_doubt"] for row in document["rows"]}
    assert (doubts["a100:8"], "mi300x" in doubts["mi300x:8"]) == ("", True)
    assert "not calibrated" in frontier_picture(document).description


def test_usual_batches_and_sizes_follow_from_tokens_and_deadline() -> None:
    model = model_spec("gpt2-small")
    assert usual_batch(model) == 4096
    clusters = [parse_cluster("h100:8x1")]
    assert usual_nodes(model, clusters, 1e12, None) == [1, 2, 4, 8, 16]
    sizes = usual_nodes(model, clusters, 1e12, 86400.0)
    assert sizes == sorted(sizes)
    assert sizes[-1] >= 4 * sizes[0]
    with pytest.raises(PlanError, match="--global-batch is missing"):
        usual_batch(model_spec("resnet-50"))


def test_a_cluster_without_the_precision_leaves_the_sizes_to_the_others() -> None:
    model = model_spec("gpt2-small", precision="fp8")
    clusters = [parse_cluster(text) for text in ("a100:8x1", "h100:8x1")]
    assert usual_nodes(model, clusters, 1e12, 86400.0) == usual_nodes(
        model, clusters[1:], 1e12, 86400.0
    )
    with pytest.raises(ClusterError, match="no fp8 arithmetic"):
        usual_nodes(model, clusters[:1], 1e12, 86400.0)


def test_the_command_answers_and_refuses(call: Callable[..., tuple[int, str, str]]) -> None:
    asked = ["recommend", "mlp", "--cluster", "a100:2", "--tokens", "1e9", "--global-batch", "64"]
    code, out, _ = call(*asked, "--nodes", "1,2", "--within", "30d", "--json")
    document = json.loads(out)
    assert (code, set(document)) == (0, {"rows", "choice"})
    assert document["choice"]["fastest"]["makes_it"]
    assert "a100" in frontier_picture(document).description
    code, out, err = call(*asked, "--nodes", "1", "--within", "1s", "--budget", "$1")
    assert (code, "nearest: 2 devices" in out, "makes it" in err) == (1, True, True)
    code, out, err = call(*asked, "--within", "soon")
    assert (code, out, "30d" in err) == (2, "", True)


def test_how_sure_a_time_is_stands_beside_it_and_below_the_table(call) -> None:
    question = ("mlp", "--cluster", "h100:8,a100:8", "--global-batch", "8", "--dp", "8")
    _, table, _ = call("scale", *question, "--nodes", "1")
    compared = [line for line in table.splitlines() if line.startswith("step times")]
    assert len(compared) == 2
    sizes = ("--tokens", "1M", "--nodes", "1", "--within", "30d")
    _, text, _ = call("recommend", *question, *sizes)
    assert [line.partition(":")[0] for line in text.splitlines() if ": step times" in line] == [
        "h100",
        "a100",
    ]
    _, text, _ = call("recommend", *("gpt2-small", *question[1:]), *sizes, "--seq-len", "128")
    chosen = next(line for line in text.splitlines() if line.startswith("fastest"))
    assert " s (" in chosen
    assert "published runs of dense models" in text
