"""The examples run as a user runs them, in a folder of their own, and what they print is true.

So do the programs of docs/api.md, which names all that it shows of the code.
"""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from itertools import pairwise
from math import isclose, log, prod
from pathlib import Path

import pytest

import millrace
from millrace.files import load_plan
from tests.extras import optional

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples"
PROGRAMS = sorted(FOLDER.glob("*.py"))
PAGE = ROOT / "docs" / "api.md"


def ran(program: Path, folder: Path, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Finished process of a program; measurements of this machine stay inside the folder."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(path), str(ROOT))),
        "XDG_CACHE_HOME": str(folder),
    }
    return subprocess.run(
        [sys.executable, program],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def printed(program: str | Path, folder: Path) -> str:
    """Output of a program, an example by its name."""
    done = ran(FOLDER / program, folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def numbers(pattern: str, text: str) -> list[float]:
    """Numbers in the groups of a pattern that occurs once in the text."""
    (groups,) = re.findall(pattern, text, re.MULTILINE)
    return [
        float(group.replace(",", ""))
        for group in ((groups,) if isinstance(groups, str) else groups)
    ]


def test_a_planned_model_shows_its_decisions_figures_and_evidence(tmp_path):
    text = printed("plan_a_model.py", tmp_path)
    sizes = [
        int(figure) for figure in re.findall(r" (\d+)", re.search(r"^mesh:.*$", text, re.M)[0])
    ]
    stages, microbatches = numbers(r"^schedule: .*, (\d+) stages, (\d+) microbatches$", text)
    assert prod(sizes) * stages == 16
    assert 128 % microbatches == 0
    step, speed = numbers(r"^step time: ([\d.]+) s, ([\d,]+) tokens/s$", text)
    assert step * speed == pytest.approx(128 * 4096, rel=1e-3)
    (fullest,) = numbers(r"^memory: ([\d.]+) GiB on the fullest device$", text)
    assert 0 < fullest <= 80
    kinds = [
        float(figure) for figure in re.findall(r"^  of stage 0, \w+: ([\d.]+) GiB$", text, re.M)
    ]
    assert len(kinds) == 3
    assert sorted(kinds, reverse=True) == kinds
    cost, bound = numbers(r"^cost: ([\d.]+) s, bound: ([\d.]+) s$", text)
    (gap,) = numbers(r"^gap: ([\d.]+)%", text)
    assert gap == pytest.approx(100 * (cost / bound - 1), abs=0.1)
    (digest,) = re.findall(r"^wrote llama2-13b.json, plan (\w+)$", text, re.M)
    plan = load_plan(tmp_path / "llama2-13b.json")
    assert (plan.digest(), plan.stages, plan.microbatches) == (digest, stages, microbatches)


def test_two_pinned_plans_differ_by_the_parts_of_their_steps(tmp_path):
    text = printed("compare_two_plans.py", tmp_path)
    cells = re.findall(r"^([\w ,]+?) {2,}([\d.]+) +([\d.]+) +([+-][\d.]+)$", text, re.M)
    rows = {name: [float(figure) for figure in figures] for name, *figures in cells}
    parts = ["compute", "exposed communication", "bubble"]
    assert [*rows] == ["step time", *parts, "memory, GiB"]
    for first, second, difference in rows.values():
        assert isclose(first - second, difference, abs_tol=0.011)
    for column in (0, 1, 2):
        assert isclose(
            sum(rows[part][column] for part in parts), rows["step time"][column], abs_tol=0.03
        )
    tensor, pipeline, _ = zip(*(rows[name] for name in rows), strict=True)
    assert pipeline[3] > tensor[3] == 0, "stages wait, a single stage does not"
    assert tensor[2] > pipeline[2], "tensor parallelism sends more than pipeline parallelism"
    faster, best = re.search(r"^(.. 8) is faster: it saves most in (.*)$", text, re.M).groups()
    sign = 1 if faster == "pp 8" else -1
    assert sign * rows["step time"][2] > 0
    assert best == max(parts, key=lambda part: sign * rows[part][2])
    assert len(re.findall(r"^tp 8: \w+ over tp, ", text, re.M)) == 2
    assert len(re.findall(r"^pp 8: (?:send|recv) over stages, ", text, re.M)) == 2


def test_a_faster_network_of_ones_own_cluster_has_its_worth(tmp_path):
    text = printed("own_cluster.py", tmp_path)
    assert text.startswith("own-servers: 8 devices in 2 nodes\n  node: 100.0 GB/s a device")
    (shared,) = numbers(r"^  cluster: ([\d.]+) GB/s a device", text)
    assert 2 < shared < 100 / 8 / 4, "four devices share 100 Gb/s, less what is lost"
    rows = re.findall(r"^(\S+) +(\d+) +([\d.]+) ms +([\d.]+) USD$", text, re.MULTILINE)
    assert [row[0] for row in rows] == ["own", "4xroce-400"]
    (_, slow, dear), (_, fast, cheap) = (map(float, row[1:]) for row in rows)
    assert slow > fast
    assert cheap / dear == pytest.approx(fast / slow, rel=0.01)
    assert re.search(r"^4xroce-400: compute takes \d+% of the step$", text, re.MULTILINE)
    (speedup,) = numbers(r"^4xroce-400 is ([\d.]+)% faster than the network of the file$", text)
    assert speedup == pytest.approx(100 * (slow / fast - 1), abs=0.3)
    worth, devices = numbers(r"^it is worth ([\d.]+) USD an hour; devices cost ([\d.]+)$", text)
    assert devices == 12
    assert worth == pytest.approx(devices * speedup / 100, abs=0.02)


def test_a_run_on_this_machine_is_compared_with_its_prediction(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    millrace.profile(ranks=2, seconds=1)  # is kept, so that the program need not measure for long
    text = printed("train_and_compare.py", tmp_path)
    assert text.startswith("gpt-demo on local:2")
    first, last = numbers(r"^loss ([\d.]+) after step 1, ([\d.]+) after step 20$", text)
    assert first == pytest.approx(log(256), rel=0.05)
    assert last < first
    (predicted,) = numbers(r"^predicted ([\d.]+) ms$", text)
    (measured,) = numbers(r"^measured  ([\d.]+) ms$", text)
    (error,) = numbers(r"^error ([+-][\d.]+)%$", text)
    assert error == pytest.approx(100 * (predicted / measured - 1), abs=0.3)
    causes = re.findall(
        r"^  [\w: ]+: predicted ([\d.]+) ms, measured ([\d.]+) ms \(([+-][\d.]+) ms\)$", text, re.M
    )
    assert len(causes) == 3
    rows = [[float(figure) for figure in cause] for cause in causes]
    for expected, took, difference in rows:
        assert isclose(expected - took, difference, abs_tol=0.11)
    assert all(abs(larger[2]) >= abs(smaller[2]) for larger, smaller in pairwise(rows))


def test_a_module_of_ones_own_is_planned_checked_and_trained(tmp_path):
    optional("torch")
    text = printed("your_model.py", tmp_path)
    size, layers, vocabulary = 4096, 12, 32000
    weights = layers * (12 * size**2 + 13 * size) + 2 * vocabulary * size + vocabulary
    assert text.startswith(f"{weights:,} parameters in {layers + 2} blocks\nlarge on a100-sxm-80gb")
    assert numbers(r"^step time ([\d.]+) s$", text)[0] > 0
    loss, gradient = numbers(
        r"^checked against PyTorch: the loss is (\S+) off, gradients (\S+) at most", text
    )
    assert max(loss, gradient) < 1e-4
    first, second = numbers(r"^loss ([\d.]+) in step 1, ([\d.]+) in step 2$", text)
    assert first == pytest.approx(log(256), rel=0.1)
    assert second < first


def test_without_pytorch_the_example_says_what_to_install(tmp_path):
    (tmp_path / "torch.py").write_text('raise ImportError("as if it were not installed")')
    done = ran(FOLDER / "your_model.py", tmp_path, tmp_path)
    assert done.returncode == 1
    assert done.stderr == "this example needs PyTorch: pip install '.[torch]'\n"


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_how_to_run_it(path):
    text = path.read_text()
    said = ast.get_docstring(ast.parse(text)) or ""
    assert f"python examples/{path.name}" in said
    assert "Prints:" in said
    assert 25 <= len(text.splitlines()) <= 70
    assert f"]({path.name})" in (FOLDER / "README.md").read_text()


def test_the_programs_of_the_api_page_run(tmp_path):
    road, sweep = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    (tmp_path / "road.py").write_text(road)
    text = printed(tmp_path / "road.py", tmp_path)
    assert text.startswith("gpt-demo on local:2: mesh tp 2, 1 stage")
    assert "\ndp = 1: dp = 2 " in text
    slower = r"^predicted ([\d.]+) s a step\npredicted ([\d.]+) s with a slow rank, bubble \d+%$"
    step_s, slow_s = numbers(slower, text)
    assert slow_s > step_s
    assert re.search(r"^measured [\d.]+ s, loss [\d.]+\nerror [+-][\d.]+%, mostly ", text, re.M)
    (tmp_path / "sweep.py").write_text(sweep)
    lines = printed(tmp_path / "sweep.py", tmp_path).splitlines()
    assert [line.partition(":")[0] for line in lines[:2]] == ["8 devices", "16 devices"]
    assert lines[2] == "sweep of gpt2-small: 2 points"


def test_the_api_page_names_what_there_is_and_every_verb():
    text = PAGE.read_text()
    for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE):
        place, definition = name, None
        while definition is None:
            try:
                definition = importlib.import_module(place)
            except ModuleNotFoundError:
                place = place.rpartition(".")[0]
        for part in name[len(place) + 1 :].split(".") if place != name else ():
            definition = getattr(definition, part)
    functions = [name for name in millrace.__all__ if inspect.isfunction(getattr(millrace, name))]
    assert [name for name in functions if f"| `{name}` |" not in text] == []
    results = [name for name in millrace.__all__ if name.endswith(("Result", "Row"))]
    assert [name for name in results if f"`{name}`" not in text and f".{name}\n" not in text] == []
