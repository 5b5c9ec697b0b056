"""Side by side: the other simulators, a constant utilisation and Millrace on the same rows.

Run `python -m benchmarks.simulator.peers CSV [--every K] [--no-millrace] [--processes P]` from the
root of the repository.

CSV is a table of published training runs (the language layout of `millrace validate`); judged are
the dense rows of tier A, every K-th of them. Each peer that is installed is asked in its own words:
settings as shipped, nothing fitted, its formulas as they are; a row that it has no words for is
left out of its line and counted by reason. The last column is Millrace's mean error on just the
rows of the line.

Of the peers that predict training one is on PyPI: `pip install --no-deps llm-analysis==0.2.2` and
`pip install fire` (its pins forbid today's transformers, which it does not need here); it is no
requirement of Millrace. The other lines are quoted, with their source, and are not run.

A constant utilisation (model FLOPs per second over the precision's peak) is the plainest predictor:
one per framework, GPU and precision. It is fitted on all rows of the file that are judged or could
be, and printed once as fitted and once with each source predicted from the others. Millrace's line
has the figures of its catalogue, which are fitted on published runs too; what it is off by on
sources left out is told by `millrace validate --leave-one-source-out`.

Times are of the processor, per prediction; Millrace's includes making the plan; P processes
share its rows. Results are also written to `benchmarks/results/peers.json`.
"""

import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import typer

from millrace.planner.costs.op_batch import peak_flops_per_s
from millrace.planner.errors import ClusterError
from millrace.published.language import framework_name
from millrace.published.question import InexpressibleError
from millrace.published.reading import LINE, Row, Table, TableFormat, read_table
from millrace.published.summary import Figures, figures
from millrace.published.validation import RowQuestion, ask, source, validate

RESULTS = Path(__file__).parents[1] / "results" / "peers.json"
REPORTED_REASONS = 5

# Tier A's dense rows of the published runs, each peer as its repository ships it but where said, on
# two cores, 2026-11: rows, mean, median, share within 10 %, ms.
QUOTED = (
    ("Calculon, rows that it can express", 129, 0.24, 0.24, 0.11, "2–4"),
    ("Calculon, stretched to all rows", 534, 0.50, 0.27, 0.16, ""),
    ("llm-analysis, two bugs worked around", 524, 0.19, 0.15, 0.27, "0.3"),
    ("LLM Cluster Simulator", 534, 0.22, 0.21, 0.30, "0.04"),
    ("SimuMax, device files made for it (ms: up to 30 s)", 489, 0.19, 0.14, 0.37, "45"),
)
# All of vTrain's measurements (109 runs over several nodes, 1,440 on one node), mean errors, same
# way and date; vTrain's own are those of its paper.
QUOTED_VTRAIN = (
    ("one constant utilisation, fitted", 0.172, 0.479),
    ("Calculon (25 GB/s per GPU between nodes)", 0.144, 0.389),
    ("Calculon (12.5 GB/s, as its configuration says)", 0.184, 0.389),
    ("llm-analysis, efficiency 0.45", 0.193, 0.566),
    ("LLM Cluster Simulator", 0.228, 0.464),
    ("vTrain, with kernel profiles (its paper)", 0.147, 0.084),
)
# The tools claim this of themselves, on their own sets.
CLAIMED = (
    "Calculon 3.65 % (Megatron's selective-recompute runs, reproduced)",
    "SimuMax 5.6 % (43 B200 rows) and 1.5 % (30 A100-PCIe rows), with measured shapes",
    "Aceso 2.7 %, Primus 5–9 %, SimAI 1.9 %, Proteus 3.0 %, Charon under 5.4 %: their claims",
)
# The others are not run here for these reasons (PyPI and npm, read 2026-11).
ABSENT = (
    "not on a registry: Calculon (PyPI's `calculon` is another program), SimuMax, vTrain, SimAI, "
    "Aceso (another program), Primus (another program), LLM Cluster Simulator",
    "on PyPI, but no predictor of a training step: aiconfigurator (serving), astra-sim-sdk (a "
    "client of a server that is not on a registry)",
)


class Peer(Protocol):
    """Predictor that is not Millrace."""

    name: str

    def step_time_s(self, asked: RowQuestion) -> float:
        """Predict a row; raises InexpressibleError where the peer has no words for it."""


class LlmAnalysis:
    """Predictor llm-analysis, its `training` analysis, at one of the efficiencies it speaks of."""

    # One is left as shipped, the other is what its constant.py says that Megatron-LM reaches.
    EFFICIENCIES = (None, 0.5)

    def __init__(self, efficiency: float | None) -> None:
        self._config = import_module("llm_analysis.config")
        self._analysis = import_module("llm_analysis.analysis")
        import_module("llm_analysis.logger").logger.setLevel("ERROR")
        self._efficiency = efficiency
        said = "as shipped" if efficiency is None else f"efficiency {efficiency:g}"
        self.name = f"llm-analysis {version('llm-analysis')}, {said}"

    def step_time_s(self, asked: RowQuestion) -> float:
        """Predict a row; raises InexpressibleError where the peer has no words for it."""
        row, pins = asked.row, asked.pins
        if (pins.cp or 1) > 1:
            raise InexpressibleError("context parallelism")
        if row["zero"] == "3-hybrid":
            raise InexpressibleError("zero 3 inside a node")
        try:
            summary = self._analyser(asked).training(
                batch_size_per_gpu=pins.micro_batch,
                global_batch_size=int(row["global_batch"]),
                seq_len=int(row["seq_len"]),
                activation_recomputation=self._analysis.ActivationRecomputation[
                    (pins.recompute or "none").upper()
                ],
                ds_zero=self._analysis.DSZeRO(int(row["zero"] or 0)),
                flash_attn=row["flash_attention"] != "0",
            )
        except (AssertionError, ValueError, ZeroDivisionError) as error:
            raise InexpressibleError(f"refused: {str(error) or type(error).__name__}") from None
        return float(summary["latency_per_iter"])

    def _analyser(self, asked: RowQuestion) -> Any:
        row, pins, config = asked.row, asked.pins, self._config
        tp = pins.tp or 1
        ffn, hidden = int(row["ffn_hidden"]), int(row["hidden"])
        model = config.ModelConfig(
            name=row["model"],
            num_layers=int(row["layers"]),
            n_head=int(row["heads"]),
            hidden_dim=hidden,
            vocab_size=int(row["vocab"]),
            max_seq_len=int(row["seq_len"]),
            num_key_value_heads=int(row.get("kv_heads") or row["heads"]),
            ffn_embed_dim=ffn,
            expansion_ratio=ffn / hidden,
        )
        narrow = "fp8" in row["precision"]  # the only word it has for products in eight bits
        return self._analysis.LLMAnalysis(
            model,
            self._gpu(asked),
            config.get_dtype_config_by_name("w8a8e16" if narrow else "w16a16e16"),
            config.ParallelismConfig(
                tp_size=tp,
                pp_size=pins.pp or 1,
                dp_size=pins.dp or 1,
                sp_size=tp if pins.sequence_parallel else 1,
            ),
            flops_efficiency=self._efficiency,
        )

    def _gpu(self, asked: RowQuestion) -> Any:
        """Device by its own file, or by the data sheet's figures where it has none."""
        assert asked.cluster is not None
        device, name = asked.cluster.device, asked.row["gpu"]
        if name in self._config.gpu_configs:
            return self._config.gpu_configs[name]
        return self._config.GPUConfig(
            name=name,
            mem_per_GPU_in_GB=device.memory_bytes / 1e9,
            hbm_bandwidth_in_GB_per_sec=device.memory_bandwidth_bytes_per_s / 1e9,
            intra_node_bandwidth_in_GB_per_sec=asked.cluster.intra_node.bandwidth_bytes_per_s / 1e9,
            intra_node_min_message_latency=asked.cluster.intra_node.latency_ns / 1e9,
            inter_node_bandwidth_in_GB_per_sec=asked.cluster.inter_node.bandwidth_bytes_per_s / 1e9,
            peak_fp16_TFLOPS=device.flops_per_s["bf16"] / 1e12,
            peak_i8_TFLOPS=device.flops_per_s.get("fp8", 0.0) / 1e12,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerErrors:
    """Errors of a predictor, and of Millrace on the same rows, where it ran."""

    name: str
    errors: Figures
    ms: float | None = None
    left_out: dict[str, int]
    millrace: Figures | None = None


Predictions = dict[str, float]  # seconds by a row's line in the file


def installed(say: Callable[[str], None] = print) -> list[Peer]:
    """Peers that can be imported; those that cannot are named to `say`."""
    try:
        return [LlmAnalysis(each) for each in LlmAnalysis.EFFICIENCIES]
    except (ImportError, PackageNotFoundError) as error:
        say(f"llm-analysis is not installed ({error}): skipped")
        return []


def dense(table: Table) -> list[RowQuestion]:
    """Rows of tier A without experts that can be asked at all."""
    rows = [row for row in table.rows if row["tier"] == "A" and not row.get("experts")]
    return [
        question for question in (ask(row, table.layout) for row in rows) if _has_peak(question)
    ]


def _has_peak(asked: RowQuestion) -> bool:
    """True if the row can be asked, on a device that has its precision."""
    try:
        return asked.question is not None and _peak_flops_per_s(asked) > 0
    except ClusterError:
        return False


def model_flops(asked: RowQuestion) -> float:
    """FLOPs of a step without recomputation: 6 per weight and token, and attention's squares.

    Chowdhery et al., "PaLM", 2022, appendix B, with key and value heads and gates as the row's.
    """
    assert asked.question is not None
    model, batch = asked.question.model, asked.question.global_batch
    layers, hidden, heads, ffn, vocab = (
        int(model.config[name]) for name in ("layers", "hidden", "heads", "ffn_hidden", "vocab")
    )
    shared = int(model.config.get("kv_heads", heads)) / heads
    matrices = 3 if model.config.get("gated", model.family != "gpt") else 2
    weights = layers * ((2 + 2 * shared) * hidden**2 + matrices * hidden * ffn) + hidden * vocab
    return batch * model.seq_len * (6 * weights + 12 * layers * hidden * model.seq_len)


def utilisation(asked: RowQuestion) -> float:
    """Measured model FLOPs per second, over the peak of the row's devices."""
    return model_flops(asked) / asked.measured_s / _peak_flops_per_s(asked)


def _peak_flops_per_s(asked: RowQuestion) -> float:
    assert asked.question is not None
    cluster, precision = asked.question.cluster, asked.question.model.precision
    return cluster.devices * peak_flops_per_s(cluster.device, precision)


def groups(row: Row) -> tuple[tuple[str, ...], ...]:
    """Groups that a row shares its constant with, from the narrowest: an empty one gives way."""
    gpu, precision = row["gpu"], row["precision"]
    return ((framework_name(row), gpu, precision), (gpu, precision), (precision,), ())


def constants(
    references: Sequence[RowQuestion], wanted: Sequence[RowQuestion], leaving: bool
) -> Predictions:
    """Predict rows by the median utilisation of their group, of other sources only if `leaving`."""
    utilisations: dict[tuple[str, ...], list[tuple[str, float]]] = defaultdict(list)
    for question in references:
        for group in groups(question.row):
            utilisations[group].append((source(question.row), utilisation(question)))
    predictions: Predictions = {}
    for question in wanted:
        for group in groups(question.row):
            others = [
                u for who, u in utilisations[group] if not leaving or who != source(question.row)
            ]
            if others:
                peak = _peak_flops_per_s(question)
                predictions[question.row[LINE]] = model_flops(question) / median(others) / peak
                break
    return predictions


def asked_of(peer: Peer, wanted: Sequence[RowQuestion]) -> tuple[Predictions, Counter[str], float]:
    """Predictions of a peer, its refusals by reason, and its milliseconds per prediction."""
    predictions: Predictions = {}
    refused: Counter[str] = Counter()
    spent_ns = 0
    for question in wanted:
        began = time.process_time_ns()
        try:
            predictions[question.row[LINE]] = peer.step_time_s(question)
            spent_ns += time.process_time_ns() - began
        except InexpressibleError as error:
            refused[str(error)] += 1
    return predictions, refused, spent_ns / 1e6 / max(1, len(predictions))


def millrace_of(
    table: Table, wanted: Sequence[RowQuestion], processes: int = 1
) -> tuple[Predictions, Counter[str], float]:
    """Millrace's own predictions, in the terms of `asked_of`."""

    def report_progress(done: int, of: int) -> None:
        print(f"Millrace: {done} of {of}", end="\n" if done == of else "\r", file=sys.stderr)

    began_s = sum(os.times()[:4])  # of this process and of those that it waited for
    rows = tuple(question.row for question in wanted)
    outcomes = validate(replace(table, rows=rows), processes=processes, told=report_progress)
    spent_s = sum(os.times()[:4]) - began_s
    predicted_lines = [(outcome.row_question.row[LINE], outcome.predicted) for outcome in outcomes]
    predictions = {
        line: predicted.step_time_s for line, predicted in predicted_lines if predicted is not None
    }
    refused = Counter(
        outcome.reason.split(": ", 1)[-1] for outcome in outcomes if outcome.predicted is None
    )
    return predictions, refused, spent_s * 1e3 / max(1, len(predictions))


def errors(
    predictions: Predictions, wanted: Sequence[RowQuestion], only: Predictions | None = None
) -> Figures:
    """Errors of predictions, of the rows in `only` where that is given."""
    return figures(
        predictions[question.row[LINE]] / question.measured_s - 1
        for question in wanted
        if question.row[LINE] in predictions and (only is None or question.row[LINE] in only)
    )


def lines(
    table: Table, every: int, peers: Sequence[Peer], millrace: bool, processes: int = 1
) -> list[PeerErrors]:
    """Lines of the table, one per predictor, over every so many dense rows."""
    questions = dense(table)
    wanted = questions[::every]
    nothing: tuple[Predictions, Counter[str], float] = ({}, Counter(), 0.0)
    ours, refused, ms = millrace_of(table, wanted, processes) if millrace else nothing

    def line(
        name: str, predictions: Predictions, left: Counter[str], ms: float | None
    ) -> PeerErrors:
        return PeerErrors(
            name=name,
            errors=errors(predictions, wanted),
            ms=ms,
            left_out=dict(left.most_common()),
            millrace=errors(ours, wanted, predictions) if millrace else None,
        )

    told = [line("Millrace, its catalogue's fitted figures", ours, refused, ms)] if millrace else []
    for said, leaving in (("fitted on these sources", False), ("each source left out", True)):
        predictions = constants(questions, wanted, leaving)
        told.append(line(f"one constant utilisation, {said}", predictions, Counter(), None))
    return told + [line(peer.name, *asked_of(peer, wanted)) for peer in peers]


def drawn(peer_lines: Sequence[PeerErrors]) -> list[str]:
    """Table as lines of text, with what was left out and what is quoted below it."""
    told = [_columns("predictor", "rows", "mean", "median", "in 10 %", "ms each", "Millrace")]
    for line in peer_lines:
        e, of_millrace = line.errors, line.millrace
        shares = [_percent(share) for share in (e.mape, e.median_error, e.within_10_percent)]
        ms = "" if line.ms is None else f"{line.ms:,.0f}" if line.ms >= 100 else f"{line.ms:.2g}"
        told.append(
            _columns(
                line.name,
                str(e.rows),
                *shares,
                ms,
                _percent(of_millrace.mape) if of_millrace else "",
            )
        )
    for line in peer_lines:
        for reason, count in list(line.left_out.items())[:REPORTED_REASONS]:
            told.append(f"  {line.name} leaves out {count}: {reason}")
    told += ["", "Not run here. The same kind of rows, measured in November 2026 (repositories):"]
    for name, rows, *shares, ms in QUOTED:
        told.append(_columns(name, str(rows), *map(_percent, shares), ms, ""))
    told.append("Mean errors on vTrain's 109 runs over several nodes and 1,440 on one node:")
    for name, *shares in QUOTED_VTRAIN:
        told.append(_columns(name, "", *(f"{share:.1%}" for share in shares)))
    told += ["On their own sets:", *(f"  {claim}" for claim in CLAIMED)]
    return [*told, *ABSENT]


def _columns(name: str, *cells: str) -> str:
    return f"{name:52}" + "".join(f"{cell:>9}" for cell in cells)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def main(csv: Path, every: int = 1, millrace: bool = True, processes: int = 1) -> None:
    """Print the table of CSV and write it as JSON."""
    if not csv.exists():
        print(f"no table `{csv}`: the peers are not compared")
        return
    table = read_table(csv)
    if table.layout is not TableFormat.LANGUAGE:
        raise typer.BadParameter(f"`{csv}` is of the {table.layout} layout: the peers know none")
    peer_lines = lines(table, every, installed(), millrace, processes)
    print("\n".join(drawn(peer_lines)))
    document = {"table": csv.name, "every": every, "lines": [asdict(line) for line in peer_lines]}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
