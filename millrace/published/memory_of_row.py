"""A row's memory: its framework's, with the row's settings, and the figure its source prints."""

from msgspec.structs import replace

from millrace.planner.frameworks.framework_memory import memory_of_run
from millrace.planner.frameworks.framework_tables import framework_memory
from millrace.planner.frameworks.peak_memory import Figure, MemoryHabit
from millrace.published.columns import words
from millrace.published.framework_of_row import flag, framework_name, settings, state_ranks
from millrace.published.reading import Row, choice, whole_number

# Where heads are split over context parallel ranks by all-to-all, attention's result is kept before
# and after it (Transformer Engine since 2.8; SimuMax, core/config.py, read 2026-11).
SPLIT_HEADS, RESULT_TWICE = "a2a", ("attention", 2.0)


def keeping(row: Row) -> MemoryHabit | None:
    """Memory habit of a row's framework, and the figure its source prints; None if it prints none.

    Raises
    ------
    InexpressibleError
        A degree of the row is no number, or a column holds no word that it may hold.
    """
    if not row.get("peak_mem_gb", ""):
        return None
    stages = whole_number(row, "pp", 1)
    second = settings(framework_name(row)).selective.every_second
    memory = memory_of_run(
        framework_memory(framework_name(row)),
        precision=row["precision"],
        tp=whole_number(row, "tp", 1),
        pp=stages,
        loss=choice(row, "loss", words("loss")),
    )
    if choice(row, "cp_comm", words("cp_comm")) == SPLIT_HEADS:
        memory = replace(memory, byte_multiples=(*memory.byte_multiples, RESULT_TWICE))
    zero = int(row["zero"]) if row["zero"] in ("0", "1", "2", "3") else None
    if stages > 1 and memory.pipelined_zero is not None:
        zero = memory.pipelined_zero
    return MemoryHabit(
        framework=memory,
        zero=zero,
        zero_ranks=state_ranks(row) or None,
        # Under sequence parallelism norms are gathered again for the backward pass (Korthikanti et
        # al., 2022, section 4.2.2); keys and values travel round context parallel ranks again.
        gathers_again=row["sequence_parallel"] == "1" or whole_number(row, "cp", 1) > 1,
        unread=second and row.get("recompute") == "selective" and not flag(row, "compiled"),
        figure=Figure(choice(row, "peak_figure", words("peak_figure")) or Figure.ALLOCATED),
    )
