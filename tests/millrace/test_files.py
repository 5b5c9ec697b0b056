"""Documents on disk: errors name the path, writing is whole or not at all."""

import json
import stat
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from benchmarks.quality.printed_pages import schema
from millrace.files import SCHEMAS, load_plan, load_trace, write_document
from millrace.models.documents import FileError, write_bytes
from millrace.planner.clusters import parse_cluster
from millrace.planner.errors import ClusterError, InfeasibleError, PlanError
from millrace.planner.mesh import Axis, Mesh
from tests.extras import optional
from tests.millrace.plans import cluster, data_parallel_pipeline
from tests.millrace.traces import two_rank_trace


def slow():
    """A cluster whose messages take centuries."""
    base = cluster()
    return replace(base, intra_node=replace(base.intra_node, latency_ns=2**63 - 1))


def test_a_trace_comes_back_as_it_was_written(tmp_path):
    trace = two_rank_trace("measured", steps=3)
    path = tmp_path / "run.json"
    write_document(path, trace)
    assert load_trace(path) == trace
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


def test_what_is_not_there_or_not_a_plan_is_named(tmp_path):
    with pytest.raises(PlanError, match=r"the plan `.*none.json` cannot be read: no such file"):
        load_plan(tmp_path / "none.json")
    with pytest.raises(PlanError, match="is a directory"):
        load_plan(tmp_path)
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"modle": 1}')
    with pytest.raises(PlanError, match=r"wrong.json` is not a plan: .*modle"):
        load_plan(wrong)
    wrong.write_bytes(b"\xff\xfe")
    with pytest.raises(PlanError, match=r"wrong.json` is not a plan"):
        load_plan(wrong)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"microbatches": 3}, PlanError, "`global_batch` 16 does not divide into 3"),
        ({"stages": 1}, PlanError, "chunk 1 lies on stage 1 of 1"),
        ({"mesh": Mesh(axes=(Axis(name="dp", size=64),))}, InfeasibleError, "need 128 devices"),
        ({"figures": {"step_time_s": -1}}, PlanError, r"`figures\.step_time_s` is -1"),
        ({"figures": {"memory_by_kind": [{"a": "1"}]}}, PlanError, r"`figures\.memory_by_kind` is"),
        ({"figures": {"memory_by_kind": 7}}, PlanError, r"`figures\.memory_by_kind` is 7"),
        ({"figures": {"busy_by_stage": [2]}}, PlanError, r"`figures\.busy_by_stage` is \[2\]"),
        ({"cluster": slow()}, ClusterError, r"intra_node\.latency_ns is 9223372036854775807"),
    ],
)
def test_a_plan_that_was_edited_out_of_shape_is_refused_when_it_is_read(
    tmp_path, changes, error, said
):
    path = tmp_path / "edited.json"
    write_document(path, replace(data_parallel_pipeline(), **changes))
    with pytest.raises(error, match=f"edited.json`: .*{said}"):
        load_plan(path)


def test_a_trace_in_chromes_form_is_refused_with_the_way_out(tmp_path):
    path = tmp_path / "run.chrome.json"
    path.write_text('{"displayTimeUnit": "ms", "traceEvents": []}')
    with pytest.raises(FileError, match="Chrome's form"):
        load_trace(path)


def test_a_folder_that_is_not_there_is_named_and_nothing_is_left(tmp_path):
    with pytest.raises(FileError, match=r"cannot write `.*absent/plan.json`"):
        write_bytes(tmp_path / "absent" / "plan.json", b"x")
    with pytest.raises(FileError, match="cannot write"):
        write_bytes(tmp_path, b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_device_file_is_written_to_and_not_replaced():
    write_bytes(Path("/dev/null"), b"x")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@pytest.mark.parametrize("load", [load_plan, load_trace])
def test_a_document_of_another_version_is_refused_with_the_one_that_is_known(tmp_path, load):
    path = tmp_path / "later.json"
    path.write_text('{"schema_version": 99, "a_field_of_the_future": 1}')
    with pytest.raises(ValueError, match=r"Expected `int` <= 1 - at `\$.schema_version`"):
        load(path)


def test_a_device_without_an_end_is_no_plan(tmp_path):
    with pytest.raises(PlanError, match="not UTF-8 text"):
        load_plan(Path("/dev/zero"))


def test_a_trace_whose_parts_do_not_fit_is_refused_by_path_and_place(tmp_path):
    path = tmp_path / "run.json"
    write_document(path, msgspec.structs.replace(two_rank_trace("measured", steps=3), steps=30))
    with pytest.raises(FileError, match=r"run.json` is not a trace: of 30 .* at `\$.step_end"):
        load_trace(path)


def test_a_file_names_its_schema_first_and_is_read_with_another_or_none(tmp_path):
    plan, path = data_parallel_pipeline(), tmp_path / "plan.json"
    write_document(path, plan)
    text = path.read_text()
    assert text.startswith('{\n "$schema": "docs/schemas/plan.schema.json",\n "schema_version": 1,')
    assert load_plan(path) == plan
    document = json.loads(text)
    for name in ({}, {"$schema": "file:///elsewhere/plan.schema.json"}):
        document.pop("$schema", None)
        document |= name  # behind all other keys
        path.write_text(json.dumps(document))
        assert load_plan(path) == plan
    write_document(path, load_plan(path))
    assert path.read_text() == text
    path.write_text(json.dumps(document | {"$schema": 1}))
    with pytest.raises(PlanError, match=r"the name of a JSON schema - at `\$\.\$schema`"):
        load_plan(path)
    document["cluster"]["$schema"] = "of the whole file alone"
    path.write_text(json.dumps(document))
    with pytest.raises(PlanError, match=r"unknown field `\$schema` - at `\$.cluster`"):
        load_plan(path)


@pytest.mark.parametrize("written", [data_parallel_pipeline(), two_rank_trace("measured", steps=3)])
def test_what_is_written_is_valid_by_the_schema_that_it_names(tmp_path, written):
    jsonschema = optional("jsonschema", "test")
    write_document(tmp_path / "written.json", written)
    document = json.loads((tmp_path / "written.json").read_text())
    assert document["$schema"] == f"docs/schemas/{SCHEMAS[type(written)]}.schema.json"
    jsonschema.validate(document, schema(type(written)))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document | {"surplus": 1}, schema(type(written)))


def test_a_cluster_file_may_name_its_schema(tmp_path):
    path = tmp_path / "nodes.toml"
    path.write_text('"$schema" = "cluster.schema.json"\ndevice = "h100"\nnodes = 2\n')
    assert parse_cluster(str(path)).devices == 16
