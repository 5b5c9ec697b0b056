"""Scaling: rows in the order asked, each question once, what binds, where it stops paying."""

import csv
from functools import cache

import pytest
from msgspec import json
from msgspec.structs import replace

import millrace
from millrace.api.plan_search import check_question
from millrace.planner.cluster import Cluster
from millrace.planner.clusters import parse_cluster
from millrace.planner.errors import ClusterError, InfeasibleError, PlanError
from millrace.scaling import Failures, Sweep, sweep
from millrace.scaling.batches import Batch, parse_batch
from millrace.scaling.bottlenecks import RESOURCES, resources, step_bottlenecks
from millrace.scaling.jittered_steps import jittered_steps
from millrace.scaling.prices import parse_prices
from millrace.scaling.scaling_tables import csv_text, format_energy, format_time, line_name
from millrace.scaling.series import fill_efficiencies
from millrace.scaling.sweep import checkpoint_bytes
from tests.plan_requests import searched


def small_sweep(**changes):
    """A small sweep; what is not changed asks for one point."""
    spec = check_question("mlp")
    given = {
        "model": spec,
        "clusters": (("a100-sxm-80gb:2", parse_cluster("a100-sxm-80gb:2x1")),),
        "nodes": (1,),
        "global_batches": (Batch(samples=64),),
    }
    return Sweep(**(given | changes))


@cache
def small_plan(cluster, batch):
    """Plan of the small sweep's model, on a cluster by its document."""
    return searched("mlp", json.decode(cluster, type=Cluster), batch, tp=1, pp=1)


def counted(calls):
    """The search, which notes the names of what it was asked."""

    def recorded_search(on, batch, tell):
        calls.append((on.name, batch))
        return small_plan(json.encode(on), batch)

    return recorded_search


def test_rows_come_in_the_order_asked_and_equal_questions_are_asked_once():
    calls: list[tuple[str, int]] = []
    names = ("a100-sxm-80gb:2", "a100-sxm-80gb:2x1")
    rows = sweep(
        small_sweep(
            clusters=tuple((name, parse_cluster("a100-sxm-80gb:2x1")) for name in names),
            nodes=(2, 1, 2),
            global_batches=(Batch(samples=64), Batch(samples=32)),
        ),
        counted(calls),
    )
    order = [(row["cluster"], row["global_batch"], row["nodes"]) for row in rows]
    assert order == [(c, b, n) for c in names for b in (64, 32) for n in (2, 1, 2)]
    assert calls == [
        ("a100-sxm-80gb:2x2", 64),
        ("a100-sxm-80gb:2x1", 64),
        ("a100-sxm-80gb:2x2", 32),
        ("a100-sxm-80gb:2x1", 32),
    ]
    assert rows[0] | {"cluster": ""} == rows[6] | {"cluster": ""}


def test_a_network_counts_only_where_there_is_more_than_one_node():
    calls: list[tuple[str, int]] = []
    fast = parse_cluster("h100-sxm-80gb:2x2").inter_node
    slow = parse_cluster("v100-sxm-16gb:2x2").inter_node
    networks = (("fast", lambda per_node: fast), ("slow", lambda per_node: slow))
    rows = sweep(small_sweep(nodes=(1, 2), networks=networks), counted(calls))
    assert [(row["network"], row["nodes"]) for row in rows] == [
        ("fast", 1),
        ("fast", 2),
        ("slow", 1),
        ("slow", 2),
    ]
    assert len(calls) == 3
    assert rows[0]["step_time_s"] == rows[2]["step_time_s"]


def test_a_point_without_a_plan_is_a_row_with_the_reason_and_the_others_run():
    def search_point(on, batch, tell):
        if on.nodes == 2:
            raise InfeasibleError("no room")
        return searched("mlp", on, batch)

    rows = sweep(small_sweep(nodes=(1, 2)), search_point)
    assert [row["reason"] for row in rows] == [None, "no room"]
    assert rows[1]["step_time_s"] is None
    assert list(rows[0]) == list(rows[1])


def test_the_parts_of_a_step_sum_to_it_and_every_one_belongs_to_a_resource():
    plan = searched("gpt-demo", "a100-sxm-80gb:2x2", 16, pp=2)
    parts = step_bottlenecks(plan)
    assert sum(parts.values()) == pytest.approx(1)
    assert sum(resources(parts).values()) == pytest.approx(1)
    assert list(parts.values()) == sorted(parts.values(), reverse=True)
    assert parts["bubble"] > 0
    assert any(name.endswith("between nodes") for name in parts)
    assert step_bottlenecks(plan) == parts


def test_each_resource_binds_where_the_others_are_plentiful():
    cluster = parse_cluster("a100-sxm-80gb:4x1")
    question = {"seq_len": 256, "precision": "fp32"}
    plan = searched("gpt2-small", cluster, 16, tp=4, recompute="full", **question)

    def on(**changes):
        device = replace(cluster.device, **changes)
        return resources(step_bottlenecks(replace(plan, cluster=replace(cluster, device=device))))

    shares = on()
    assert shares["memory"] > 0.1  # a fourth of the work is done twice
    assert shares["bubble"] == pytest.approx(0, abs=0.05)
    shares = on(launch_ns=10**7)
    assert max(shares, key=shares.__getitem__) == "host"
    shares = on(
        flops_per_s={name: 1e3 * rate for name, rate in cluster.device.flops_per_s.items()},
        memory_bandwidth_bytes_per_s=1e3 * cluster.device.memory_bandwidth_bytes_per_s,
        launch_ns=0,
    )
    assert max(shares, key=shares.__getitem__) == "links_inside_nodes"


def test_this_machine_alone_has_no_other_sizes_and_a_mixed_cluster_is_not_resized():
    clusters = (("local:2", parse_cluster("local:2")),)
    with pytest.raises(ClusterError, match="--nodes 2: local:2 is this machine alone"):
        sweep(small_sweep(clusters=clusters, nodes=(1, 2)), counted([]))
    group = parse_cluster("h100-sxm-80gb:2x1").groups[0]
    mixed = replace(parse_cluster("a100-sxm-80gb:2x1"), name="mixed", others=(group,))
    with pytest.raises(ClusterError, match="--cluster mixed: it has several kinds"):
        sweep(small_sweep(clusters=(("mixed", mixed),)), counted([]))


def test_scaling_stops_paying_where_added_devices_bring_less_than_their_share():
    speeds = {8: 100.0, 16: 190.0, 32: 270.0, 64: 300.0}
    rows = [{"devices": n, "goodput_tokens_per_s": s} for n, s in speeds.items()]
    rows.insert(0, {"devices": 4, "goodput_tokens_per_s": None})
    fill_efficiencies(rows, 0.5)
    assert [row["scaling_efficiency"] for row in rows[1:]] == pytest.approx([1, 0.95, 0.675, 0.375])
    assert [row["marginal_efficiency"] for row in rows[2:]] == pytest.approx(
        [0.9, 80 / 190, 30 / 270]
    )
    assert [row["stops_paying"] for row in rows] == [False, False, False, True, False]
    assert rows[0]["scaling_efficiency"] is None
    fill_efficiencies(rows, 0.4)
    assert [row["devices"] for row in rows if row["stops_paying"]] == [64]


def test_failures_take_from_speed_and_add_to_time_energy_and_cost():
    plain = sweep(small_sweep(tokens=1e9), counted([]))[0]
    failing = Failures(mtbf_hours=0.1, checkpoint_bytes_per_s=1e6, restart_s=60)
    row = sweep(small_sweep(tokens=1e9, failures=failing), counted([]))[0]
    assert plain["goodput_fraction"] is None
    assert 0 < row["goodput_fraction"] < 1
    for name in ("time_s", "energy_j", "cost_usd"):
        assert row[name] == pytest.approx(plain[name] / row["goodput_fraction"])
    assert plain["time_s"] == pytest.approx(1e9 / plain["tokens_per_s"])
    hourly = parse_cluster("a100-sxm-80gb:2x1").device.price_usd_per_hour
    assert plain["cost_usd"] == pytest.approx(2 * hourly * plain["time_s"] / 3600)


def test_a_checkpoint_holds_weights_and_moments_in_fp32():
    plan = searched("mlp", "a100-sxm-80gb:2x1", 64)
    assert checkpoint_bytes(plan) == 12 * millrace.build("mlp").parameter_count


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nodes": (1, 0)}, "--nodes 0"),
        ({"worth": 0.0}, "--worth 0"),
        ({"tokens": float("nan")}, "--tokens nan"),
        ({"failures": Failures(mtbf_hours=-1)}, "--mtbf-hours -1"),
        ({"failures": Failures(mtbf_hours=1, restart_s=-60)}, "--restart-minutes"),
    ],
)
def test_a_value_out_of_its_range_is_named(changes, said):
    with pytest.raises(PlanError, match=said):
        small_sweep(**changes)


def test_a_batch_may_grow_with_the_devices_which_makes_one_line():
    rows = sweep(
        small_sweep(nodes=(1, 2, 4), global_batches=(parse_batch("8/device"),)), counted([])
    )
    assert [row["global_batch"] for row in rows] == [16, 32, 64]
    assert {line_name(row) for row in rows} == {"a100-sxm-80gb:2, batch 8/device"}
    assert [row["scaling_efficiency"] is None for row in rows] == [False] * 3
    assert rows[0]["scaling_efficiency"] == 1


@pytest.mark.parametrize("text", ["0", "-8", "0/device", "8/node", "8.5", "", "/device"])
def test_a_batch_that_is_none_is_named(text):
    with pytest.raises(PlanError, match=f"--global-batch {text}"):
        parse_batch(text)


def test_ones_own_price_takes_the_place_of_the_catalogues():
    names = ("a100-sxm-80gb:2", "a800-sxm-80gb:2")
    clusters = tuple((name, parse_cluster(f"{name}x1")) for name in names)
    listed = sweep(small_sweep(clusters=clusters), counted([]))
    assert listed[0]["cost_usd"] > 0
    assert (listed[1]["cost_usd"], listed[1]["price_usd_per_gpu_hour"]) == (None, None)
    prices = parse_prices(["1.5", "a100-sxm-80gb:2=3"])
    rows = sweep(small_sweep(clusters=clusters, prices=prices), counted([]))
    assert [row["price_usd_per_gpu_hour"] for row in rows] == [3, 1.5]
    for row in rows:
        hours = row["devices"] * row["time_s"] / 3600
        assert row["cost_usd"] == pytest.approx(hours * row["price_usd_per_gpu_hour"])


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["cheap"], "`cheap` is not a number"),
        (["0"], "expected dollars above 0"),
        (["nan"], "expected dollars above 0"),
        (["b200:8=4"], "`b200:8` is no --cluster of this question, which has a100-sxm-80gb:2"),
        (["1", "2"], "a second price of all clusters"),
    ],
)
def test_a_price_that_is_none_is_named(texts, said):
    with pytest.raises(PlanError, match=f"--price-per-gpu-hour.*{said}"):
        small_sweep(prices=parse_prices(texts))


def test_jitter_lengthens_the_mean_step_more_the_tail_and_all_that_follows():
    (calm,) = sweep(small_sweep(), counted([]))
    (varied,) = sweep(small_sweep(jitter=0.2, seed=3), counted([]))
    assert calm["jitter_steps"] is None
    mean_s, tail_s = varied["step_time_jitter_mean_s"], varied["step_time_jitter_p95_s"]
    assert varied["step_time_s"] == calm["step_time_s"]
    assert calm["step_time_s"] < mean_s < tail_s
    for name in ("time_s", "cost_usd"):
        assert varied[name] / calm[name] == pytest.approx(mean_s / calm["step_time_s"])
    (again,) = sweep(small_sweep(jitter=0.2, seed=3), counted([]))
    assert again == varied
    (other,) = sweep(small_sweep(jitter=0.2, seed=4), counted([]))
    assert other["step_time_jitter_mean_s"] != mean_s
    with pytest.raises(PlanError, match="--jitter 2"):
        small_sweep(jitter=2.0)


def test_a_step_of_little_jitter_is_hardly_longer_and_processes_are_simulated_too():
    plan = searched("mlp", "local:2", 8)
    assert jittered_steps(plan, 1e-6, 0).mean == pytest.approx(1, abs=1e-3)


def test_pins_and_the_memory_limit_hold_for_every_size(answer):
    question = ("scale", "mlp", "--cluster", "a100:2", "--nodes", "1,2")
    code, document = answer(
        *question, "--global-batch", "8/device", "--pp", 2, "--schedule", "1f1b"
    )
    assert code == 0
    assert [(row["pp"], row["schedule"]) for row in document["rows"]] == [(2, "1f1b")] * 2
    assert [row["global_batch"] for row in document["rows"]] == [16, 32]
    code, document = answer(*question, "--global-batch", 16, "--dp", 4)
    assert code == 0
    assert "dp" in document["rows"][0]["reason"]
    assert document["rows"][1]["dp"] == 4
    code, document = answer(*question, "--global-batch", 16, "--memory-limit", "64KiB")
    assert code == 1
    assert all(row["reason"] for row in document["rows"])


def test_an_attention_whose_probabilities_are_in_memory_is_slower(answer):
    question = ("scale", "gpt-demo", "--cluster", "a100:1", "--nodes", 1, "--global-batch", 8)
    _, flash = answer(*question)
    _, unfused = answer(*question, "--attention", "unfused")
    assert flash["rows"][0]["step_time_s"] < unfused["rows"][0]["step_time_s"]


def test_the_command_writes_rows_a_csv_file_and_a_picture(call, tmp_path):
    table, picture = tmp_path / "rows.csv", tmp_path / "rows.png"
    given = ("scale", "mlp", "--cluster", "a100-sxm-80gb:2,v100-sxm-16gb:2", "--nodes", "1,2")
    given += ("--tp", "1", "--pp", "1", "--global-batch", "64", "--csv", table, "--plot", picture)
    code, out, err = call(*given, "--json")
    assert code == 0
    rows = json.decode(out)["rows"]
    assert [row["devices"] for row in rows] == [2, 4, 2, 4]
    assert err.startswith("0 s  1 of 4, 2 devices of a100-sxm-80gb:2, batch 64: planning")
    for row in rows:
        assert sum(row[f"{name}_fraction"] for name in RESOURCES) == pytest.approx(1)
        assert row["binds_fraction"] == max(row[f"{name}_fraction"] for name in RESOURCES)
    with table.open() as lines:
        written = list(csv.DictReader(lines))
    assert [float(row["step_time_s"]) for row in written] == [row["step_time_s"] for row in rows]
    assert picture.read_bytes().startswith(b"\x89PNG")
    before = table.read_bytes(), picture.read_bytes()
    code, out, _ = call(*given)
    assert (table.read_bytes(), picture.read_bytes()) == before
    assert "mlp on a100-sxm-80gb:2, batch 64" in out
    assert all(len(line) <= 100 for line in out.splitlines() if not line.startswith("step times"))


def test_a_device_without_the_precision_is_a_row_with_the_reason(answer):
    given = ("scale", "mlp", "--nodes", "1", "--global-batch", "64", "--precision", "bf16")
    given += ("--cluster", "v100-sxm-16gb:2")
    code, document = answer(*given, "--cluster", "a100-sxm-80gb:2")
    reasons = [row["reason"] for row in document["rows"]]
    assert code == 0
    assert "no bf16 arithmetic" in reasons[0]
    assert reasons[1] is None
    code, document = answer(*given)
    assert code == 2
    assert "no bf16 arithmetic" in document["error"]


def test_where_no_point_has_a_plan_the_answer_is_no_and_the_rows_say_why(call, tmp_path):
    picture = tmp_path / "rows.svg"
    given = ("gpt3-13b", "--cluster", "v100-sxm-16gb:1", "--nodes", "1", "--global-batch", "8")
    code, out, err = call("scale", *given, "--precision", "fp16", "--plot", picture, "--json")
    assert code == 1
    assert b"<svg" in picture.read_bytes()
    assert "no point has a plan" in err
    assert "no plan" in json.decode(out)["rows"][0]["reason"]


def test_long_times_and_large_energies_are_written_in_large_units():
    assert format_time(0.25) == "250 ms"
    assert format_time(86400) == "24.0 h"
    assert format_time(864000) == "10.0 days"
    assert format_energy(7.2e6) == "2 kWh"
    assert csv_text([]) == ""
