"""Source kernels, without inputs: samples of the dataset, constants of the model, fills."""

import binascii
import zlib
from base64 import b64decode
from collections.abc import Sequence
from math import prod

import numpy as np

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array, Kernel, KernelContext, SampleSource
from millrace.models.graph import ITEMSIZE


def input_(context: KernelContext) -> Kernel:
    """Kernel of the shard's samples of the attribute `source`, dim 0 being the batch.

    Sample i of microbatch m of step s is number (s · global_batch + m · batch + i) of the run.

    Raises
    ------
    ExecutorError
        The run has no dataset.
    """
    run, shard = context.run, context.outputs[0]
    dataset = run.dataset
    source = SampleSource(
        name=str(context.attributes["source"]),
        values=int(context.attributes.get("values", 0)),
        shape=shard.global_shape[1:],
        region=tuple(
            slice(start, start + size)
            for start, size in zip(shard.offsets[1:], shard.shape[1:], strict=True)
        ),
        channels_last=bool(context.attributes.get("channels_last", False)),
    )
    if dataset is None:
        raise ExecutorError(f"no dataset to read `{source.name}` from", actor=context.name)
    rows = shard.offsets[0] + np.arange(shard.shape[0], dtype=np.int64)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        step, microbatch = divmod(firing, run.microbatches)
        first = (run.first_step + step) * run.global_batch + microbatch * run.batch
        outputs[0][...] = dataset.read(source, first + rows)

    return kernel


def fill(context: KernelContext) -> Kernel:
    """Kernel of the attribute `value` everywhere."""
    value = context.attributes["value"]

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0].fill(value)

    return kernel


def constant(context: KernelContext) -> Kernel:
    """Kernel of the shard of the values in `data`, or `value` everywhere where `data` is empty.

    Raises
    ------
    ExecutorError
        `data` is not the text of as many values as the tensor has.
    """
    if not context.attributes["data"]:
        return fill(context)
    values = constant_bits(context).view(context.outputs[0].dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        np.copyto(outputs[0], values)

    return kernel


def constant_bits(context: KernelContext) -> Array:
    """Shard of a constant's `data` on this rank, as unsigned integers of its width.

    The text is base64 of zlib of little-endian values, row by row.

    Raises
    ------
    ExecutorError
        `data` is not the text of as many values as the tensor has.
    """
    shard = context.outputs[0]
    try:
        content = zlib.decompress(b64decode(str(context.attributes["data"]), validate=True))
    except (binascii.Error, zlib.error) as error:
        raise ExecutorError(
            f"`data` is not base64 of a zlib stream: {error}", actor=context.name
        ) from None
    width = ITEMSIZE[shard.dtype]
    expected = prod(shard.global_shape) * width
    if len(content) != expected:
        raise ExecutorError(
            f"`data` holds {len(content)} bytes, a tensor {shard.global_shape} of {shard.dtype} "
            f"takes {expected}",
            actor=context.name,
        )
    values = np.frombuffer(content, f"<u{width}")
    region = tuple(
        slice(start, start + size) for start, size in zip(shard.offsets, shard.shape, strict=True)
    )
    return np.array(values.reshape(shard.global_shape)[region], f"u{width}", order="C")
