"""Differences: pairs of rows of one source that are equal in every setting but one.

What one setting changes is a sharper test than either time: what both rows share cancels out.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

from millrace.published.reading import Row
from millrace.published.validation import Outcome, source

# Columns that say what ran; those that say what was measured, and from where, are not among them.
SETTINGS = (
    *("framework", "model", "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"),
    *("seq_len", "gpu", "gpus", "gpus_per_node", "inter_node_net", "dp", "tp", "pp", "interleave"),
    *("cp", "ep", "zero", "sequence_parallel", "micro_batch", "global_batch", "recompute"),
    *("precision", "flash_attention", "schedule"),
)
# What may differ -> the columns that change with it.
KINDS: dict[str, tuple[str, ...]] = {
    "recompute": ("recompute",),
    "sequence_parallel": ("sequence_parallel",),
    "interleave": ("interleave", "schedule"),
    "micro_batch": ("micro_batch",),
    "zero": ("zero",),
    "gpus": ("gpus", "gpus_per_node", "dp", "global_batch"),
}
# Keys in `notes` that change the time: rows that differ in one of them are no pair.
NOTED = re.compile(
    r"zero1=-?\d+|torch\.compile|eager|async ?tp|quant=[^;]*|fsdp_shard_group=\d+"
    r"|recompute_num_layers=\d+|alpha=[\d.]+|uneven layer split[^;]*|cuda_graph_\w+=[^;]*"
    r"|pack_sample_into_one=\w+|moe_a2a_overlap=\w+|mp_mode=\w+|precision_raw=\w+|parenthesised"
    r"|head_dim=\d+|experts=[^|]*|tokendrop|dropless|\d\d-\d\d(?=;)|PCIe/NUMA[^;]*"
    r"|zero_[23]|logical mesh[^;]*|pp-partition[^;]*|accumulating grads in fp32",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two rows that differ in one setting; ratios are of the second's step time to the first's."""

    kind: str
    first: Outcome
    second: Outcome
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Predicted over measured ratio, less one."""
        return self.predicted / self.measured - 1


def pairs(outcomes: Sequence[Outcome]) -> list[Pair]:
    """Return all pairs of expressed rows that differ in one setting, kind by kind."""
    found = []
    for kind, columns in KINDS.items():
        groups: dict[object, list[Outcome]] = defaultdict(list)
        for one in outcomes:
            if one.predicted is not None:
                groups[_shared(one.asked.row, kind, columns)].append(one)
        for group in groups.values():
            for first, second in combinations(group, 2):
                if first.asked.row[kind] != second.asked.row[kind]:
                    found.append(_pair(kind, first, second))
    return found


def _shared(row: Row, kind: str, columns: tuple[str, ...]) -> object:
    """What two rows of a kind of pair have in common."""
    settings = tuple(row[name] for name in SETTINGS if name not in columns)
    batch = int(row["global_batch"]) / int(row["gpus"]) if kind == "gpus" else 0.0
    noted = tuple(sorted(NOTED.findall(row["notes"])))
    return source(row), row["tier"], settings, batch, noted


def _pair(kind: str, first: Outcome, second: Outcome) -> Pair:
    assert first.predicted is not None, "only expressed rows are paired"
    assert second.predicted is not None, "only expressed rows are paired"
    return Pair(
        kind=kind,
        first=first,
        second=second,
        measured=second.asked.measured_s / first.asked.measured_s,
        predicted=second.predicted.step_time_s / first.predicted.step_time_s,
    )


def differences(found: Sequence[Pair]) -> dict[str, Any]:
    """Count and median error of the predicted ratio, of all pairs and of each kind."""
    kinds = {kind: [one for one in found if one.kind == kind] for kind in KINDS}
    return {
        **_figures(found),
        "kinds": {kind: _figures(group) for kind, group in kinds.items() if group},
    }


def _figures(found: Sequence[Pair]) -> dict[str, Any]:
    return {
        "pairs": len(found),
        "median_error": median(abs(one.error) for one in found) if found else None,
    }
