"""The worked page is true: every JSON object in it is part of the documents it speaks of.

Where costs have changed, `python -m tests.test_walkthrough` writes the times of the page anew.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.models.spec import ModelSpec
from millrace.models.zoo.catalogue import build_training
from millrace.planner.clusters import local_cluster
from millrace.planner.compile import compile_plan
from millrace.simulator import simulate
from tests.plan_requests import plan_of

PAGE = Path(__file__).parent.parent / "docs" / "walkthrough.md"
ANYTHING = "…"


@cache
def documents(stages: int) -> list[Any]:
    """Graph, Plan, ActorGraph (orders by name) and simulated Trace of the page's example."""
    config = {"inputs": 4, "columns": 2, "hidden": 6, "layers": 1, "classes": 3}
    spec = ModelSpec(name="two-layers", family="mlp", config=config)
    plan = plan_of(
        spec, local_cluster(2, cores=2, memory_bytes=2**30), dp=2 // stages, tp=1, pp=stages,
        micro_batch=2 * stages,
    )  # fmt: skip
    graph = build_training(plan.model, plan.training, plan.batch)
    actors = compile_plan(plan)
    simulated = simulate(actors, plan.cluster, steps=1, plan_digest=plan.digest())
    decoded = [msgspec.to_builtins(d) for d in (graph, plan, actors, simulated.trace)]
    for program in decoded[2]["programs"]:
        names = [actor["name"] for actor in program["actors"]]
        for queue in program["queues"]:
            queue["order"] = [names[index] for index in queue["order"]]
    return decoded


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object inside a document."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from objects(item)


def is_part(shown: Any, document: Any) -> bool:
    """True if `document` holds what is shown: fields may be left out, `…` stands for anything."""
    if shown == ANYTHING:
        return True
    if isinstance(shown, dict) and isinstance(document, dict):
        return all(key in document and is_part(item, document[key]) for key, item in shown.items())
    if isinstance(shown, list) and isinstance(document, list | tuple):
        if not shown:
            return not document
        if shown[0] == ANYTHING:
            return any(is_part(shown[1:], document[start:]) for start in range(len(document) + 1))
        return (
            bool(document) and is_part(shown[0], document[0]) and is_part(shown[1:], document[1:])
        )
    return bool(shown == document)


def shown() -> list[tuple[int, dict[str, Any]]]:
    """JSON objects of the page, each with the number of stages of the example it belongs to."""
    examples = []
    text, decoder = PAGE.read_text(), json.JSONDecoder()
    second = text.index("## With two stages")
    for block in re.finditer(r"```json\n(.*?)```", text, re.DOTALL):
        rest = block.group(1).strip()
        while rest:
            item, end = decoder.raw_decode(rest)
            examples.append((2 if block.start() > second else 1, item))
            rest = rest[end:].strip()
    return examples


@pytest.mark.parametrize("number", range(len(shown())))
def test_what_the_page_shows_is_in_the_documents(number):
    stages, item = shown()[number]
    assert any(is_part(item, candidate) for d in documents(stages) for candidate in objects(d)), (
        item
    )


def test_the_page_shows_all_four_documents():
    counts = [
        sum(any(is_part(item, candidate) for candidate in objects(document)) for _, item in shown())
        for document in documents(1)
    ]
    assert min(counts) >= 1


def written_anew(text: str) -> str:
    """The page with the times of the simulated trace as they are now."""
    trace = documents(1)[3]
    first, ends = json.dumps(trace["spans"][:2])[:-1], json.dumps(trace["step_end_ns"])
    text, spans = re.subn(r'"spans": \[.*"…"\]', f'"spans": {first}, "…"]', text)
    text, steps = re.subn(r'"step_end_ns": \[.*\]\]', f'"step_end_ns": {ends}', text)
    assert spans == steps == 1, "the page shows one trace"
    return text


if __name__ == "__main__":
    PAGE.write_text(written_anew(PAGE.read_text()))
