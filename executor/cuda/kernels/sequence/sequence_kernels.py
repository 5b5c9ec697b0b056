"""Sequence kernels: factories of ids and positions by op kind."""

from millrace.executor.cuda.kernels.context import CallsFactory
from millrace.executor.cuda.kernels.sequence import embedding, relative_bias, rotary

SEQUENCE: dict[str, CallsFactory] = {
    "embedding": embedding.embedding,
    "embedding_grad": embedding.embedding_grad,
    "relative_bias": relative_bias.relative_bias,
    "relative_bias_grad": relative_bias.relative_bias_grad,
    "rotary": rotary.rotary,
}
