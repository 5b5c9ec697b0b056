"""Layer input sizes: those of the embeddings that every layer has of its own (Gemma 4)."""

import msgspec


class LayerInputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of the vectors that enter at every layer, besides the stream.

    Attributes
    ----------
    width : int
        Features of such a vector.
    vocab : int
        Rows of a layer's table, one for each token of the vocabulary at least.
    """

    width: int
    vocab: int
