"""Pages that lead into the code say what is there: ARCHITECTURE.md, the decisions, README.md, …

In these pages a file is a link, and what it defines stands behind it in backticks:
``[orders.py](planner/compile/queue_orders.py): `compute_order`, `first_step` ``.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.test_layering import ALLOWED, DOORS, ROOT, tree

# On these pages a name of the code stands nowhere but behind its file.
GUIDES = [ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
PAGES = [*GUIDES, *sorted({*ROOT.glob("*.md")} - {*GUIDES}), ROOT / "benchmarks" / "README.md"]
PAST = "CHANGELOG.md"  # tells of files that are gone

FOLDERS = {*ALLOWED, "benchmarks", "docs", "examples", "notebooks", "tests"}
CODE = (".py", ".toml", ".cu", ".cuh")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#]+)(?:#[^)]*)?\)((?::\s+`[\w.]+`(?:,\s+`[\w.]+`)*)?)")
SPAN = re.compile(r"`([^`]+)`")


@cache
def defined(path: Path) -> frozenset[str]:
    """Names of a file's functions, classes, methods (`Class.method`) and constants."""
    names: set[str] = set()
    for node in tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (method.name for method in node.body if isinstance(method, ast.FunctionDef))
            names.update(f"{node.name}.{name}" for name in inner)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names.update(target.id for target in targets if isinstance(target, ast.Name))
    return frozenset(names)


def faults(text: str, folder: Path, *, guide: bool = True, past: bool = False) -> Iterator[str]:
    """Names on a page of a folder that do not exist; of a guide also names behind no file."""
    text = FENCE.sub("", text)
    for label, target, behind in LINK.findall(text):
        if "://" in target:
            continue
        path = (folder / target).resolve()
        if not path.exists():
            yield f"{target}: no such file"
        elif path.suffix == ".py":
            names = defined(path)
            yield from (f"{target}: no `{n}`" for n in SPAN.findall(behind) if n not in names)
        if guide and target.endswith(CODE) and not f"/{target}".endswith(f"/{label}"):
            yield f"{label}: is not how {target} ends"
    for module in re.findall(r"python -m (benchmarks(?:\.\w+)+)", text):
        path = ROOT / module.replace(".", "/")
        if not past and not any(
            file.exists() for file in (path.with_suffix(".py"), path / "__main__.py")
        ):
            yield f"{module}: no such module"
    for span in SPAN.findall(LINK.sub("", text)):
        if re.fullmatch(r"[\w./*-]+/[\w./*-]*", span) and span.split("/")[0] in FOLDERS:
            if not past and not any(ROOT.glob(span.rstrip("/"))):
                yield f"{span}: no such file"
        elif guide and re.fullmatch(r"\w+(\.\w+)*(\(\))?", span) and span not in {*ALLOWED, *DOORS}:
            yield f"{span}: stands behind no file"


def test_what_pages_say_of_the_code_is_there() -> None:
    assert (ROOT / "ARCHITECTURE.md") in PAGES
    told = [
        f"{page.relative_to(ROOT)}: {said}"
        for page in PAGES
        for said in faults(
            page.read_text(), page.parent, guide=page in GUIDES, past=page.name == PAST
        )
    ]
    assert told == []


def test_a_page_that_has_gone_stale_is_told() -> None:
    fine = """See [outer.py](planner/search/outer.py): `search`,
    `_best`, [ranker.py](planner/search/ranking/ranker.py): `Ranker.rank`, `planner/search/`,
    `planner/catalogue/*.toml`, `millrace plan` and `python -m benchmarks.planner.pipelines`.
    """
    assert list(faults(fine, ROOT)) == []
    for stale, said in (
        ("[gone.py](planner/gone.py)", "planner/gone.py: no such file"),
        ("[plan.py](planner/plan.py): `Plan`, `Gone`", "planner/plan.py: no `Gone`"),
        ("[plan.py](planner/plan.py): `Plan.gone`", "planner/plan.py: no `Plan.gone`"),
        ("[sbp.py](planner/plan.py)", "sbp.py: is not how planner/plan.py ends"),
        ("`planner/gone.py`", "planner/gone.py: no such file"),
        ("`python -m benchmarks.gone`", "benchmarks.gone: no such module"),
        ("`python -m benchmarks.executor`", "benchmarks.executor: no such module"),
        ("`run_rank`", "run_rank: stands behind no file"),
    ):
        assert list(faults(stale, ROOT)) == [said]
