"""Figures of plans as the search thinks of them, as they are laid out, and as they are simulated.

Every plan that a search compiles is one row: its step time by the planner's cost beside the
simulated one, and the bytes that the cost counts on the stage with the least room left beside those
that the compiler lays out there. A plan that needs more than its limit once compiled is refused and
has no simulated time. Beside it stand questions that are drawn at random, what a simulated step has
alive at once of the bytes that are laid out, and textbook pins, none of which should give a faster
plan than a search without them.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.planner.questions import MIXED, MIXED_TOML, PlannerQuestion
from millrace.api.plan_search import check_question, search
from millrace.planner.cluster import Cluster
from millrace.planner.clusters import parse_cluster
from millrace.planner.errors import InfeasibleError
from millrace.planner.memory import plan_memory
from millrace.planner.plan import Plan
from millrace.planner.schedules import SCHEDULES
from millrace.planner.search import Pins
from millrace.planner.search.search_log import PlanComparison, SearchLog
from millrace.requested_cluster import with_software
from millrace.simulator import predict
from millrace.simulator.account import account_of

Pinned = dict[str, str | int]

GIB = 2**30
QUICK = ("llama2-7b", "gpt3-13b", "mixtral-8x7b")  # asked with one pipeline of each kind
QUICK_PP = 4
FASTER = 0.005  # of the free plan's simulated step, up to which a pinned one may be below it
TEXTBOOK_PINS: tuple[Pinned, ...] = (
    {"zero": "1", "pp": 1},
    {"zero": "3", "pp": 1},
    {"tp": 4},
    {"tp": 8},
    {"pp": 4},
    {"pp": 8},
    {"schedule": "1f1b"},
    {"schedule": "interleaved-1f1b"},
    {"schedule": "zb-h1"},
    {"schedule": "zb-v"},
    {"recompute": "none"},
    {"recompute": "selective"},
    {"recompute": "full"},
    {"tp": 8, "pp": 8, "zero": "1"},
)
# Questions are drawn from these: models with their lengths, clusters with their precision.
DRAWN_MODELS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("bert-large", (128, 512)),
    ("gpt2-xl", (512, 1024)),
    ("gpt3-2.7b", (1024, 2048)),
    ("gpt3-6.7b", (2048,)),
    ("gpt3-13b", (2048,)),
    ("gpt-neox-20b", (2048,)),
    ("llama2-7b", (2048, 4096)),
    ("llama3-8b", (4096, 8192)),
    ("qwen3-14b", (4096,)),
    ("qwen3-30b-a3b", (4096,)),
    ("deepseek-v2-lite", (4096,)),
    ("mixtral-8x7b", (2048, 4096)),
    ("t5-3b", (512,)),
    ("vit-h", (1,)),
)
DRAWN_DEVICES = (
    ("v100-sxm-32gb", "fp16"),
    ("a100-sxm-40gb", "bf16"),
    ("a100-sxm-80gb", "bf16"),
    ("h100-sxm-80gb", "bf16"),
)
DRAWN_NODES = (1, 2, 4, 8)  # of eight devices
DRAWN_SAMPLES = (1, 2, 4, 8, 16)  # of a device, so that batches divide


@dataclass(frozen=True, slots=True)
class FrameworkQuestion:
    """Question, under a framework and pins."""

    question: PlannerQuestion
    framework: str
    pins: Pinned


@dataclass(frozen=True, slots=True, kw_only=True)
class FiguresRow:
    """Plan that a search compiled, and the question that it was asked; `pins` as text."""

    question: str
    framework: str
    pins: str
    compared: PlanComparison

    @property
    def time_error(self) -> float | None:
        """Error of the cost: time by it over simulated time, less one; None where not simulated."""
        simulated_s = self.compared.simulated_s
        return None if simulated_s is None else self.compared.cost_s / simulated_s - 1

    @property
    def memory_error(self) -> float:
        """Error of the cost: bytes by it over those laid out, less one."""
        return self.compared.cost_bytes / self.compared.laid_out_bytes - 1


def pinned_schedules(quick: bool) -> list[Pinned]:
    """Pins of every search of a question: none, then each schedule."""
    searches: list[Pinned] = [{}]
    for name in SCHEDULES:
        if not quick:
            searches.append({"schedule": name})
        elif name != "gpipe":
            searches.append({"schedule": name, "pp": QUICK_PP})
    return searches


def drawn_questions(
    count: int, frameworks: Sequence[str], seed: int = 0
) -> Iterator[FrameworkQuestion]:
    """Yield questions of other models, clusters and batches, free or with a schedule pinned."""
    draw = random.Random(seed)
    for _ in range(count):
        model, lengths = draw.choice(DRAWN_MODELS)
        device, precision = draw.choice(DRAWN_DEVICES)
        nodes, seq_len = draw.choice(DRAWN_NODES), draw.choice(lengths)
        batch = 8 * nodes * draw.choice(DRAWN_SAMPLES)
        arguments = (
            f"{model} --cluster {device}:8x{nodes} --global-batch {batch} --precision {precision}"
        )
        if seq_len > 1:
            arguments += f" --seq-len {seq_len}"
        yield FrameworkQuestion(
            PlannerQuestion(model, arguments, 0.0),
            draw.choice(frameworks),
            draw.choice([{}, *({"schedule": name} for name in SCHEDULES)]),
        )


def question_rows(asked: FrameworkQuestion, folder: Path) -> list[FiguresRow]:
    """Rows of every plan that one search compiled, the chosen one last; none where none fits."""
    record = SearchLog()
    # Where there is no plan, the plans compiled before say enough.
    with suppress(InfeasibleError):
        _planned(asked, folder, record)
    name, framework, pins = asked.question.name, asked.framework, pins_text(asked.pins)
    return [
        FiguresRow(question=name, framework=framework, pins=pins, compared=compared)
        for compared in record.compared
    ]


def step_time_s(asked: FrameworkQuestion, folder: Path) -> float | None:
    """Simulated step time of the plan that a search returns; None where there is none."""
    with suppress(InfeasibleError):
        return float(_planned(asked, folder, SearchLog()).figures["step_time_s"])
    return None


def alive_bytes(asked: FrameworkQuestion, folder: Path) -> tuple[int, int] | None:
    """Activations of a plan, laid out and alive at once in its step; None where there is no plan.

    Of the stage that lays out most of them, with every op simulated.
    """
    with suppress(InfeasibleError):
        plan = _planned(asked, folder, SearchLog())
        simulation = predict(plan, fidelity="op", steps=2, detailed=True)
        courses = account_of(plan, simulation).memory
        return max(
            (said.activation_bytes, int(max(course.bytes_by_kind["activation"])))
            for said, course in zip(plan_memory(plan), courses, strict=True)
        )
    return None


def pins_text(pins: Pinned) -> str:
    """Pins in one line, `free` where there are none."""
    return " ".join(f"{name} {value}" for name, value in pins.items()) or "free"


def _planned(asked: FrameworkQuestion, folder: Path, record: SearchLog) -> Plan:
    model, options = asked.question.arguments.split()[0], _options(asked.question)
    spec = check_question(
        model,
        seq_len=int(options["--seq-len"]) if "--seq-len" in options else None,
        precision=options.get("--precision", "bf16"),
    )
    return search(
        spec,
        _cluster(options["--cluster"], asked.framework, folder),
        int(options["--global-batch"]),
        memory_limit_bytes=_bytes(options.get("--memory-limit")),
        pins=Pins.of(asked.pins),
        record=record,
    )


def _options(question: PlannerQuestion) -> dict[str, str]:
    words = question.arguments.split()[1:]
    return dict(zip(words[::2], words[1::2], strict=True))


def _bytes(text: str | None) -> int | None:
    return None if text is None else int(text.removesuffix("GiB")) * GIB


def _cluster(name: str, framework: str, folder: Path) -> Cluster:
    if name == MIXED:
        (folder / MIXED).write_text(MIXED_TOML, "utf-8")
        name = str(folder / MIXED)
    return with_software(parse_cluster(name), framework)


def scheduled_questions(
    questions: Sequence[PlannerQuestion], frameworks: Sequence[str], quick: bool
) -> Iterator[FrameworkQuestion]:
    """Yield every question under every framework, free and with each schedule pinned."""
    for question in questions:
        for framework in frameworks:
            for pins in pinned_schedules(quick):
                yield FrameworkQuestion(question, framework, pins)


def quick_questions(questions: Sequence[PlannerQuestion]) -> list[PlannerQuestion]:
    """Questions, at most three, for an answer in about a minute."""
    return [question for question in questions if question.name in QUICK]


def figures_header() -> str:
    """Names of the columns of `figures_line`."""
    return (
        f"{'question':16}{'framework':14}{'pins':30}{'cost s':>9}{'sim s':>9}{'':>8}"
        f"{'cost GiB':>10}{'laid out':>10}{'':>8}  plan"
    )


def figures_line(row: FiguresRow) -> str:
    """Row as it is printed."""
    compared, error = row.compared, row.time_error
    simulated = "" if compared.simulated_s is None else f"{compared.simulated_s:#.4g}"
    return (
        f"{row.question:16}{row.framework:14}{row.pins:30}{compared.cost_s:>#9.4g}{simulated:>9}"
        f"{'' if error is None else f'{error:+.1%}':>8}{compared.cost_bytes / GIB:>10.2f}"
        f"{compared.laid_out_bytes / GIB:>10.2f}{row.memory_error:>+8.1%}  {compared.plan}"
        f"{'  REFUSED' if compared.refused else ''}"
    )


def figures_summary(rows: Sequence[FiguresRow]) -> str:
    """Line that ends the table: errors of all plans, in absolute value."""
    times = [abs(row.time_error) for row in rows if row.time_error is not None] or [0.0]
    sizes = [abs(row.memory_error) for row in rows] or [0.0]
    refused = sum(bool(row.compared.refused) for row in rows)
    return (
        f"figures: {len(rows)} plans, time mean {fmean(times):.1%}, worst {max(times):.1%}, "
        f"memory mean {fmean(sizes):.1%}, worst {max(sizes):.1%}, refused {refused}"
    )


def pinned_steps(
    question: PlannerQuestion, framework: str, folder: Path
) -> Iterator[tuple[str, float | None]]:
    """Yield the simulated step of the free plan, then that under each of the textbook pins."""
    for pins in ({}, *TEXTBOOK_PINS):
        yield pins_text(pins), step_time_s(FrameworkQuestion(question, framework, pins), folder)


def faster_pins(steps: Sequence[tuple[str, float | None]]) -> list[str]:
    """Pins whose plan is faster than the free one, the first of `steps`, and by how much."""
    (_, free_s), *others = steps
    return [
        f"{text} {step_s / free_s - 1:+.1%}"
        for text, step_s in others
        if free_s and step_s and step_s < (1 - FASTER) * free_s
    ]
