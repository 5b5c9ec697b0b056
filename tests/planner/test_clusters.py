"""Clusters: what the command line accepts, what the catalogue holds, what is refused and how."""

import re
from pathlib import Path

import msgspec
import pytest

from millrace.models.graph import to_json
from millrace.planner.cluster import Cluster
from millrace.planner.clusters import (
    device,
    local_cluster,
    names,
    parse_cluster,
    reference_node,
    validate,
)
from millrace.planner.clusters.assumed_shares import assumed_shares
from millrace.planner.clusters.cluster_files import USUAL
from millrace.planner.errors import ClusterError
from millrace.planner.frameworks.framework_tables import frameworks

GIB = 1024**3
CATALOGUE = Path(__file__).parents[2] / "planner" / "catalogue"

OWN_CLUSTER = """
name = "two-boxes"
devices_per_node = 2
nodes = 2

[device]
name = "mine"
memory_bytes = 1_000
memory_bandwidth_bytes_per_s = 1e9
matmul_efficiency = 0.5
memory_efficiency = 0.5
launch_ns = 0
source = "a test"
flops_per_s = { fp32 = 1e9 }

[intra_node]
latency_ns = 1
bandwidth_bytes_per_s = 1e9
source = "a test"

[inter_node]
latency_ns = 1
bandwidth_bytes_per_s = 1e8
source = "a test"
"""


def test_a_cluster_is_a_device_times_devices_per_node_times_nodes() -> None:
    cluster = parse_cluster("a100-sxm-80gb:8x16")
    assert (cluster.devices_per_node, cluster.nodes, cluster.devices) == (8, 16, 128)
    assert cluster.device == device("a100-sxm-80gb")
    assert cluster.cores_per_node is None


def test_every_catalogue_entry_is_named_after_its_file_and_survives_json() -> None:
    nodes = {name: reference_node(name) for name in names()}
    assert [node.device.name for node in nodes.values()] == list(nodes)
    for name, node in nodes.items():
        assert msgspec.json.decode(to_json(node), type=Cluster) == node, name


def test_every_figure_of_the_catalogue_carries_its_source_and_year_on_its_line() -> None:
    wrong = []
    for name in names():
        for line in (CATALOGUE / f"{name}.toml").read_text("utf-8").splitlines():
            key, _, rest = line.partition(" = ")
            if not rest or key in ("system", "name", "source", "devices_per_node"):
                continue
            value, mark, source = rest.partition("#")
            told = re.sub(r"[\[\] ]", "", value)
            figures = () if key in ("reduces", "library") else told.split(",")
            positive = all(float(figure.replace("_", "")) > 0 for figure in figures)
            if not (mark and positive and (key == "memory_bytes" or "20" in source)):
                wrong.append(f"{name}: {line}")
    assert wrong == []


def test_every_framework_can_drive_a_cluster_and_says_where_its_figures_are_from() -> None:
    for name, software in frameworks().items():
        driven = msgspec.structs.replace(reference_node("h100-sxm-80gb"), software=software)
        assert validate(driven).software.name == name
        assert driven.software.source, name


def test_figures_of_well_known_devices_are_those_of_their_data_sheets() -> None:
    figures = {
        name: (device(name).flops_per_s["fp16"], device(name).memory_bandwidth_bytes_per_s)
        for name in ("v100-sxm-32gb", "a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm")
    }
    assert figures == {
        "v100-sxm-32gb": (125e12, 900e9),
        "a100-sxm-80gb": (312e12, 2039e9),
        "h100-sxm-80gb": (989.4e12, 3350e9),
        "h200-sxm": (989.4e12, 4800e9),
    }


def test_the_catalogue_holds_every_device_of_published_runs_and_the_common_others() -> None:
    published = """
        v100-sxm-16gb v100-sxm-32gb a100-sxm-40gb a100-sxm-80gb a100-pcie-80gb a800-sxm-80gb
        h100-sxm-80gb h100-sxm-96gb-hbm2e-500w h800-sxm-80gb h200-sxm b200 b300 gb200 gb300 mi355x
        tpu-v5e tpu-v5p tpu-v6e tpu-v7x-ironwood
    """
    others = """
        a100-pcie-40gb h100-pcie-80gb h100-nvl h20 gh200 l40s l4 t4 a40 a10g rtx-4090 rtx-6000-ada
        rtx-pro-6000 mi250x mi300a mi300x tpu-v4 cpu-core
    """
    assert set(published.split()) | set(others.split()) <= set(names())
    without_power = {name for name in names() if device(name).power_watts is None}
    assert without_power == {"cpu-core", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7x-ironwood"}


def test_a_device_that_nobody_measured_reaches_no_more_than_the_worst_that_was() -> None:
    accelerators = [device(name) for name in names() if name != "cpu-core"]
    measured = [entry for entry in accelerators if not entry.assumed]
    assert {"h100-sxm-80gb", "b200", "v100-sxm-16gb"} <= {entry.name for entry in measured}
    for entry in accelerators:
        for share in set(entry.assumed) - {"narrow_efficiency"}:
            alike = [getattr(other, share) for other in measured]
            assert getattr(entry, share) <= max(alike)
            if entry.name.startswith(("mi", "rtx", "l4", "a10g", "a40", "t4")):
                assert getattr(entry, share) == min(alike)


def test_a_device_that_nobody_measured_takes_after_its_generation() -> None:
    hopper = [device(name) for name in ("h100-sxm-80gb", "h100-sxm-96gb-hbm2e-500w")]
    assert device("h20").matmul_efficiency == min(entry.matmul_efficiency for entry in hopper)
    assert device("gh200").attention_efficiency > device("mi300x").attention_efficiency
    alien = assumed_shares("h100-sxm-80gb", alien=True)
    assert alien["matmul_efficiency"] == device("mi300x").matmul_efficiency


def test_shares_that_a_file_gives_are_not_assumed(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text('device = "mi300x"\n[changes]\nmatmul_efficiency = 0.5\n')
    changed = parse_cluster(str(path)).device
    assert changed.matmul_efficiency == 0.5
    assert set(device("mi300x").assumed) - set(changed.assumed) == {"matmul_efficiency"}


def test_cards_that_a_bridge_joins_are_an_island() -> None:
    node = reference_node("h100-nvl")
    assert node.islands is not None
    assert node.islands.link.bandwidth_bytes_per_s > node.intra_node.bandwidth_bytes_per_s


def test_the_two_dies_of_a_package_are_an_island_where_both_are_there() -> None:
    assert [level.name for level in parse_cluster("mi250x:8x4").levels] == [
        "island",
        "node",
        "cluster",
    ]
    assert parse_cluster("mi250x:1x4").islands is None


def test_local_ranks_share_the_cores_and_the_memory_of_one_machine() -> None:
    cluster = local_cluster(ranks=4, cores=2, memory_bytes=8 * GIB)
    assert (cluster.devices, cluster.nodes, cluster.cores_per_node) == (4, 1, 2)
    assert cluster.device.memory_bytes == 2 * GIB
    assert cluster == parse_cluster("local:4", cores=2, memory_bytes=8 * GIB)


def test_a_rank_with_several_cores_to_itself_is_as_fast_as_they_are_together() -> None:
    single_core = local_cluster(ranks=4, cores=4, memory_bytes=8 * GIB)
    dual_core = local_cluster(ranks=2, cores=4, memory_bytes=8 * GIB)
    assert dual_core.device.flops_per_s["fp32"] == 2 * single_core.device.flops_per_s["fp32"]


def test_a_measured_device_replaces_the_built_in_figures_of_a_local_cluster() -> None:
    measured = msgspec.structs.replace(
        device("cpu-core"),
        name="this-machine",
        collectives={"send/2": ((1_000, 2_000), (1_001_000, 1_002_000))},
    )
    cluster = parse_cluster("local:2", measured, cores=2, memory_bytes=4 * GIB)
    assert cluster.device.name == "this-machine"
    assert cluster.device.collectives == measured.collectives
    assert cluster.intra_node.latency_ns == 2_000
    assert cluster.intra_node.bandwidth_bytes_per_s == pytest.approx(1e9)


def test_a_file_describes_a_cluster_of_a_device_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(OWN_CLUSTER)
    cluster = parse_cluster(str(path))
    assert (cluster.name, cluster.devices, cluster.device.name) == ("two-boxes", 4, "mine")


def test_a_file_may_start_from_the_catalogue_and_change_the_network(tmp_path: Path) -> None:
    path = tmp_path / "slow.toml"
    path.write_text(
        'device = "a100-sxm-80gb"\nnodes = 4\n[inter_node]\n'
        'latency_ns = 9_000\nbandwidth_bytes_per_s = 1.2e9\nsource = "10 Gb/s Ethernet"\n'
    )
    cluster = parse_cluster(str(path))
    assert (cluster.name, cluster.devices) == ("slow", 32)
    assert cluster.device == device("a100-sxm-80gb")
    assert cluster.inter_node.bandwidth_bytes_per_s == 1.2e9


def test_what_people_call_a_device_is_the_usual_one_under_its_full_name() -> None:
    for usual in [*USUAL, "H100"]:
        full = USUAL[usual.lower()]
        assert parse_cluster(f"{usual}:4x2") == parse_cluster(f"{full}:4x2")
        assert parse_cluster(f"{usual}:4x2").name == f"{full}:4x2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a100-sxm:8x2", "did you mean a100-sxm-40gb or a100-sxm-80gb?"),
        ("h100-pcie:8x2", "did you mean h100-pcie-80gb?"),
        ("v100-sxm:8x2", "did you mean v100-sxm-16gb or v100-sxm-32gb?"),
        ("toaster:8x2", "known: a100-pcie-40gb"),
        ("h100-sxm-80gb:8x0", "NODES is 0"),
        ("h100-sxm-80gb:0x8", "GPUS_PER_NODE is 0"),
        ("h100-sxm-80gb:8x100000", "800,000 devices are more than are planned for"),
        ("h100-sxm-80gb:16x2", "write h100-sxm-80gb:8x2"),
        ("h100-sxm-80gb:8", "expected DEVICE:GPUS_PER_NODExNODES"),
        ("h100-sxm-80gb:4", "one node is h100-sxm-80gb:4x1"),
        ("h100", "one node is h100-sxm-80gb:8x1"),
        ("mixed.tml", "or a .toml file"),
        ("clusters/mixed", "or a .toml file"),
        ("h100-sxm-80gb:8x-1", "expected DEVICE:GPUS_PER_NODExNODES"),
        ("local:0", "expected local:N"),
        ("local:2x0", "expected local:N"),
        ("local-gpu:2x2", "expected local-gpu:N"),
        ("local:two", "expected local:N"),
        ("local:1000000", "use at most local:64"),
        ("local-gpu:2", "run `millrace profile --device gpu --ranks 2`"),
        ("local-gpu:0", "expected local-gpu:N with N GPUs"),
        ("nowhere.toml", "no such file"),
    ],
)
def test_a_cluster_that_cannot_be_understood_is_refused_with_the_fix(
    text: str, expected: str
) -> None:
    with pytest.raises(ClusterError) as caught:
        parse_cluster(text, cores=2, memory_bytes=4 * GIB)
    assert expected in str(caught.value)


CHANGED = (
    ("nodes = 2", "nodse = 2", "`nodse`"),
    ("nodes = 2", "nodes = 0", "nodes is 0"),
    ("devices_per_node = 2", "devices_per_node = 0", "devices_per_node is 0"),
    ("devices_per_node = 2", "", "needs `devices_per_node`"),
    ("= 1e8", "= -1e8", "inter_node.bandwidth_bytes_per_s is -100000000.0"),
    ("= 1e8", "= nan", "got nan - at `$.inter_node.bandwidth_bytes_per_s`"),
    ("launch_ns = 0", 'launch_ns = "x"', "$.device.launch_ns"),
    ("matmul_efficiency = 0.5", "matmul_efficiency = 1.5", "device.matmul_efficiency is 1.5"),
    ("fp32 = 1e9", "fp32 = 0", "device.flops_per_s.fp32 is 0"),
    ("fp32 = 1e9", "", "device.flops_per_s is empty"),
    ("latency_ns = 1", "latency_ns = -1", "intra_node.latency_ns is -1"),
    ("latency_ns = 1", f"latency_ns = {2**63 - 1}", "intra_node.latency_ns is 9223372036854"),
    ("= 1e8", "= 1e-300", "inter_node.bandwidth_bytes_per_s is 1e-300, expected 1e+06 to"),
    ("fp32 = 1e9", "fp32 = 1e300", "device.flops_per_s.fp32 is 1e+300"),
    ("[device]", "[device", "cluster file"),
)
A100, B200 = 'device = "a100-sxm-80gb"\n', 'device = "b200"\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((OWN_CLUSTER.replace(before, after), expected) for before, after, expected in CHANGED),
        (A100 + 'software = "megatrom"', "software: no framework `megatrom`"),
        (A100 + "[software]\noverlap = 1.5", "software.overlap is 1.5"),
        (A100 + "[software]\nhost_ns = -1", "software.host_ns is -1"),
        (A100 + "[software]\nhots_ns = 1", "`hots_ns`"),
        (A100 + "[software]\nfusion = 0", "software.fusion is 0"),
        ("nodes = 2\n", "names no `device`"),
        (B200 + "[[groups]]\n" + B200, "a `device` and `groups`"),
        ('[[groups]]\ndevice = "b20"\n', "did you mean b200"),
        (B200 + "[leaves]\nnode = 2\n", "`node`"),
        (B200 + "memory_bytes = 1\n", "`memory_bytes` belongs under [device]"),
        (B200 + "memory_bytes = 1\n", "is written under [changes]"),
        (B200 + "[changes]\nmemory = 1\n", "changes: Object contains unknown field `memory`"),
        (B200 + "[changes]\nmemory_bytes = 0\n", "device.memory_bytes is 0"),
        (OWN_CLUSTER + "[changes]\nmemory_bytes = 1\n", "`changes` are to a device that"),
    ],
)
def test_a_file_with_a_bad_value_is_refused_by_the_name_of_the_field(
    tmp_path: Path, text: str, expected: str
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ClusterError) as caught:
        parse_cluster(str(path))
    assert expected in str(caught.value)


def test_a_device_of_the_catalogue_may_have_another_memory(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(A100 + "nodes = 2\n[changes]\nmemory_bytes = 64_000_000_000\n")
    usual, changed = parse_cluster("a100-sxm-80gb:8x2"), parse_cluster(str(path))
    assert changed.device == msgspec.structs.replace(usual.device, memory_bytes=64_000_000_000)
    assert (changed.devices, changed.inter_node) == (usual.devices, usual.inter_node)


def test_hosts_like_this_machine_are_a_cluster() -> None:
    hosts = parse_cluster("local:2x3", cores=2, memory_bytes=2**33)
    machine = parse_cluster("local:2", cores=2, memory_bytes=2**33)
    assert (hosts.name, hosts.devices, hosts.devices_per_node) == ("local:2x3", 6, 2)
    assert hosts.device == machine.device
    assert hosts.inter_node.bandwidth_bytes_per_s < hosts.intra_node.bandwidth_bytes_per_s
