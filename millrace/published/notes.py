"""Notes: the columns of a row whose table has none of them, filled from the words of its notes.

Nothing else reads notes, and of a table that has the columns not even this does. Each rule is the
same for all rows whose notes have the words. `with_named_columns` does so for named models.
"""

import re
from math import prod

from millrace.planner.frameworks.capabilities import DISPATCHERS
from millrace.published.columns import NAMES, OVER_ALL, Row

DIGITS_MAX = 15  # of a number that is multiplied; a longer one is refused where it is read

# Words of the notes that name another framework than the column does.
NAMED = {"(DeepSpeed)": "deepspeed-zero", "MaxText": "jax-xla"}

# Sources whose table has no column for it: vTrain's measured Megatron-DeepSpeed.
UNSAID = {"vtrain": "megatron-deepspeed"}

# Latent attention is DeepSeek-V2's and V3's, and of what follows them: 64 turned and 128 other
# features of a head; ranks where notes have none (arXiv 2412.19437, section 4.2, read 2026-11).
LATENT = {"head_dim": "192", "rotary_dims": "64", "value_dim": "128"}
KV_LORA, Q_LORA = "512", "1536"

TENSOR_OVERLAP = ("TP comm overlap", "AsyncTP", "async TP")
EXPERT_OVERLAP = ("moe_a2a_overlap=True", "A2A overlap")
CAPTURED_STEP = ("full_iteration", "cuda_graph_impl=local")
CAPTURED_LAYERS = "cuda_graph_impl=transformer_engine"
COMPILED = "torch.compile"

# Gradients in bfloat16 are summed as they come in NVIDIA's recipes (`grad_sync_dtype=bf16` in
# examples/training of NeMo-Framework-Launcher, 2024, and `grad_reduce_in_fp32 = False` in
# scripts/performance of NeMo and Megatron-Bridge; read 2026-11).
NARROW_GRADIENTS, WIDE_GRADIENTS = ("NeMo", "recipe "), "fp32 grad"

# Replicas among which storage is split: ZeRO-1 in groups, FSDP in groups, MaxText's mesh.
GROUPS = (
    re.compile(r"zero1=(\d+)"),
    re.compile(r"fsdp_shard_group=(\d+)"),
    re.compile(r"fsdp (\d+) in node x dcn fsdp (\d+)"),
)

# torchtitan compiled its loss from October to December 2024 (pull requests 642 and 755) and again
# in 2025 (by April: pull request 1033); the memory that it published in 2024 is of 26 December.
LOSS_COMPILED_SINCE = 2025

# Figures of memory that the published runs of a framework print, where not what is allocated.
PEAK_FIGURES = {
    "megatron-deepspeed": "device",
    "nanotron": "reserved",
    "pytorch-fsdp": "reserved",
}

# Keys that change the time and have no column of their own.
VARIANT = re.compile(
    r"eager|quant=[^;]*|uneven layer split[^;]*|cuda_graph_\w+=[^;]*"
    r"|pack_sample_into_one=\w+|mp_mode=\w+|precision_raw=\w+|parenthesised"
    r"|experts=[^|]*|tokendrop|dropless|\d\d-\d\d(?=;)|PCIe/NUMA[^;]*"
    r"|zero_[23]|logical mesh[^;]*|pp-partition[^;]*|accumulating grads in fp32",
    re.IGNORECASE,
)

# Words of a named model's notes, and what they say in its columns.
NAMED_WORDS = {
    "full CG": ("captured", "step"),
    "partial CG": ("captured", "layers"),
    "EP overlap": ("expert_overlap", "1"),
    "muon": ("optimizer", "muon"),
}
ROUTINGS = {"balanced": r"balanced gate|forced? balance|force-balanced", "natural": "natural"}
LEFT_OUT = ("activation offload", "paged stash")  # words of what no plan has
NAMED_COLUMNS = ("captured", "expert_overlap", "optimizer", "left_out")


def with_columns(row: Row) -> Row:
    """Row with its columns filled from its notes; as it is where it has any of them already."""
    if any(name in row for name in NAMES):
        return row
    framework, notes = _framework(row), row.get("notes", "")
    experts = _digits(notes, r"experts=(\d+)")
    return row | {
        **dict.fromkeys(NAMES, ""),
        "framework": framework,
        **_attention(notes),
        "gated": "0" if "2-matrix" in notes else "",
        **(_experts(notes, experts) if experts else {}),
        **_settings(framework, notes),
        **(_dispatching(notes) if experts else {}),
        "routing": _routing(notes),
        **_memory(framework, row, notes),
        "recompute_num_layers": _digits(notes, r"recompute_num_layers=(\d+)"),
        "activation_offload": _said(notes, r"alpha=(0?\.\d+|1)"),
        "uneven_layers": "1" if "uneven layer split" in notes else "",
        "variant": "; ".join(sorted(VARIANT.findall(notes))),
    }


def with_named_columns(row: Row) -> Row:
    """Row of a named model with its columns filled from its notes; as it is where it has any."""
    if any(name in row for name in NAMED_COLUMNS):
        return row
    notes, said = row.get("notes", ""), dict.fromkeys(NAMED_COLUMNS, "")
    for words, (name, value) in NAMED_WORDS.items():
        if words in (notes.lower() if words.islower() else notes):
            said[name] = value
    said["routing"] = _routing(row.get("routing", "") or notes)
    return row | said | {"left_out": "; ".join(word for word in LEFT_OUT if word in notes)}


def _routing(words: str) -> str:
    """Routing that words say; blank where they say nothing of it."""
    said = (name for name, pattern in ROUTINGS.items() if re.search(pattern, words))
    return next(said, "")


def _framework(row: Row) -> str:
    """Framework of a row: as its column says, but where its notes or its source know better."""
    named, notes = row.get("framework", ""), row.get("notes", "")
    if not named:
        heads = (name for head, name in UNSAID.items() if row.get("source", "").startswith(head))
        return next(heads, "")
    if named == "megatron-2021" and "(DeepSpeed)" in notes:
        return NAMED["(DeepSpeed)"]
    return NAMED["MaxText"] if "MaxText" in notes else named


def _attention(notes: str) -> Row:
    said = {
        "head_dim": _digits(notes, r"head_dim=(\d+)"),
        "window": _digits(notes, r"sliding window (\d+)"),
    }
    if "mla" in notes.lower():
        said |= LATENT
        said["kv_lora"] = _digits(notes, r"kv_lora=(\d+)") or KV_LORA
        said["q_lora"] = _digits(notes, r"q_lora=(\d+)") or Q_LORA
    return said


def _experts(notes: str, experts: str) -> Row:
    """Columns of experts; shared ones that every token visits are one as wide as all of them."""
    width = _digits(notes, r"moe_ffn=(\d+)")
    dense = _digits(notes, r"dense_layers=(\d+)") or _digits(notes, r"first (\d+) layers dense")
    return {
        "experts": experts,
        "experts_per_token": _digits(notes, r"topk=(\d+)"),
        "expert_hidden": width,
        "shared_hidden": _digits(notes, r"shared=\d+\((\d+)\)")
        or _product(width, _digits(notes, r"shared=(\d+)")),
        "dense_layers": dense or ("1" if "first layer dense" in notes else ""),
        "expert_interval": _digits(notes, r"MoE every (\d+)"),
    }


def _settings(framework: str, notes: str) -> Row:
    captured = "layers" if CAPTURED_LAYERS in notes else ""
    gradient_bytes = "4" if WIDE_GRADIENTS in notes else ""
    if framework == "megatron-core" and _any(NARROW_GRADIENTS, notes):
        gradient_bytes = gradient_bytes or "2"
    return {
        "tensor_overlap": "1" if _any(TENSOR_OVERLAP, notes) else "",
        "overlap": "0" if "no comm overlap" in notes else "",
        "captured": "step" if _any(CAPTURED_STEP, notes) else captured,
        "compiled": "1" if COMPILED in notes else "",
        "gradient_bytes": gradient_bytes,
        "shard_group": OVER_ALL if "zero1=-1" in notes else _shard_group(notes),
        "cp_comm": "a2a" if "cp_comm=a2a" in notes else "",
    }


def _shard_group(notes: str) -> str:
    for pattern in GROUPS:
        if match := pattern.search(notes):
            return _product(*match.groups())
    return ""


def _dispatching(notes: str) -> Row:
    """Columns of how tokens travel: recipes of experts name what they set, and leave off the rest.

    They leave off the overlap of tensor parallel collectives too.
    """
    named = (name for name, merges in DISPATCHERS.items() if merges and name in notes.lower())
    return {
        "tensor_overlap": "1" if _any(TENSOR_OVERLAP, notes) else "0",
        "dispatcher": next(named, "alltoall"),
        "expert_overlap": "1" if _any(EXPERT_OVERLAP, notes) else "0",
    }


def _memory(framework: str, row: Row, notes: str) -> Row:
    """Columns of the loss and of a peak that is printed; the date of a loss is in its file."""
    loss = "fused" if "fused cross entropy" in notes else ""
    if framework == "pytorch-fsdp" and COMPILED in notes:
        year = _digits(row.get("source_path", ""), r"(202\d)[-_]?[01]\d")
        loss = "compiled" if not year or int(year) >= LOSS_COMPILED_SINCE else loss
    if not row.get("peak_mem_gb", ""):
        return {"loss": loss}
    return {
        "loss": loss,
        "peak_unit": "GiB" if "GiB" in notes else "GB",
        "peak_figure": PEAK_FIGURES.get(framework, "allocated"),
    }


def _any(phrases: tuple[str, ...], notes: str) -> bool:
    return any(phrase in notes for phrase in phrases)


def _said(notes: str, pattern: str) -> str:
    match = re.search(pattern, notes)
    return match[1] if match else ""


def _digits(notes: str, pattern: str) -> str:
    """Whole number that notes state; blank where they do not, or it is 0."""
    return _said(notes, pattern).lstrip("0")


def _product(*digits: str) -> str:
    """Product of whole numbers; blank where one is, and the longest where one is too long."""
    longest = max(digits, key=len)
    if not all(digits) or len(longest) > DIGITS_MAX:
        return longest if all(digits) else ""
    return str(prod(map(int, digits)))
