"""Datasets by the sources that a model reads, and the function that opens each."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from millrace.executor.data.classes import Blobs
from millrace.executor.data.clicks import SyntheticClicks
from millrace.executor.data.corpus import open_corpus
from millrace.executor.data.images import Patterns, open_digits
from millrace.executor.data.masked import MaskedText
from millrace.executor.data.pairs import TextPairs
from millrace.executor.data.text import TokenWindows
from millrace.executor.errors import DataError
from millrace.executor.kernels.context import Dataset, SampleSource
from millrace.models.ops import Attributes
from millrace.models.spec import ModelSpec, base_source
from millrace.models.zoo import catalogue

DIGEST_BYTES = 16
DIGEST_SAMPLES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSource:
    """Values that one `input` op of a model reads.

    Parameters
    ----------
    values
        How many different ids there are; 0 for features.
    shape
        Shape of one sample.
    attributes
        All attributes of the op.
    """

    values: int
    shape: tuple[int, ...]
    attributes: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Data that a model asks for: its inputs by source, the path given, the seed of the run."""

    model: str
    path: str | None
    seed: int
    inputs: Mapping[str, InputSource]

    def input(self, source: str) -> InputSource:
        """Input of a source that the others go with; DataError where there is none."""
        if source not in self.inputs:
            raise DataError(
                f"model `{self.model}` reads {', '.join(sorted(self.inputs))} without `{source}`: "
                f"no data is read so"
            )
        return self.inputs[source]

    def refuse_path(self, data: str) -> None:
        """Raise DataError when a path was given for data that is not read from one."""
        if self.path is not None:
            raise DataError(
                f"`{self.path}`: model `{self.model}` trains on {data}; leave the path out"
            )


class DatasetKind(NamedTuple):
    """A kind of data: the sources it holds, and what opens it for a model that reads them.

    Of each source it says the dims of a sample, as labels are written: those of one label are
    equally long in all sources. None: dims are as the model reads them.
    """

    sources: Mapping[str, str | None]
    open: Callable[[Request], Dataset]


def open_dataset(path: str | None, spec: ModelSpec, seed: int) -> Dataset:
    """Samples a model trains on.

    Parameters
    ----------
    path
        A file or folder of text, or a `.bin` file of token ids; None: the standard library's
        source files (or what else the model reads that needs no path).
    spec
        The model, whose inputs say what is read: the first row of `OPENINGS` that holds them all.
    seed
        Seed of the run; a negative one is refused.

    Raises
    ------
    DataError
        No data holds what the model reads, in the shapes in which it does; nothing is at the path,
        it is empty, too short for one sample, or does not fit the model.
    """
    if seed < 0:
        raise DataError(f"seed is {seed}: give one of 0 or more")
    inputs = _inputs(spec)
    for sources, opened in OPENINGS:
        if {base_source(source)[0] for source in inputs} <= sources.keys():
            _check_shapes(spec.name, inputs, sources)
            return opened(Request(model=spec.name, path=path, seed=seed, inputs=inputs))
    available = "; ".join(", ".join(sorted(sources)) for sources, _ in OPENINGS)
    raise DataError(
        f"model `{spec.name}` reads {', '.join(sorted(inputs))}, which no data holds together; "
        f"there is data for: {available}"
    )


def data_digest(dataset: Dataset, spec: ModelSpec) -> str:
    """Digest of the data itself, whatever the seed: of the first samples that seed 0 draws.

    Parameters
    ----------
    dataset
        The data, opened for the model.
    spec
        The model, which says what is read of a sample.
    """
    unseeded: Dataset = dataclasses.replace(dataset, seed=0)  # type: ignore[type-var]
    digest = blake2b(digest_size=DIGEST_BYTES)
    for source, read in sorted(_inputs(spec).items()):
        wanted = SampleSource(
            name=source,
            values=read.values,
            shape=read.shape,
            region=tuple(slice(0, size) for size in read.shape),
            channels_last=bool(read.attributes.get("channels_last", False)),
        )
        digest.update(unseeded.read(wanted, np.arange(DIGEST_SAMPLES)).tobytes())
    return digest.hexdigest()


def _inputs(spec: ModelSpec) -> dict[str, InputSource]:
    graph = catalogue.build(spec, 1)
    inputs: dict[str, InputSource] = {}
    for op in graph.ops:
        if op.kind != "input":
            continue
        source = str(op.attributes["source"])
        if source in inputs:
            raise DataError(
                f"model `{spec.name}` has two inputs of source `{source}`, which would read the "
                f"same values: no data holds both"
            )
        inputs[source] = InputSource(
            values=int(op.attributes["values"]),
            shape=graph.tensor(op.outputs[0]).shape[1:],
            attributes=op.attributes,
        )
    return inputs


def _check_shapes(
    model: str, inputs: Mapping[str, InputSource], dims_by_source: Mapping[str, str | None]
) -> None:
    """Refuse inputs of other dims than the data has, or of lengths that differ where its agree."""
    sizes: dict[str, int] = {}
    for source, read in inputs.items():
        dims = dims_by_source[base_source(source)[0]]
        if dims is None:
            continue
        labels = dims.split()
        pairs = zip(labels, read.shape, strict=False)
        if len(labels) != len(read.shape) or any(sizes.setdefault(x, n) != n for x, n in pairs):
            others = ", ".join(
                f"{name} [{dims}]" for name, dims in dims_by_source.items() if dims is not None
            )
            raise DataError(
                f"model `{model}` reads `{source}` in samples of shape {list(read.shape)}, which "
                f"no data has; there is data of {others}, a letter being one length"
            )


def _vocabulary(request: Request, read: str, predicted: str) -> int:
    """Number of different ids that text may have when it is read and predicted."""
    values = request.inputs[read].values if read in request.inputs else 0
    targets = request.inputs[predicted].values if predicted in request.inputs else values
    if values and targets < values:
        raise DataError(
            f"model `{request.model}` reads `{read}` of {values} ids and predicts `{predicted}` of "
            f"{targets}: text has no such labels, its next ids are as many as it has"
        )
    return values or targets


def _next_tokens(request: Request) -> Dataset:
    tokens = next(iter(request.inputs.values()))
    further = max(base_source(source)[1] for source in request.inputs)
    takes = "the sequence and one target more"
    if further:
        takes = f"the sequence and {further + 1} targets more"
    vocabulary = _vocabulary(request, "tokens", "targets")
    corpus = open_corpus(request.path, vocabulary, tokens.shape[0] + 1 + further, takes)
    return TokenWindows(corpus=corpus, seed=request.seed, further=further)


def _masked_text(request: Request) -> Dataset:
    tokens = request.input("masked_tokens")
    vocabulary = _vocabulary(request, "masked_tokens", "masked_targets")
    corpus = open_corpus(request.path, vocabulary, tokens.shape[0], "its two halves")
    return MaskedText(
        corpus=corpus,
        seed=request.seed,
        masked=int(tokens.attributes["masked"]),
        mask_id=int(tokens.attributes["mask_id"]),
        random_halves="next_sentence" in request.inputs,
        among=int(tokens.attributes.get("among", 0)),
    )


def _pairs(request: Request) -> Dataset:
    source, target = (request.input(name) for name in ("source_tokens", "decoder_tokens"))
    lengths = (source.shape[0], target.shape[0])
    takes = "the source and what follows it"
    vocabulary = min(source.values, _vocabulary(request, "decoder_tokens", "decoder_targets"))
    return TextPairs(
        corpus=open_corpus(request.path, vocabulary, sum(lengths), takes),
        seed=request.seed,
        source_length=lengths[0],
        target_length=lengths[1],
    )


def _classes(request: Request) -> Dataset:
    request.refuse_path("synthetic classifier data")
    classes = request.inputs["classes"].values if "classes" in request.inputs else 1
    return Blobs(classes=classes, seed=request.seed)


def _digits(request: Request) -> Dataset:
    request.refuse_path("handwritten digits")
    classes = request.inputs["classes"].values if "classes" in request.inputs else 1
    return open_digits(classes, request.seed)


def _faces(request: Request) -> Dataset:
    request.refuse_path("synthetic faces")
    return Patterns(classes=request.input("identities").values, seed=request.seed, of="identities")


def _clicks(request: Request) -> Dataset:
    request.refuse_path("synthetic click logs")
    sizes = {name: read.shape[0] for name, read in request.inputs.items() if read.shape}
    return SyntheticClicks(
        fields=sizes.get("categories", 0),
        numbers=sizes.get("features", 0),
        rows=request.inputs["categories"].values if "categories" in request.inputs else 1,
        seed=request.seed,
    )


OPENINGS: tuple[DatasetKind, ...] = (
    DatasetKind({"tokens": "t", "targets": "t"}, _next_tokens),
    DatasetKind(
        {"masked_tokens": "t", "masked_targets": "t", "segments": "t", "next_sentence": ""},
        _masked_text,
    ),
    DatasetKind({"source_tokens": "s", "decoder_tokens": "t", "decoder_targets": "t"}, _pairs),
    DatasetKind({"features": None, "classes": ""}, _classes),
    DatasetKind({"images": "c y x", "classes": ""}, _digits),
    DatasetKind({"images": "c y x", "identities": ""}, _faces),
    DatasetKind({"categories": "f", "features": "n", "clicks": ""}, _clicks),
)
"""Shape legend: s source and t target tokens, c channels, y rows and x columns of an image (in
either order), f fields, n numbers."""
