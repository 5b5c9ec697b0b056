"""Expert features of configs: how many, how wide, how chosen, and the routers' loss.

Imported mixtures have 1.25 times an even share of places per expert, as the zoo's have; the
libraries they come from drop no token (a `capacity_factor` of 0). Where a configuration asks for
the routers' loss, it is that of every layer and sample by itself, at the weight that it has there.
"""

from millrace.models.importers.huggingface.keys import LAYERS_MAX, Keys
from millrace.models.importers.huggingface.layer_patterns import dense_layers
from millrace.models.spec import Config

CAPACITY_FACTOR = 1.25
EXPERTS_MAX = 65536


def expert_fields(keys: Keys) -> Config:
    """Return the fields of a DecoderConfig that say what experts a model has.

    Parameters
    ----------
    keys : Keys
        Those that the model type has, with defaults, by the names of Qwen3-MoE's configuration.
    """
    if keys.number("router_jitter_noise", 0.0, null=0.0):
        raise keys.error("router_jitter_noise", "noise on what a router reads is not supported: 0")
    dense = dense_layers(keys)
    width = keys.integer("intermediate_size", 0, null=0)
    if "moe_intermediate_size" in keys.values:
        width = keys.integer("moe_intermediate_size")
    fields: Config = {
        "experts": keys.integer("num_experts", least=0, most=EXPERTS_MAX),
        "experts_per_token": _chosen(keys),
        "expert_hidden": width,
        "shared_hidden": _shared_width(keys, width),
        "dense_layers": dense,
        "capacity_factor": CAPACITY_FACTOR,
    }
    if keys.has("n_group"):
        fields |= {
            "router_groups": keys.integer("n_group"),
            "kept_groups": keys.integer("topk_group", 1, null=1),
        }
    layers = keys.integer("num_hidden_layers", most=LAYERS_MAX)
    return fields | _balance_fields(keys, layers - len(dense))


def _chosen(keys: Keys) -> int:
    if not keys.has("num_experts_per_tok"):
        raise keys.error(
            "num_experts_per_tok",
            "how many experts a token is sent to; the class computes nothing without: expected an "
            "integer from 1 to the number of experts",
        )
    return keys.integer("num_experts_per_tok")


def _shared_width(keys: Keys, width: int) -> int:
    """Return the width of the expert that every token visits; 0 for none."""
    if "shared_expert_intermediate_size" in keys.values:
        return keys.integer("shared_expert_intermediate_size", least=0, null=0)
    return width * keys.integer("n_shared_experts", 0, least=0, null=0)


def _balance_fields(keys: Keys, layers: int) -> Config:
    """Return the weight of the routers' loss: transformers takes the mean over layers."""
    if "router_aux_loss_coef" not in keys.values or not layers:
        return {}
    if not keys.flag("output_router_logits", False, null=False):
        return {}
    return {"balance_loss": keys.number("router_aux_loss_coef") * _chosen(keys) / layers}
