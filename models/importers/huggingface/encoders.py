"""Encoders, and encoders with a decoder: BERT, T5 and ViT.

Defaults are those of the configuration classes of transformers (release 5).
"""

from functools import partial

from millrace.models.importers.huggingface.activations import ACTIVATIONS
from millrace.models.importers.huggingface.keys import LAYERS_MAX, Keys
from millrace.models.importers.huggingface.mapping import Mapped, ModelType
from millrace.models.spec import Config
from millrace.models.zoo import t5

# Of T5 the plain name comes second: `gated-gelu` is the tanh form, `gelu` the exact one.
_FEED_FORWARDS = {
    **{name: (kind, False) for name, kind in ACTIVATIONS.items()},
    **{f"gated-{name}": (kind, True) for name, kind in ACTIVATIONS.items()},
    "gated-gelu": ("gelu", True),
}

IMAGE_MAX = 2**20
"""No side of an image comes near."""


def read_bert(
    keys: Keys,
    architecture: str,
    *,
    vocab: int = 30522,
    padded: bool = False,
    fixed: Config | None = None,
) -> Mapped:
    """Return the configuration of a BERT with its pre-training heads, or the first of them.

    The embedding of `pad_token_id` learns as any other; transformers leaves it as it is.

    Parameters
    ----------
    keys : Keys
        Those of the configuration's object.
    architecture : str
        Class; one for the next token sees all tokens nevertheless where `is_decoder` is false.
    vocab : int
        Default of `vocab_size`.
    padded : bool
        RoBERTa's kind: the rows of positions up to that of the token for padding are for no token.
    fixed : Config, optional
        Fields that the class fixes.
    """
    for name in ("is_decoder", "add_cross_attention", "use_task_id"):
        if keys.flag(name, False):
            raise keys.error(name, f"expected false, as {architecture} is an encoder")
    if keys.text("position_embedding_type", "absolute") != "absolute":
        raise keys.error("position_embedding_type", "expected absolute, the only one supported")
    positions = keys.integer("max_position_embeddings", 512)
    config: Config = {
        "layers": keys.integer("num_hidden_layers", 12, most=LAYERS_MAX),
        "hidden": keys.integer("hidden_size", 768),
        "heads": keys.integer("num_attention_heads", 12),
        "ffn_hidden": keys.integer("intermediate_size", 3072),
        "vocab": keys.integer("vocab_size", vocab),
        "positions": positions,
        "segments": keys.integer("type_vocab_size", 2),
        "next_sentence": architecture.endswith("BertForPreTraining"),
        "activation": keys.choice("hidden_act", ACTIVATIONS, "gelu"),
        "epsilon": keys.number("layer_norm_eps", 1e-12),
        "tied": keys.flag("tie_word_embeddings", True),
    }
    if padded:
        keys.choice("hidden_act", {"gelu": "gelu"}, "gelu")  # that of the head, whatever it says
        positions -= 1 + keys.integer("pad_token_id", 1, least=0)
        if positions < 1:
            raise keys.error("max_position_embeddings", "expected more than those for padding")
    alone = "ForCausalLM" in architecture or "LMHead" in architecture
    notes = ("is_decoder is false: planned as an encoder that predicts masked tokens",) * alone
    return Mapped("bert", config | (fixed or {}), positions, notes)


def read_t5(keys: Keys, architecture: str) -> Mapped:
    """Return the configuration of a T5.

    `tie_word_embeddings: false` marks version 1.1, whose output is not scaled. It does not untie
    the head: the class shares the table in either case, and a checkpoint of version 1.1 brings the
    head's own values along (the zoo's `t5-v1.1-*` have them). `scale_decoder_outputs`,
    `is_gated_act` and `dense_act_fn`, which the class writes out, go before what they follow from.
    """
    layers = keys.integer("num_layers", 6, most=LAYERS_MAX)
    activation, gated = keys.choice("feed_forward_proj", _FEED_FORWARDS, "relu")
    if "dense_act_fn" in keys.values:
        activation = keys.choice("dense_act_fn", ACTIVATIONS)
    scaled = keys.flag("tie_word_embeddings", True, null=True)
    config: Config = {
        "layers": layers,
        "decoder_layers": keys.integer("num_decoder_layers", layers, most=LAYERS_MAX, null=layers),
        "hidden": keys.integer("d_model", 512),
        "heads": keys.integer("num_heads", 8),
        "head_dim": keys.integer("d_kv", 64),
        "ffn_hidden": keys.integer("d_ff", 2048),
        "vocab": keys.integer("vocab_size", 32128),
        "gated": keys.flag("is_gated_act", gated),
        "activation": activation,
        "scaled_output": keys.flag("scale_decoder_outputs", scaled),
        "buckets": keys.integer("relative_attention_num_buckets", 32),
        "max_distance": keys.integer("relative_attention_max_distance", 128),
        "epsilon": keys.number("layer_norm_epsilon", 1e-6),
    }
    return Mapped("t5", config, t5.SEQ_LEN)


def read_vit(keys: Keys, architecture: str) -> Mapped:
    """Return the configuration of a vision transformer that classifies images."""
    hidden = keys.integer("hidden_size", 768)
    heads = keys.integer("num_attention_heads", 12)
    config: Config = {
        "layers": keys.integer("num_hidden_layers", 12, most=LAYERS_MAX),
        "hidden": hidden,
        "heads": heads,
        "head_dim": keys.integer("head_dim", hidden // heads),
        "ffn_hidden": keys.integer("intermediate_size", 3072),
        "classes": labels(keys),
        "image": _sides(keys, "image_size", 224),
        "patch": _sides(keys, "patch_size", 16),
        "channels": keys.integer("num_channels", 3),
        "qkv_bias": keys.flag("qkv_bias", True),
        "activation": keys.choice("hidden_act", ACTIVATIONS, "gelu"),
        "epsilon": keys.number("layer_norm_eps", 1e-12),
    }
    return Mapped("vit", config, 1)


def labels(keys: Keys) -> int:
    """Return the number of classes: the names in `id2label`, else `num_labels`, else two."""
    problem = keys.text("problem_type", "", null="")
    if problem not in ("", "single_label_classification"):
        raise keys.error("problem_type", "expected single_label_classification or null")
    if keys.has("id2label"):
        named = len(keys.section("id2label").values)
        if named < 2:
            raise keys.error("id2label", "expected two classes or more")
        return named
    return keys.integer("num_labels", 2, least=2, null=2)


def _sides(keys: Keys, name: str, default: int) -> tuple[int, int]:
    """Return rows and columns of pixels: one number for both, or a list of the two."""
    if not isinstance(keys.values.get(name), list):
        side = keys.integer(name, default, most=IMAGE_MAX)
        return side, side
    sides = keys.integers(name, (default, default), most=IMAGE_MAX)
    if len(sides) != 2:
        raise keys.error(name, "expected an integer or a list of two")
    return sides[0], sides[1]


MODEL_TYPES: dict[str, ModelType] = {
    "bert": ModelType(("BertForPreTraining", "BertForMaskedLM", "BertLMHeadModel"), read_bert),
    "megatron-bert": ModelType(
        tuple(f"MegatronBertFor{head}" for head in ("PreTraining", "MaskedLM", "CausalLM")),
        partial(read_bert, vocab=29056, fixed={"pre_norms": True, "embedding_norm": False}),
    ),
    "ernie": ModelType(("ErnieForMaskedLM", "ErnieForCausalLM"), read_bert),
    **{
        name: ModelType(
            (f"{title}ForMaskedLM", f"{title}ForCausalLM"), partial(reader, padded=True)
        )
        for name, title, reader in (
            ("camembert", "Camembert", read_bert),
            ("data2vec-text", "Data2VecText", read_bert),
            ("roberta", "Roberta", partial(read_bert, vocab=50265)),
            (
                *("roberta-prelayernorm", "RobertaPreLayerNorm"),
                partial(read_bert, vocab=50265, fixed={"pre_norms": True}),
            ),
            ("xlm-roberta", "XLMRoberta", read_bert),
        )
    },
    "t5": ModelType(("T5ForConditionalGeneration",), read_t5),
    "vit": ModelType(("ViTForImageClassification",), read_vit),
}
