"""Pictures of a plan: what is drawn adds up, files are the same every time, refusals are clear."""

from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from millrace.files import write_document
from millrace.models.documents import FileError
from millrace.palette import DARK, HUES, LIGHT
from millrace.pictures.block_layout import layout_rows
from millrace.pictures.picture_file import FORMS, check_drawable
from millrace.pictures.plan_poster import PICTURES, draw, picture
from millrace.pictures.schedule_cells import BACKWARD, FORWARD, WEIGHT, schedule_cells
from millrace.planner.errors import PlanError
from millrace.simulator import predict
from tests.millrace.plans import data_parallel_pipeline, drawn_plan
from tests.simulator.test_stages import planned

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def plan():
    """Return a small plan of two stages."""
    return data_parallel_pipeline()


@pytest.mark.parametrize("fidelity", ["op", "stage"])
def test_every_microbatch_passes_every_chunk_once_each_way(fidelity):
    plan = planned("ZeRO 3 on stages")
    rows = schedule_cells(plan, predict(plan, fidelity=fidelity, detailed=True))
    assert [row.stage for row in rows] == list(range(plan.stages))
    for row in rows:
        chunks = [n for n, chunk in enumerate(plan.chunks) if chunk.stage == row.stage]
        expected = {(c, m) for c in chunks for m in range(plan.microbatches)}
        for what in (FORWARD, BACKWARD):
            passes = {(cell.chunk, cell.microbatch) for cell in row.cells if cell.what == what}
            assert passes == expected
        assert WEIGHT not in {cell.what for cell in row.cells}
        ends = [(cell.start_ns, cell.end_ns) for cell in row.cells]
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))


def test_the_layout_of_a_block_names_the_collectives_that_its_ops_need():
    block, rows = layout_rows(drawn_plan())
    assert block == "h.0"
    product = next(row for row in rows if row.op == "mlp.fc1.matmul")
    assert product.activation == ("B",)
    assert product.weight == ("S(1)",)
    assert product.output == ("S(2)",)
    following = next(row for row in rows if row.op == "mlp.fc1")
    assert following.moves == ("all_gather over tp",)


@pytest.mark.parametrize("of", PICTURES)
def test_a_picture_has_title_and_description_and_the_same_bytes_every_time(plan, of, tmp_path):
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    draw(plan, first, of)
    draw(plan, second, of)
    assert first.read_bytes() == second.read_bytes()
    drawn = ElementTree.fromstring(first.read_bytes())
    assert drawn.get("role") == "img"
    title, description = drawn.find(f"{SVG}title"), drawn.find(f"{SVG}desc")
    assert "tiny" in title.text
    assert len(description.text) > 40
    assert drawn.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    assert list(drawn.iter(f"{SVG}text"))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_written(plan, form, tmp_path):
    path = tmp_path / f"memory.{form}"
    draw(plan, path, "memory")
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "html": b"<!doctype html>"}
    assert path.read_bytes().startswith(begins[form])


def test_a_page_has_the_theme_of_its_reader_and_nothing_from_elsewhere(plan):
    page = picture(plan, "schedule").html()
    body = page[page.index("<body>") :]
    assert "var(--blue)" in body
    assert HUES["blue"] not in body
    assert LIGHT.ink not in body
    assert not any(word in page for word in ("<script", "href=", "url(http", "<link", "src="))


def test_a_dark_picture_has_dark_paper(plan):
    drawn = picture(plan, "plan", DARK).svg()
    assert DARK.paper in drawn
    assert LIGHT.ink not in drawn


def test_the_command_draws_and_refuses_in_one_sentence(plan, call, tmp_path):
    path, drawn = tmp_path / "plan.json", tmp_path / "step.svg"
    write_document(path, plan)
    code, out, _ = call("show", path, "--picture", drawn, "--of", "schedule")
    assert code == 0
    assert "stages" in out
    assert "One step of tiny" in drawn.read_text()
    for arguments, said in (
        (("--picture", tmp_path / "step.gif"), "name a file that ends in .png, .svg"),
        (("--picture", tmp_path / "nowhere" / "step.svg"), "there is no folder"),
        (("--picture", drawn, "--of", "weather"), "expected one of all, plan, schedule, memory"),
        (("--of", "plan"), "give --picture FILE"),
        ((path, "--picture", drawn), "give PLAN alone"),
    ):
        code, out, err = call("show", path, *arguments)
        assert (code, out) == (2, "")
        assert said in " ".join(err.split()).replace("│ ", "")


def test_what_cannot_be_drawn_is_said(monkeypatch):
    with pytest.raises(FileError, match="ends in"):
        check_drawable(Path("plan.bmp"))
    with pytest.raises(PlanError, match="no picture of `weather`"):
        picture(data_parallel_pipeline(), "weather")
    monkeypatch.setattr("millrace.pictures.picture_file.find_spec", lambda _: None)
    with pytest.raises(FileError, match="matplotlib"):
        check_drawable(Path("plan.svg"))
