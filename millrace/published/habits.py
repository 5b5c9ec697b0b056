"""Habits: the software of a published row, with what the row says of how it was set.

A framework is one set of settings (`planner.clusters.software`). What a row's notes state beyond it
(captured launches, compilation, communication in pieces) changes a setting by a rule, the same for
every row that states it.
"""

from msgspec.structs import replace

from millrace.published.reading import Row
from planner.cluster import Software
from planner.clusters import framework
from planner.clusters.software import DEFAULT
from planner.errors import ClusterError

# Words of the notes that name another framework than the column does.
NAMED = {"(DeepSpeed)": "deepspeed-zero", "MaxText": "jax-xla"}

# Sources whose table has no such column: vTrain's measured Megatron-DeepSpeed.
UNSAID = {"vtrain": "megatron-deepspeed"}

TENSOR = ("all_gather", "all_reduce", "reduce_scatter")
TENSOR_IN_PIECES = ("TP comm overlap", "AsyncTP", "async TP")
EXPERTS_IN_PIECES = ("moe_a2a_overlap=True", "A2A overlap")

# Times as many launches are waited for where the all_to_all of a microbatch moves beside another's
# products and nothing is captured: layers are launched in parts, forward and backward in turns.
# Fitted on published runs, 2026-11; one of them is faster without.
IN_TURNS = 3

# Dispatchers that send a token once to each device and node (`Software.merges`).
MERGING = ("deepep", "hybridep")

NOTHING_OVERLAPS = "no comm overlap"

# A step captured as one CUDA graph is launched once; of one captured layer by layer about half of
# the launches stay (what is between the captured parts).
CAPTURED = ("full_iteration", "cuda_graph_impl=local")
CAPTURED_LAYERS, LEFT = "cuda_graph_impl=transformer_engine", 0.5

# Bytes that compiled code moves, of those of the same framework's plain code.
COMPILED, COMPILED_BYTES = "torch.compile", 0.7


def framework_name(row: Row) -> str:
    """The framework of a row: as its column says, but where its notes know better."""
    named = row.get("framework", "")
    if not named:
        heads = (name for head, name in UNSAID.items() if row.get("source", "").startswith(head))
        return next(heads, DEFAULT)
    if named == "megatron-2021" and "(DeepSpeed)" in row.get("notes", ""):
        return NAMED["(DeepSpeed)"]
    return NAMED["MaxText"] if "MaxText" in row.get("notes", "") else named


def settings(name: str) -> Software:
    """Settings of a framework, the default ones where it has none."""
    try:
        return framework(name)
    except ClusterError:
        return framework(DEFAULT)


def as_set(software: Software, row: Row) -> Software:
    """A framework's settings, with what the row's notes say of how it was set."""
    notes = row.get("notes", "")
    pieces, routing = set(software.pieces), software.routing
    if "experts=" in notes:
        pieces -= set(TENSOR)  # recipes of experts leave it off
    if any(words in notes for words in TENSOR_IN_PIECES):
        pieces |= set(TENSOR)
    if any(words in notes for words in EXPERTS_IN_PIECES):
        pieces.add("all_to_all")
        if not any(words in notes for words in (*CAPTURED, CAPTURED_LAYERS)):
            routing *= IN_TURNS
    host_ns, fusion, overlap = software.host_ns, software.fusion, software.overlap
    if any(words in notes for words in CAPTURED):
        host_ns = 0
    elif CAPTURED_LAYERS in notes:
        host_ns = round(LEFT * host_ns)
    if COMPILED in notes:
        fusion *= COMPILED_BYTES
    if NOTHING_OVERLAPS in notes:
        pieces, overlap = set(), 0.0
    return replace(
        software,
        host_ns=host_ns,
        overlap=overlap,
        fusion=fusion,
        pieces=tuple(sorted(pieces)),
        routing=routing,
        merges=any(words in notes.lower() for words in MERGING),
    )
