"""Layouts as PyTorch's DTensor has them, held against PyTorch's own shards."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.executor.shards import RankShards
from millrace.planner.compile import compile_plan
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.mesh import Axis, Mesh
from millrace.planner.plan import Plan
from millrace.planner.sbp import (
    BROADCAST,
    NdSbp,
    Sbp,
    local_shape,
    parse_nd_sbp,
    shard_offsets,
    split,
)
from millrace.trainers.catalogue import trainer_of
from millrace.trainers.dtensor import DTENSOR, device_mesh, mesh_of, nd_sbp, placements
from millrace.trainers.exporting import export_plan
from millrace.trainers.trainer import SettingsError, SettingsSource
from tests.extras import optional
from tests.millrace.plans import data_parallel_pipeline

torch = optional("torch")
distributed = optional("torch.distributed")
tensors = optional("torch.distributed.tensor")

SBPS = st.one_of(
    st.integers(0, 3).map(split),
    st.just(BROADCAST),
    st.sampled_from(("sum", "max")).map(lambda reduction: Sbp("P", reduction=reduction)),
)


@contextmanager
def process_group(rank: int, ranks: int) -> Iterator[None]:
    """A process group that is one rank of many, and sends nothing."""
    fake = optional("torch.testing._internal.distributed.fake_pg")
    distributed.init_process_group("fake", store=fake.FakeStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        distributed.destroy_process_group()


@given(st.lists(SBPS, max_size=4).map(tuple))
def test_an_nd_sbp_goes_to_placements_and_back(sbp: NdSbp) -> None:
    assert nd_sbp(placements(sbp)) == sbp


def test_placements_are_those_of_the_same_meaning() -> None:
    assert placements("(S(1), B, P(sum))") == (
        tensors.Shard(1),
        tensors.Replicate(),
        tensors.Partial("sum"),
    )
    assert placements("P(max)") == (tensors.Partial("max"),)
    assert nd_sbp((tensors.Shard(-1),), dims=3) == (split(2),)


def test_placements_without_an_sbp_are_refused() -> None:
    for placement in (tensors.Partial("avg"), tensors.Shard(-1)):
        with pytest.raises(PlanError, match="has no SBP"):
            nd_sbp((placement,))


@pytest.mark.parametrize(
    "text", ["(S(0), S(0))", "(S(1), S(0))", "(B, S(2))", "(S(0), B)", "(B, B)"]
)
def test_shards_are_pytorchs_shards(text: str) -> None:
    mesh = Mesh(axes=(Axis(name="dp", size=2), Axis(name="tp", size=4)))
    tensor = torch.arange(8 * 16 * 4).reshape(8, 16, 4)
    sbp = parse_nd_sbp(text)
    for rank in range(mesh.devices):
        with process_group(rank, mesh.devices):
            theirs = device_mesh(mesh, "cpu")
            assert mesh_of(theirs) == mesh
            shard = tensors.distribute_tensor(
                tensor, theirs, placements(sbp), src_data_rank=None
            ).to_local()
        coordinate = tuple(int(place) for place in np.unravel_index(rank, mesh.sizes))
        starts = shard_offsets(tuple(tensor.shape), sbp, mesh.sizes, coordinate)
        shape = local_shape(tuple(tensor.shape), sbp, mesh.sizes)
        ours = tensor[tuple(slice(s, s + n) for s, n in zip(starts, shape, strict=True))]
        assert torch.equal(shard, ours)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return data_parallel_pipeline()


def imported(plan: Plan) -> ModuleType:
    """The exported module, as a user imports it."""
    module = ModuleType("placements")
    exec(export_plan(plan, DTENSOR).files["placements.py"], module.__dict__)
    return module


def test_weights_that_the_module_distributes_lie_as_in_a_run(plan: Plan) -> None:
    module, graph = imported(plan), compile_plan(plan)
    for rank in range(plan.ranks):
        shards = RankShards(graph, rank)
        registers = {register.tensor: register for register in shards.program.registers}
        with process_group(rank, plan.ranks):
            mesh = module.stage_mesh(module.device_mesh("cpu"))
            for chunk in module.STAGE_BLOCKS[shards.program.stage]:
                for block in chunk:
                    shapes = module.SHAPES[module.KINDS[block]]
                    weights = {
                        name: torch.rand(shapes[name])
                        for name in module.PARAMETERS[module.KINDS[block]]
                    }
                    cut = module.distribute_block(block, weights, mesh, src_data_rank=None)
                    for name, weight in weights.items():
                        shard = shards.shard(registers[f"{block}.{name}"])
                        places = zip(shard.offsets, shard.shape, strict=True)
                        ours = weight[tuple(slice(start, start + n) for start, n in places)]
                        assert torch.equal(cut[name].to_local(), ours)


def test_the_module_has_every_block_and_both_meshes(plan: Plan) -> None:
    module = imported(plan)
    assert (plan.stages, *plan.mesh.sizes) == module.MESH_SHAPE
    assert ("pp", *plan.mesh.names) == module.MESH_NAMES
    assert set(module.KINDS) == set(plan.graph.blocks)
    assert {b for stage in module.STAGE_BLOCKS for chunk in stage for b in chunk} == {
        choice.block for chunk in plan.chunks for choice in chunk.blocks
    }
    for kind, table in module.ACTIVATIONS.items():
        for name, placed in table.items():
            shape = module.SHAPES[kind][name]
            assert all(p.dim < len(shape) for p in placed if isinstance(p, tensors.Shard))


def test_a_module_of_placements_is_no_job(plan: Plan) -> None:
    source = SettingsSource(files=dict(export_plan(plan, DTENSOR).files), values={})
    assert trainer_of(source) is DTENSOR
    with pytest.raises(SettingsError, match="has placements of tensors, not a job"):
        DTENSOR.read(source)
    with pytest.raises(InfeasibleError, match="those of a plan"):
        DTENSOR.write(None)  # type: ignore[arg-type]
