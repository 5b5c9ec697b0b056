"""Image kernels: their factories by op kind."""

from millrace.executor.cuda.kernels.context import CallsFactory
from millrace.executor.cuda.kernels.images import batch_norm, convolution, pooling

IMAGES: dict[str, CallsFactory] = {
    "avg_pool": pooling.avg_pool,
    "avg_pool_grad": pooling.avg_pool_grad,
    "batch_norm": batch_norm.batch_norm,
    "batch_norm_grad_input": batch_norm.batch_norm_grad_input,
    "batch_norm_grad_sums": batch_norm.batch_norm_grad_sums,
    "channel_squares": batch_norm.channel_squares,
    "channel_sums": batch_norm.channel_sums,
    "conv": convolution.conv,
    "conv_grad_input": convolution.conv_grad_input,
    "conv_grad_weight": convolution.conv_grad_weight,
    "max_pool": pooling.max_pool,
    "max_pool_grad": pooling.max_pool_grad,
}
