"""Columns that say of a language model's run what its layers, its settings and its peak are.

A blank says nothing: the model's family, the framework's record or the search decides. Tables older
than these columns tell the same in words (`notes.py`).
"""

from dataclasses import dataclass

from millrace.models.recompute import ACTIVATIONS, ATTENTION, LATENT, NORMS, SCORES
from millrace.planner.frameworks.capabilities import DISPATCHERS, ROUTINGS
from millrace.planner.frameworks.framework_memory import LossKernel
from millrace.planner.frameworks.peak_memory import Figure

Row = dict[str, str]

YES_NO = ("0", "1")
CAPTURED = ("none", "layers", "step")
CONTEXT_EXCHANGES = ("p2p", "all_gather", "a2a", "a2a+p2p")  # Megatron's --cp-comm-type
UNITS = {"GB": 10**9, "GiB": 2**30}
OVER_ALL = "all"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """Column of a table: its name, its meaning, the words that it may hold, or else what it holds.

    The page on accuracy has a line for each.
    """

    name: str
    meaning: str
    words: tuple[str, ...] = ()
    values: str = "number"

    @property
    def line(self) -> str:
        """Line of the page's table."""
        return f"| `{self.name}` | {', '.join(self.words) or self.values} | {self.meaning} |"


MODEL_COLUMNS = (
    TableColumn("head_dim", "features of a query or key; blank: hidden / heads"),
    TableColumn("rotary_dims", "features of a head that are turned by position; blank: all"),
    TableColumn("value_dim", "features of a value; blank: head_dim"),
    TableColumn("kv_lora", "latent attention: the width that keys and values are made from"),
    TableColumn("q_lora", "and that queries are made from; blank: straight from the layer's input"),
    TableColumn("window", "keys that a query sees in the first layer and in every second after it"),
    TableColumn("gated", "0: the feed-forward part has two matrices, not three", YES_NO),
    TableColumn("experts", "experts of a layer; blank: none"),
    TableColumn("experts_per_token", "experts that a token is sent to"),
    TableColumn("expert_hidden", "width of an expert"),
    TableColumn("shared_hidden", "width of the experts that every token visits, together"),
    TableColumn("dense_layers", "layers at the start that have no experts"),
    TableColumn("expert_interval", "of so many layers the last has experts; blank: each has"),
    TableColumn("mtp_layers", "modules that predict further tokens; blank: none"),
    TableColumn(
        "narrow_parts",
        "what multiplies in 8 bits beside linear layers: attention, head",
        values="words",
    ),
)
SOFTWARE_COLUMNS = (
    TableColumn("tensor_overlap", "tensor parallel collectives move beside products", YES_NO),
    TableColumn("dispatcher", "the dispatcher of tokens, as --dispatcher", tuple(DISPATCHERS)),
    TableColumn(
        "expert_overlap", "their exchange moves beside products, as --expert-overlap", YES_NO
    ),
    TableColumn(
        "routing", "experts get equal shares, or as tokens choose; blank: balanced", ROUTINGS
    ),
    TableColumn("token_drop", "experts drop what is more than an equal share", YES_NO),
    TableColumn("overlap", "0: no collective moves beside any computation", YES_NO),
    TableColumn("captured", "CUDA graphs: of the step, or of its layers one by one", CAPTURED),
    TableColumn("compiled", "torch.compile makes the kernels", YES_NO),
    TableColumn("gradient_bytes", "of an element of a gradient while replicas sum it", ("2", "4")),
    TableColumn("shard_group", "replicas that state is split among", values="number, all"),
    TableColumn(
        "recompute_modules",
        "modules that selective recomputation makes again, as Megatron-Core names them",
        values="words",
    ),
    TableColumn(
        "cp_comm", "exchange of context parallel ranks; a2a splits heads", CONTEXT_EXCHANGES
    ),
)
MEMORY_COLUMNS = (
    TableColumn(
        "loss", "the kernel of the loss, where not the framework's usual one", tuple(LossKernel)
    ),
    TableColumn("peak_unit", "of peak_mem_gb; blank: GB", tuple(UNITS)),
    TableColumn("peak_figure", "the figure that is printed; blank: allocated", tuple(Figure)),
)
UNPLANNED_COLUMNS = (
    TableColumn("recompute_num_layers", "layers of a chunk that are recomputed; taken as all"),
    TableColumn("activation_offload", "share of activations in host memory; left out"),
    TableColumn("uneven_layers", "1: stages hold unequal numbers of layers", YES_NO),
    TableColumn(
        "variant", "what else differs: rows that do are no pair of one setting", values="text"
    ),
)
# Modules of Megatron-Core's `--recompute-modules` by the parts of a block that they are.
RECOMPUTE_MODULES = {
    "core_attn": (ATTENTION, SCORES),
    "layernorm": (NORMS,),
    "moe_act": (ACTIVATIONS,),
    "mla_up_proj": (LATENT,),
    "mlp": ("feed-forward",),
    "moe": ("experts", "shared-experts"),
    "shared_experts": ("shared-experts",),
}
COLUMNS = (*MODEL_COLUMNS, *SOFTWARE_COLUMNS, *MEMORY_COLUMNS, *UNPLANNED_COLUMNS)
NAMES = tuple(column.name for column in COLUMNS)


def words(name: str) -> tuple[str, ...]:
    """Words that a column may hold; none where it holds numbers or text."""
    return next(column.words for column in COLUMNS if column.name == name)
