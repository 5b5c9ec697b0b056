"""Reading of published measurements: a CSV file's layout, its rows, and numbers in them.

The layouts are told apart by their header; columns that a file leaves out are blank in every row,
but for those that its notes tell in words (`notes.py`).
"""

import csv
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from millrace.models.documents import FileError, read_text
from millrace.published.columns import NAMES
from millrace.published.columns import Row as Row
from millrace.published.notes import NAMED_COLUMNS, with_columns, with_named_columns
from millrace.published.question import InexpressibleError

BYTES_MAX = 2**24
ROWS_MAX = 10_000
"""Every row is planned and simulated: so many take hours. Published tables have hundreds."""
WHOLE_MAX = 10**15  # nothing that is counted here comes near
SHOWN = 40  # characters of a field that a refusal shows
LINE = "line"  # the key under which a row holds its line in the file
MALFORMED = "malformed"  # and under which one of another length than the header says so


class TableFormat(StrEnum):
    """Layout of a table: what its columns mean."""

    LANGUAGE = "language model"
    DLPERF = "DLPerf"
    NAMED = "named model"
    TESTS = "functional test"


# A file without these columns is not of the layout.
REQUIRED = {
    TableFormat.LANGUAGE: ("layers", "hidden", "heads", "seq_len", "gpu", "gpus", "global_batch"),
    TableFormat.DLPERF: ("model", "framework", "dtype", "batch_per_gpu", "nodes", "throughput"),
    TableFormat.NAMED: ("model", "gpu", "count", "gbs", "seq", "step_time_s", "source_file"),
    TableFormat.TESTS: ("test", "platform", "mem_alloc_bytes", "mem_max_bytes", "num-layers"),
}
# All the columns that are read, of which a file may leave out the others.
COLUMNS = {
    TableFormat.LANGUAGE: (
        *("source", "framework", "model", "layers", "hidden", "heads", "kv_heads", "ffn_hidden"),
        *("vocab", "seq_len", "gpu", "gpus", "gpus_per_node", "inter_node_net", "dp", "tp", "pp"),
        *("interleave", "cp", "ep", "zero", "sequence_parallel", "micro_batch", "global_batch"),
        *("recompute", "precision", "flash_attention", "schedule", "tokens_per_s_per_gpu"),
        *("iteration_time_s", "peak_mem_gb", *NAMES, "notes"),
    ),
    TableFormat.DLPERF: (
        *("model", "framework", "version", "dtype", "xla", "batch_per_gpu", "nodes"),
        *("gpus_per_node", "throughput", "unit", "source_path", "variant"),
    ),
    TableFormat.NAMED: (
        *("model", "gpu", "count", "tp", "pp", "cp", "ep", "etp", "vp", "fsdp", "mbs", "gbs"),
        *("seq", "precision", "tflops_per_gpu", "tokens_per_s_per_gpu", "step_time_s"),
        *("peak_mem_gb", "kind", "quality", "routing", "recompute", "dispatcher", "layout"),
        *("source_file", "framework", *NAMED_COLUMNS, "notes"),
    ),
    TableFormat.TESTS: (
        *("test", "platform", "gpus", "mem_alloc_bytes", "mem_max_bytes", "test_type"),
        "container",
        *("num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads"),
        *("group-query-attention", "num-query-groups", "seq-length", "micro-batch-size"),
        *("global-batch-size", "tensor-model-parallel-size", "pipeline-model-parallel-size"),
        *("num-layers-per-virtual-pipeline-stage", "pipeline-model-parallel-layout"),
        *("context-parallel-size", "expert-model-parallel-size", "expert-tensor-parallel-size"),
        *("num-experts", "moe-router-topk", "moe-ffn-hidden-size", "multi-latent-attention"),
        *("mtp-num-layers", "sequence-parallel", "use-distributed-optimizer", "use-megatron-fsdp"),
        *("data-parallel-sharding-strategy", "recompute-granularity", "recompute-modules"),
        *("fp8-format", "fp8-recipe", "bf16", "fp16", "cuda-graph-impl"),
        *("moe-token-dispatcher-type", "optimizer", "swiglu", "hybrid-override-pattern"),
        *("hybrid-layer-pattern", "optimizer-cpu-offload", "fine-grained-activation-offloading"),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of a file in its order, with every column of the layout; `tier` A where it has none."""

    layout: TableFormat
    columns: tuple[str, ...]  # of the file
    rows: tuple[Row, ...]


def read_table(path: Path) -> Table:
    """Read a CSV file of published measurements.

    Raises
    ------
    FileError
        The file cannot be read, or its header is of neither layout; names the columns it lacks.
    """
    content = read_text(path, "CSV file", bytes_max=BYTES_MAX)
    reader = csv.reader(content.decode("utf-8-sig").splitlines(keepends=True))
    try:
        header = tuple(next(reader, ()))
        layout = _layout(path, header)
        rows: list[Row] = []
        for values in reader:
            if len(rows) == ROWS_MAX:
                raise FileError(f"`{path}` has more than {ROWS_MAX:,} rows: give it in parts")
            if values:
                rows.append(_row(layout, header, values, reader.line_num))
    except csv.Error as error:
        raise FileError(f"`{path}` is not a CSV file: line {reader.line_num}: {error}") from None
    return Table(layout=layout, columns=header, rows=tuple(rows))


def sampled(table: Table, every: int) -> Table:
    """Table of every so many rows of tier A, the first of them included."""
    judged = [row for row in table.rows if row["tier"] == "A"]
    return replace(table, rows=tuple(judged[::every]))


def read(path: Path, tier: str = "A") -> list[Row]:
    """Rows of one tier, each with its line number as `line`."""
    return [row for row in read_table(path).rows if row["tier"] == tier]


def _layout(path: Path, header: tuple[str, ...]) -> TableFormat:
    missing = {layout: [n for n in names if n not in header] for layout, names in REQUIRED.items()}
    for layout, names in missing.items():
        if not names:
            return layout
    lacks = "; or ".join(f"{', '.join(n)} ({layout} layout)" for layout, n in missing.items())
    raise FileError(f"`{path}` is not a table of published measurements: its header lacks {lacks}")


def _row(layout: TableFormat, header: tuple[str, ...], values: list[str], line: int) -> Row:
    """Row by column; one of another length than the header's says so under `malformed`."""
    row = dict.fromkeys(header, "")
    row |= {name: value.strip() for name, value in zip(header, values, strict=False)}
    if layout is TableFormat.LANGUAGE:
        row = with_columns(row)
    elif layout is TableFormat.NAMED:
        row = with_named_columns(row)
    row = dict.fromkeys(COLUMNS[layout], "") | row
    if layout is TableFormat.NAMED:  # `owner/name (of a fork):path`
        row["source"] = row["source_file"].partition(":")[0].partition(" ")[0]
    if layout is TableFormat.TESTS:
        row["source"] = row.get("source", "").partition(":")[0]
    row[LINE] = str(line)
    if "tier" not in header:
        row["tier"] = "A"
    if len(values) != len(header):
        row[MALFORMED] = f"{len(values)} fields where the header has {len(header)}"
    return row


def check_whole(row: Row) -> None:
    """Refuse a row that has more or fewer fields than the header."""
    if MALFORMED in row:
        raise InexpressibleError(row[MALFORMED])


def whole_number(row: Row, field: str, blank: int | None = None) -> int:
    """Whole number in a row's field, at least 1; `blank` where there is nothing, if given.

    Raises
    ------
    InexpressibleError
        Names the field, what it holds and what was expected.
    """
    if blank is not None and not row.get(field, ""):
        return blank
    count = number(row, field)
    if count != int(count) or not 1 <= count <= WHOLE_MAX:
        raise _wrong(row, field, f"a whole number of at least 1 and at most {WHOLE_MAX:g}")
    return int(count)


def number(row: Row, field: str, blank: float | None = None) -> float:
    """Positive number in a row's field; `blank` where there is nothing, if given.

    Raises
    ------
    InexpressibleError
        Names the field, what it holds and what was expected.
    """
    text = row.get(field, "")
    if not text and blank is not None:
        return blank
    try:
        amount = float(text)
    except ValueError:
        raise _wrong(row, field, "a number") from None
    if not 0 < amount < float("inf"):
        raise _wrong(row, field, "a number above 0")
    return amount


def choice(row: Row, field: str, words: tuple[str, ...]) -> str:
    """Word in a row's field: blank or one of `words`.

    Raises
    ------
    InexpressibleError
        Names the field, what it holds and what was expected.
    """
    text = row.get(field, "")
    if text and text not in words:
        raise _wrong(row, field, f"one of {', '.join(words)}")
    return text


def _wrong(row: Row, field: str, expected: str) -> InexpressibleError:
    text = row.get(field, "")
    text = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
    content = f"is `{text}`" if text else "is blank"
    return InexpressibleError(f"{field} {content}: expected {expected}")
