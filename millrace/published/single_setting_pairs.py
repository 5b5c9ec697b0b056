"""Pairs of rows of one source that are equal in every setting but one, and what that one changes.

What one setting changes is a sharper test than either time: what both rows share cancels out.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

from millrace.published.columns import (
    MODEL_COLUMNS,
    OVER_ALL,
    SOFTWARE_COLUMNS,
    UNPLANNED_COLUMNS,
)
from millrace.published.reading import Row
from millrace.published.validation import RowOutcome, source

# These columns say what ran; those that say what was measured, and from where, are left out.
SETTINGS = (
    *("framework", "model", "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"),
    *("seq_len", "gpu", "gpus", "gpus_per_node", "inter_node_net", "dp", "tp", "pp", "interleave"),
    *("cp", "ep", "zero", "sequence_parallel", "micro_batch", "global_batch", "recompute"),
    *("precision", "flash_attention", "schedule"),
    *(column.name for column in (*MODEL_COLUMNS, *SOFTWARE_COLUMNS, *UNPLANNED_COLUMNS)),
)
# The setting that may differ -> the columns that change with it.
KINDS: dict[str, tuple[str, ...]] = {
    "recompute": ("recompute",),
    "sequence_parallel": ("sequence_parallel",),
    "interleave": ("interleave", "schedule"),
    "micro_batch": ("micro_batch",),
    "zero": ("zero",),
    "gpus": ("gpus", "gpus_per_node", "dp", "global_batch", "shard_group"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPair:
    """Two rows that differ in one setting; ratios are of the second's step time to the first's."""

    kind: str
    first: RowOutcome
    second: RowOutcome
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Ratio that is predicted, over the measured one, less one."""
        return self.predicted / self.measured - 1


def pairs(outcomes: Sequence[RowOutcome]) -> list[RowPair]:
    """Pairs of expressed rows that differ in one setting, kind by kind."""
    row_pairs = []
    for kind, columns in KINDS.items():
        groups: dict[object, list[RowOutcome]] = defaultdict(list)
        for outcome in outcomes:
            if outcome.predicted is not None:
                groups[shared_settings(outcome.row_question.row, kind, columns)].append(outcome)
        for group in groups.values():
            for first, second in combinations(group, 2):
                if first.row_question.row[kind] != second.row_question.row[kind]:
                    row_pairs.append(_pair(kind, first, second))
    return row_pairs


def shared_settings(row: Row, kind: str, columns: tuple[str, ...]) -> object:
    """Key that is equal for two rows that make a pair of a kind.

    Parameters
    ----------
    row : Row
        A row of a language model.
    kind : str
        The setting that may differ.
    columns : tuple of str
        Columns that change with it.
    """
    settings = tuple(row.get(name, "") for name in SETTINGS if name not in columns)
    share = (int(row["global_batch"]) / int(row["gpus"]), _node_group(row))
    return source(row), row["tier"], settings, share if kind == "gpus" else ()


def _node_group(row: Row) -> str:
    """Group of replicas that share state, where within a node; a larger one grows with the job."""
    group, per_node = row.get("shard_group", ""), row["gpus_per_node"]
    within = group.isdigit() and per_node.isdigit() and int(group) <= int(per_node)
    return group if within or not group else OVER_ALL


def _pair(kind: str, first: RowOutcome, second: RowOutcome) -> RowPair:
    assert first.predicted is not None, "only expressed rows are paired"
    assert second.predicted is not None, "only expressed rows are paired"
    first_s, second_s = first.row_question.measured_s, second.row_question.measured_s
    assert first_s, "only rows with a step time are paired"
    assert second_s, "only rows with a step time are paired"
    return RowPair(
        kind=kind,
        first=first,
        second=second,
        measured=second_s / first_s,
        predicted=second.predicted.step_time_s / first.predicted.step_time_s,
    )


def differences(row_pairs: Sequence[RowPair]) -> dict[str, Any]:
    """Count and median error of the predicted ratio, of all pairs and of each kind."""
    kinds = {kind: [pair for pair in row_pairs if pair.kind == kind] for kind in KINDS}
    return {
        **_figures(row_pairs),
        "kinds": {kind: _figures(group) for kind, group in kinds.items() if group},
    }


def _figures(row_pairs: Sequence[RowPair]) -> dict[str, Any]:
    return {
        "pairs": len(row_pairs),
        "median_error": median(abs(pair.error) for pair in row_pairs) if row_pairs else None,
    }
