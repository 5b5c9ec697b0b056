"""Tables from variables of the zoo's BERT, T5 and ViT to parameters of transformers'.

A table says, per variable, the parameter's name and whether it is a linear layer's weight, which
torch keeps as [outputs, inputs]; the filters of patches, 4 dims there, have channels last here.
Beyond that the two differ by a reshape.
"""

from collections.abc import Mapping
from typing import NamedTuple


class TorchParameter(NamedTuple):
    """A parameter by its name in torch; `transposed`: the zoo keeps inputs first.

    Rows of `unused` come last in the zoo.
    """

    name: str
    transposed: bool = False
    unused: int = 0


Table = dict[str, TorchParameter]


def linear(ours: str, torch_name: str, *, bias: bool = True) -> Table:
    table = {f"{ours}.weight": TorchParameter(f"{torch_name}.weight", True)}
    return table | (same(f"{ours}.bias", f"{torch_name}.bias") if bias else {})


def same(ours: str, torch_name: str) -> Table:
    return {ours: TorchParameter(torch_name)}


def norm(ours: str, torch_name: str) -> Table:
    return same(f"{ours}.weight", f"{torch_name}.weight") | same(
        f"{ours}.bias", f"{torch_name}.bias"
    )


def bert(layers: int, *, next_sentence: bool, tied: bool = True) -> Table:
    words = "bert.embeddings.word_embeddings.weight"
    table = same("embedding.tokens.weight", words)
    table |= same("embedding.segments.weight", "bert.embeddings.token_type_embeddings.weight")
    table |= same("embedding.positions.weight", "bert.embeddings.position_embeddings.weight")
    table |= norm("embedding.ln", "bert.embeddings.LayerNorm")
    for n in range(layers):
        block, layer = f"layer.{n}", f"bert.encoder.layer.{n}"
        for ours, name in (("q", "query"), ("k", "key"), ("v", "value")):
            table |= linear(f"{block}.attn.{ours}", f"{layer}.attention.self.{name}")
        table |= linear(f"{block}.attn.out", f"{layer}.attention.output.dense")
        table |= norm(f"{block}.ln1", f"{layer}.attention.output.LayerNorm")
        table |= linear(f"{block}.mlp.fc1", f"{layer}.intermediate.dense")
        table |= linear(f"{block}.mlp.fc2", f"{layer}.output.dense")
        table |= norm(f"{block}.ln2", f"{layer}.output.LayerNorm")
    table |= linear("head.transform", "cls.predictions.transform.dense")
    table |= norm("head.ln", "cls.predictions.transform.LayerNorm")
    table |= same("head.logits.bias", "cls.predictions.bias")
    if not tied:
        table |= same("head.decoder.weight", "cls.predictions.decoder.weight")
        table |= same("head.decoder.bias", "cls.predictions.decoder.bias")
    if next_sentence:
        table |= linear("head.pooler", "bert.pooler.dense")
        table |= linear("head.follows", "cls.seq_relationship")
    return table


def roberta(layers: int, prefix: str, *, padding: int) -> Table:
    """BERT's table under other names; the first rows of positions are for padding."""
    names = {"bert.": f"{prefix}.", "cls.predictions.transform.dense": "lm_head.dense"}
    names |= {"cls.predictions.transform.LayerNorm": "lm_head.layer_norm"}
    names["cls.predictions.bias"] = "lm_head.bias"
    table = {}
    for ours, (name, transposed, _) in bert(layers, next_sentence=False).items():
        for old, new in names.items():
            name = name.replace(old, new) if name.startswith(old) else name
        unused = padding + 1 if ours == "embedding.positions.weight" else 0
        table[ours] = TorchParameter(name, transposed, unused)
    return table


def with_norms_before(table: Table, last: str, names: Mapping[str, str]) -> Table:
    """A BERT's table with the final norm, and those of layers under the names that they have."""
    changed = {}
    for ours, row in table.items():
        name = row.name
        for old, new in names.items():
            name = name.replace(old, new)
        changed[ours] = row._replace(name=name)
    return changed | norm("head.encoder.ln", last)


def t5(layers: int, decoder_layers: int, *, gated: bool) -> Table:
    table = same("source.tokens.weight", "shared.weight")
    stacks = (("encoder", "source", layers, 1), ("decoder", "targets", decoder_layers, 2))
    for stack, first, depth, mlp_index in stacks:
        table |= same(
            f"{first}.distances.weight",
            f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        )
        for n in range(depth):
            block, layer = f"{stack}.{n}", f"{stack}.block.{n}.layer"
            table |= _t5_attention(f"{block}.attn", f"{layer}.0", "SelfAttention")
            if stack == "decoder":
                table |= _t5_attention(f"{block}.cross", f"{layer}.1", "EncDecAttention")
            table |= same(f"{block}.mlp.norm.weight", f"{layer}.{mlp_index}.layer_norm.weight")
            dense = f"{layer}.{mlp_index}.DenseReluDense"
            first_product = f"{dense}.wi_0" if gated else f"{dense}.wi"
            table |= linear(f"{block}.mlp.fc1", first_product, bias=False)
            if gated:
                table |= linear(f"{block}.mlp.up", f"{dense}.wi_1", bias=False)
            table |= linear(f"{block}.mlp.fc2", f"{dense}.wo", bias=False)
    table |= same("targets.norm.weight", "encoder.final_layer_norm.weight")
    return table | same("head.norm.weight", "decoder.final_layer_norm.weight")


def _t5_attention(ours: str, layer: str, name: str) -> Table:
    table = same(f"{ours}.norm.weight", f"{layer}.layer_norm.weight")
    for part, theirs in (("q", "q"), ("k", "k"), ("v", "v"), ("out", "o")):
        table |= linear(f"{ours}.{part}", f"{layer}.{name}.{theirs}", bias=False)
    return table


def vit(layers: int, *, qkv_bias: bool) -> Table:
    table = same("embedding.patches.weight", "vit.embeddings.patch_embeddings.projection.weight")
    table |= same("embedding.patches.bias", "vit.embeddings.patch_embeddings.projection.bias")
    table |= same("embedding.class.weight", "vit.embeddings.cls_token")
    table |= same("embedding.positions.weight", "vit.embeddings.position_embeddings")
    for n in range(layers):
        block, layer = f"layer.{n}", f"vit.layers.{n}"
        table |= norm(f"{block}.ln1", f"{layer}.layernorm_before")
        for part in ("q", "k", "v"):
            name = f"{layer}.attention.{part}_proj"
            table |= linear(f"{block}.attn.{part}", name, bias=qkv_bias)
        table |= linear(f"{block}.attn.out", f"{layer}.attention.o_proj")
        table |= norm(f"{block}.ln2", f"{layer}.layernorm_after")
        table |= linear(f"{block}.mlp.fc1", f"{layer}.mlp.fc1")
        table |= linear(f"{block}.mlp.fc2", f"{layer}.mlp.fc2")
    return table | norm("head.ln", "vit.layernorm") | linear("head.logits", "classifier")
