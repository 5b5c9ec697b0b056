"""Figures of plans as the search thinks of them, as they are laid out, and as they are simulated.

Every plan that a search compiles is one row: its step time by the planner's cost beside the
simulated one, and the bytes that the cost counts on the stage with the least room left beside those
that the compiler lays out there. A plan that needs more than its limit once compiled is refused and
has no simulated time. Beside it stand textbook pins, none of which should give a faster plan than a
search without them.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.planner_questions import DEFAULT, MIXED, MIXED_TOML, Question
from millrace import api
from millrace.planner.cluster import Cluster
from millrace.planner.clusters import parse_cluster
from millrace.planner.errors import InfeasibleError
from millrace.planner.plan import Plan
from millrace.planner.schedules import SCHEDULES
from millrace.planner.search.report.record import Compared, Record

Pinned = dict[str, str | int]

GIB = 2**30
QUICK = ("llama2-7b", "gpt3-13b", "mixtral-8x7b")  # with one pipeline of each kind
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FiguresRow:
    """A plan that a search compiled, and the question that it was asked; `pins` as text."""

    question: str
    framework: str
    pins: str
    compared: Compared

    @property
    def time_error(self) -> float | None:
        """Time by the cost over simulated time, less one; None where nothing was simulated."""
        simulated_s = self.compared.simulated_s
        return None if simulated_s is None else self.compared.cost_s / simulated_s - 1

    @property
    def memory_error(self) -> float:
        """Bytes by the cost over those laid out, less one."""
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


def question_rows(
    question: Question, framework: str, pins: Pinned, folder: Path
) -> list[FiguresRow]:
    """Rows of every plan that one search compiled, the chosen one last; none where none fits."""
    record = Record()
    # Without a plan, what was compiled before says enough.
    with suppress(InfeasibleError):
        _planned(question, framework, pins, folder, record)
    return [
        FiguresRow(
            question=question.name, framework=framework, pins=pins_text(pins), compared=compared
        )
        for compared in record.compared
    ]


def step_time_s(question: Question, framework: str, pins: Pinned, folder: Path) -> float | None:
    """Simulated step time of the plan that a search returns; None where there is none."""
    with suppress(InfeasibleError):
        plan = _planned(question, framework, pins, folder, Record())
        return float(plan.figures["step_time_s"])
    return None


def pins_text(pins: Pinned) -> str:
    """Pins in one line, `free` where there are none."""
    return " ".join(f"{name} {value}" for name, value in pins.items()) or "free"


def _planned(
    question: Question,
    framework: str,
    pins: Pinned,
    folder: Path,
    record: Record,
) -> Plan:
    model, options = question.arguments.split()[0], _options(question)
    return api.search(
        model,
        _cluster(options["--cluster"], framework, folder),
        int(options["--global-batch"]),
        seq_len=int(options["--seq-len"]),
        precision=options.get("--precision", "bf16"),
        memory_limit_bytes=_bytes(options.get("--memory-limit")),
        pins=pins,
        record=record,
    )


def _options(question: Question) -> dict[str, str]:
    words = question.arguments.split()[1:]
    return dict(zip(words[::2], words[1::2], strict=True))


def _bytes(text: str | None) -> int | None:
    return None if text is None else int(text.removesuffix("GiB")) * GIB


def _cluster(name: str, framework: str, folder: Path) -> Cluster:
    if name == MIXED:
        (folder / MIXED).write_text(MIXED_TOML, "utf-8")
        name = str(folder / MIXED)
    return api.driven(parse_cluster(name), None if framework == DEFAULT else framework)


def figures_rows(
    questions: Sequence[Question], frameworks: Sequence[str], quick: bool, folder: Path
) -> Iterator[FiguresRow]:
    """Rows of every question under every framework, free and with each schedule pinned."""
    for question in questions:
        for framework in frameworks:
            for pins in pinned_schedules(quick):
                yield from question_rows(question, framework, pins, folder)


def quick_questions(questions: Sequence[Question]) -> list[Question]:
    """Three of the questions, for an answer in about a minute."""
    return [question for question in questions if question.name in QUICK]


def figures_header() -> str:
    """Names of the columns of `figures_line`."""
    return (
        f"{'question':16}{'framework':14}{'pins':30}{'cost s':>9}{'sim s':>9}{'':>8}"
        f"{'cost GiB':>10}{'laid out':>10}{'':>8}  plan"
    )


def figures_line(row: FiguresRow) -> str:
    """A row as it is printed."""
    compared, error = row.compared, row.time_error
    simulated = "" if compared.simulated_s is None else f"{compared.simulated_s:#.4g}"
    return (
        f"{row.question:16}{row.framework:14}{row.pins:30}{compared.cost_s:>#9.4g}{simulated:>9}"
        f"{'' if error is None else f'{error:+.1%}':>8}{compared.cost_bytes / GIB:>10.2f}"
        f"{compared.laid_out_bytes / GIB:>10.2f}{row.memory_error:>+8.1%}  {compared.plan}"
        f"{'  REFUSED' if compared.refused else ''}"
    )


def figures_summary(rows: Sequence[FiguresRow]) -> str:
    """The last line: errors of all plans, in absolute value."""
    times = [abs(row.time_error) for row in rows if row.time_error is not None] or [0.0]
    sizes = [abs(row.memory_error) for row in rows] or [0.0]
    refused = sum(bool(row.compared.refused) for row in rows)
    return (
        f"figures: {len(rows)} plans, time mean {fmean(times):.1%}, worst {max(times):.1%}, "
        f"memory mean {fmean(sizes):.1%}, worst {max(sizes):.1%}, refused {refused}"
    )


def pinned_steps(
    question: Question, framework: str, folder: Path
) -> Iterator[tuple[str, float | None]]:
    """The simulated step of the free plan, then that under each of the textbook pins."""
    for pins in ({}, *TEXTBOOK_PINS):
        yield pins_text(pins), step_time_s(question, framework, pins, folder)


def faster_pins(steps: Sequence[tuple[str, float | None]]) -> list[str]:
    """Pins whose plan is faster than the free one, the first of `steps`, and by how much."""
    (_, free_s), *others = steps
    return [
        f"{text} {step_s / free_s - 1:+.1%}"
        for text, step_s in others
        if free_s and step_s and step_s < (1 - FASTER) * free_s
    ]
