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

from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import build_training
from millrace.planner.clusters import local_cluster
from millrace.planner.compile import compile_plan
from millrace.planner.search import search
from millrace.planner.search.request import Pins, SearchRequest
from millrace.simulator import simulate

PAGE = Path(__file__).parent.parent / "docs" / "walkthrough.md"
ANYTHING = "…"


@cache
def documents(stages: int) -> list[Any]:
    """Graph, Plan, ActorGraph (orders by name) and simulated Trace of the page's example."""
    config = {"inputs": 4, "columns": 2, "hidden": 6, "layers": 1, "classes": 3}
    spec = ModelSpec(name="two-layers", family="mlp", config=config)
    request = SearchRequest(
        model=spec,
        training=TrainingSpec(),
        cluster=local_cluster(2, cores=2, memory_bytes=2**30),
        global_batch=8,
        pins=Pins(dp=2 // stages, tp=1, pp=stages, micro_batch=2 * stages),
    )
    plan = search(request)
    graph = build_training(plan.model, plan.training, plan.batch)
    actors = compile_plan(plan, graph)
    simulated = simulate(actors, plan.cluster, steps=1, plan_digest=plan.digest())
    found = [msgspec.to_builtins(d) for d in (graph, plan, actors, simulated.trace)]
    for program in found[2]["programs"]:
        names = [actor["name"] for actor in program["actors"]]
        for queue in program["queues"]:
            queue["order"] = [names[index] for index in queue["order"]]
    return found


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object inside a document."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from objects(item)


def is_part(shown: Any, whole: Any) -> bool:
    """Whether `whole` says what is shown: fields may be left out, `…` stands for anything."""
    if shown == ANYTHING:
        return True
    if isinstance(shown, dict) and isinstance(whole, dict):
        return all(key in whole and is_part(item, whole[key]) for key, item in shown.items())
    if isinstance(shown, list) and isinstance(whole, list | tuple):
        if not shown:
            return not whole
        if shown[0] == ANYTHING:
            return any(is_part(shown[1:], whole[at:]) for at in range(len(whole) + 1))
        return bool(whole) and is_part(shown[0], whole[0]) and is_part(shown[1:], whole[1:])
    return bool(shown == whole)


def shown() -> list[tuple[int, dict[str, Any]]]:
    """The page's JSON objects, each with the number of stages of the example it belongs to."""
    found = []
    text, decoder = PAGE.read_text(), json.JSONDecoder()
    second = text.index("## With two stages")
    for block in re.finditer(r"```json\n(.*?)```", text, re.DOTALL):
        rest = block.group(1).strip()
        while rest:
            item, end = decoder.raw_decode(rest)
            found.append((2 if block.start() > second else 1, item))
            rest = rest[end:].strip()
    return found


@pytest.mark.parametrize("number", range(len(shown())))
def test_what_the_page_shows_is_in_the_documents(number):
    stages, item = shown()[number]
    assert any(is_part(item, whole) for d in documents(stages) for whole in objects(d)), item


def test_the_page_shows_all_four_documents():
    counts = [
        sum(any(is_part(item, whole) for whole in objects(document)) for _, item in shown())
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
