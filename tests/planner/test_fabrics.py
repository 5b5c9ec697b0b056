"""Fabrics: what a network's name or a published sentence means for each device of a node."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from millrace.planner.cluster import Leaves
from millrace.planner.clusters import names, network, parse_cluster, reference_node
from millrace.planner.clusters.fabrics import Reduction, fabrics
from millrace.planner.errors import ClusterError

FILE = Path(__file__).parents[2] / "planner" / "clusters" / "fabrics.toml"


def test_every_fabric_of_the_files_figures_carries_its_source_and_year_on_its_line() -> None:
    for line in FILE.read_text("utf-8").splitlines():
        key, _, rest = line.partition(" = ")
        if rest and key not in ("family", "inside", "source"):
            assert re.search(r"# .*\b20[12]\d", rest), line


def test_every_fabric_can_be_asked_for_by_its_name() -> None:
    for name, fabric in fabrics().items():
        link = network(name, fabric.ports or 8)
        assert link.bandwidth_bytes_per_s == fabric.bandwidth_bytes_per_s * fabric.reached
        assert 0 < fabric.reached <= 1
        assert link.reduces == (fabric.reduces is Reduction.ALWAYS)


@pytest.mark.parametrize(
    ("text", "devices", "bytes_per_s"),
    [
        ("ndr", 8, 0.97 * 50e9),
        ("NDR", 4, 0.97 * 50e9),
        ("8xhdr", 8, 0.94 * 25e9),
        ("4xhdr", 8, 0.94 * 12.5e9),
        ("8 x hdr", 16, 0.94 * 12.5e9),
        ("roce-400", 8, 0.97 * 50e9),
        ("4xroce-100", 8, 0.94 * 6.25e9),
        ("8x400Gb/s", 8, 0.97 * 50e9),
        ("8x400gbps", 8, 0.97 * 50e9),
        ("efa-1", 8, 0.85 * 6.25e9),
        ("efa-2", 8, 0.94 * 50e9),
        ("efa-3", 8, 0.94 * 50e9),
        ("pcie-4", 8, 25.6e9),
        ("12xnvlink-3", 8, 240e9),
        ("8x200Gb/s HDR InfiniBand per node (Selene)", 8, 0.94 * 25e9),
        ("800 Gb/s per node (HDR InfiniBand x4)", 8, 0.94 * 12.5e9),
        ("4x100Gb/s Omni-Path per node", 4, 0.2 * 12.5e9),
        ("8x100Gb/s per node (IB or RoCE)", 8, 0.94 * 12.5e9),
        ("RoCE 1600 Gbps per node", 8, 0.94 * 25e9),
        ("RDMA 400 Gb/s per GPU", 8, 0.97 * 50e9),
        ("2x200 Gb/s RoCE per GPU", 8, 0.94 * 50e9),
        ("RDMA CX-7 400 Gb/s per GPU", 8, 0.97 * 50e9),
        ("InfiniBand 8x50 GB/s per node", 8, 0.97 * 50e9),
        ("InfiniBand, 3.2 Tb/s per node", 8, 0.97 * 50e9),
        ("AWS EFA", 8, 0.94 * 50e9),
        ("AWS EFA 400 Gbps", 8, 0.85 * 6.25e9),
        ("GCP A3 VM network", 8, 0.9 * 12.5e9),
        ("4x HDR InfiniBand per node", 8, 0.94 * 12.5e9),
        ("HDR InfiniBand x4", 8, 0.94 * 12.5e9),
        ("100GbE", 8, 0.94 * 12.5e9 / 8),
        ("25 Gbps", 8, 0.94 * 3.125e9 / 8),
    ],
)
def test_a_network_is_what_each_device_of_a_node_gets(
    text: str, devices: int, bytes_per_s: float
) -> None:
    link = network(text, devices)
    assert link.bandwidth_bytes_per_s == pytest.approx(bytes_per_s)
    assert not link.reduces


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ndrr", "did you mean"),
        ("8xhrd", "hdr"),
        ("roce-401", "roce-400"),
        ("", "expected a fabric"),
        ("DCN", "no network `DCN`"),
        ("NVLink domain 72", "no network `NVLink domain 72`"),
        ("0xndr", "a bandwidth of 0"),
        ("0 Gb/s", "a bandwidth of 0"),
        ("-400 Gb/s", "negative"),
        ("8x400Gb/s RoCE +sharp", "switches of roce-400 do not reduce"),
        ("8xroce-400+sharp", "do not reduce; leave out `+sharp` or take one of"),
    ],
)
def test_a_network_that_is_not_understood_is_refused_with_close_names(
    text: str, expected: str
) -> None:
    with pytest.raises(ClusterError) as caught:
        network(text, 8)
    assert expected in str(caught.value)


def test_a_node_without_devices_has_no_network() -> None:
    with pytest.raises(ClusterError, match="devices_per_node is 0"):
        network("ndr", 0)


def test_switches_of_infiniband_reduce_where_they_are_asked_to() -> None:
    assert not network("8xndr", 8).reduces
    assert network("8xndr+sharp", 8).reduces
    assert network("8x400Gb/s InfiniBand +sharp", 8).reduces
    assert network("18xnvlink-4", 8).reduces


def test_nodes_of_hopper_and_later_reduce_in_their_switches() -> None:
    devices = {name for name in names() if reference_node(name).intra_node.reduces}
    hopper = {"h100-sxm-80gb", "h100-sxm-96gb-hbm2e-500w", "h200-sxm", "h800-sxm-80gb", "h20"}
    assert devices == hopper | {"b200", "b300", "gb200", "gb300"}
    assert not any(reference_node(name).inter_node.reduces for name in names())


def test_the_catalogues_links_are_those_of_the_fabrics_they_are_made_of() -> None:
    of = {
        "v100-sxm-16gb": ("6xnvlink-2", "4xedr"),
        "a100-sxm-80gb": ("12xnvlink-3", "8xhdr"),
        "h100-sxm-80gb": ("18xnvlink-4", "8xndr"),
        "b300": ("18xnvlink-5", "8xxdr"),
        "a100-pcie-80gb": ("pcie-4", "4xhdr"),
    }
    for name, (inside, outside) in of.items():
        node = reference_node(name)
        for link, text in ((node.intra_node, inside), (node.inter_node, outside)):
            expected = network(text, node.devices_per_node)
            assert link.latency_ns == expected.latency_ns, name
            rate = expected.bandwidth_bytes_per_s
            assert link.bandwidth_bytes_per_s == pytest.approx(rate, rel=0.005), name


def test_a_file_may_name_its_fabrics(tmp_path: Path) -> None:
    path = tmp_path / "rails.toml"
    path.write_text('device = "h100-sxm-80gb"\nnodes = 4\ninter_node = "4xndr+sharp"\n')
    link = parse_cluster(str(path)).inter_node
    assert link.bandwidth_bytes_per_s == pytest.approx(0.97 * 25e9)
    assert link.reduces
    path.write_text('device = "h100-sxm-80gb"\nnodes = 4\ninter_node = "ndrr"\n')
    with pytest.raises(ClusterError, match=r"inter_node: no network `ndrr`.*did you mean"):
        parse_cluster(str(path))


def test_above_an_oversubscribed_leaf_a_link_is_what_it_was_but_slower() -> None:
    links = {"reduces": True, "gap_ns": 7, "congestion": 0.1}
    node = parse_cluster("h100-sxm-80gb:8x8")
    network = replace(node.inter_node, **links)
    leaves = Leaves(nodes=2, oversubscription=2.0, latency_ns=20)
    *_, leaf, above = replace(node, inter_node=network, leaves=leaves).levels
    assert leaf.link == network
    assert above.link == replace(
        network,
        latency_ns=network.latency_ns + 20,
        bandwidth_bytes_per_s=network.bandwidth_bytes_per_s / 2,
        source=above.link.source,
    )


def test_a_file_names_the_software_on_the_cluster(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    head = 'device = "a100-sxm-80gb"\n'
    path.write_text(head + 'software = "default"\n')
    assert parse_cluster(str(path)).software.name == "default"
    path.write_text(head + '[software]\nname = "mine"\nhost_ns = 7_000\noverlap = 0.9\n')
    software = parse_cluster(str(path)).software
    assert (software.name, software.host_ns, software.overlap, software.fusion) == (
        "mine",
        7_000,
        0.9,
        1.0,
    )
    assert parse_cluster("a100-sxm-80gb:8x2").software.name == "none"
