"""Starting point of a benchmark of training: variables and samples, the same for all who train.

Both follow from a seed, names and numbers, so that every process finds them by itself.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millrace.executor.errors import DataError
from millrace.executor.kernels.context import Array, SampleSource
from millrace.executor.values.initial import initial_value
from millrace.models.graph import Graph, Op

SEED = 0
DRAWN_MAX = 2**20 - 3  # values of a variable that are drawn; a prime, so that rows differ


def starting_values(graph: Graph) -> Iterator[tuple[str, Array]]:
    """Yield every variable's name and value in float32, drawn by several threads.

    Of a large variable the first values repeat: a billion normal draws take longer than what is
    to be measured.
    """
    variables = [op for op in graph.ops if op.kind == "variable"]
    with ThreadPoolExecutor() as pool:
        yield from pool.map(lambda op: (op.outputs[0], _value(graph, op)), variables)


def _value(graph: Graph, op: Op) -> Array:
    name, shape = op.outputs[0], graph.tensor(op.outputs[0]).shape
    count = int(np.prod(shape))
    drawn = initial_value(name, (min(count, DRAWN_MAX),), "float32", op.attributes, SEED)
    return np.resize(drawn, shape)


class RandomSamples:
    """Ids and images of no meaning: windows of uniform ids, normal values, uniform classes.

    Parameters
    ----------
    different
        Samples that differ: number n is that of number n mod `different`.
    sources
        Those whose samples are all drawn here, by several threads, and not when they are first
        read, which may be timed: of images that takes longer than to train with them.
    """

    description = "random samples"

    def __init__(self, different: int, sources: Iterable[SampleSource] = ()) -> None:
        self.different = different
        self._samples: dict[tuple[str, int], NDArray[Any]] = {}
        wanted = list(product(sources, range(different)))
        with ThreadPoolExecutor() as pool:
            drawn = pool.map(lambda pair: _drawn(*pair), wanted)
            for (source, number), sample in zip(wanted, drawn, strict=True):
                self._samples[source.name, number] = sample

    def read(self, source: SampleSource, samples: NDArray[np.int64]) -> Array:
        """Region of samples, [samples, region...]."""
        return np.stack([self._sample(source, int(number))[source.region] for number in samples])

    def _sample(self, source: SampleSource, number: int) -> NDArray[Any]:
        key = source.name, number % self.different
        if key not in self._samples:
            self._samples[key] = _drawn(source, key[1])
        return self._samples[key]


def _drawn(source: SampleSource, number: int) -> NDArray[Any]:
    generator = np.random.Generator(np.random.Philox(key=np.array([SEED, number], np.uint64)))
    if source.name in ("tokens", "targets"):
        (tokens,) = source.shape
        window = generator.integers(0, source.values, tokens + 1, dtype=np.int32)
        return window[:-1] if source.name == "tokens" else window[1:]
    if source.name == "classes":
        return np.asarray(generator.integers(0, source.values, dtype=np.int32))
    if source.name == "images":
        return generator.standard_normal(source.shape, dtype=np.float32)
    raise DataError(f"there are no random samples of `{source.name}`")


def sources_of(graph: Graph) -> dict[str, SampleSource]:
    """Sources of a graph by name: what its `input` ops read of a sample."""
    source_by_name = {}
    for op in graph.ops:
        if op.kind == "input":
            shape = graph.tensor(op.outputs[0]).shape[1:]
            name = str(op.attributes["source"])
            region = tuple(slice(0, size) for size in shape)
            values = int(op.attributes.get("values", 0))
            source_by_name[name] = SampleSource(
                name=name,
                values=values,
                shape=shape,
                region=region,
                channels_last=bool(op.attributes.get("channels_last", False)),
            )
    return source_by_name
