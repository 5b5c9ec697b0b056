"""Activations of transformers, by the names that configurations give them."""

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "xielu": "xielu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
}
"""Name in `transformers.activations.ACT2FN`: the op, or what the decoder composes of ops."""
