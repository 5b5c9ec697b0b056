"""Kinds of input files: sound ones to begin from, and who reads them.

What a command does with a file beyond reading it is kept short (a tiny model on two ranks); what a
run would read in its ranks is read by the same functions in this process.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from random import Random

import msgspec
import numpy as np

from benchmarks.malformed_texts import CLUSTER, CONFIGURATIONS, DLPERF, LANGUAGE
from benchmarks.mutations import (
    NUMBERS,
    TEXTS,
    Mutation,
    of_archive,
    of_array,
    of_bytes,
    of_json,
    of_lines,
    of_message,
)
from millrace import api
from millrace.models.graph import to_json
from millrace.planner.plan import Plan

Arguments = list[str]
# A command line, or a function, that reads a file.
Asked = Arguments | Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Input files of one kind.

    Attributes
    ----------
    name
        For the table.
    file
        Name of the file that is mutated, in a folder of its own.
    sound
        Makes the folder's content, as bytes by file name; made once.
    mutations
        Drawn from, each as likely as the next.
    ask
        Who reads the folder: one is drawn for each input.
    """

    name: str
    file: str
    sound: Callable[[], dict[str, bytes]]
    mutations: tuple[Mutation, ...]
    ask: Callable[[Path], list[Asked]]


@cache
def tiny_plan(model: str = "mlp", ranks: int = 2, **pins: int) -> Plan:
    """Plan on this machine's cores, as the catalogue has them."""
    return api.search(model, api.cluster(f"local:{ranks}", measured=False), 8, pins=pins or None)


def _plan() -> dict[str, bytes]:
    return {"plan.json": to_json(tiny_plan())}


def _pipeline() -> dict[str, bytes]:
    return {"plan.json": to_json(tiny_plan("mlp", 2, pp=2))}


def _trace() -> dict[str, bytes]:
    trace = api.simulate(tiny_plan(), fidelity="op").trace
    return _plan() | {"trace.json": to_json(trace)}


def _profile() -> dict[str, bytes]:
    device = tiny_plan().cluster.device
    points = ((1000, 2000), (100_000, 90_000))
    measured = msgspec.structs.replace(
        device, kernels={"matmul": points, "relu": points}, collectives={"all_reduce": points}
    )
    return {"profile.json": to_json(measured)}


def priced(path: Path) -> object:
    """Figures of a plan on a machine whose profile lies in a file."""
    cluster = api.cluster("local:2", profile=path)
    return api.figures(msgspec.structs.replace(tiny_plan(), cluster=cluster))


def asked_of_table(path: Path) -> object:
    """Rows of a table as questions."""
    from millrace.published.reading import read_table
    from millrace.published.validation import ask

    table = read_table(path)
    return [ask(row, table.layout) for row in table.rows]


@cache
def _checkpoint() -> dict[str, bytes]:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as name:
        api.execute(tiny_plan("mlp", 1), steps=1, checkpoint=Path(name), trace=False)
        (step_folder,) = Path(name).iterdir()
        return {
            f"{step_folder.name}/{file.name}": file.read_bytes()
            for file in sorted(step_folder.iterdir())
        }


def _shard() -> str:
    """Name of the smallest shard of a tensor with a shape: its header is most of it."""
    files = {name: len(content) for name, content in _checkpoint().items()}
    return min((name for name in files if name.endswith(".npy")), key=lambda name: files[name])


def loaded(folder: Path) -> object:
    """State of a rank, read from the checkpoint in a folder as a run that resumes reads it."""
    from millrace.executor.data import open_dataset
    from millrace.executor.kernels import RunState
    from millrace.executor.rank import RankState
    from millrace.executor.values.checkpoint import checked_checkpoint, load_checkpoint

    plan = tiny_plan("mlp", 1)
    graph, data = api.compile(plan), open_dataset(None, plan.model, 0)
    source, _ = checked_checkpoint(folder, graph, plan.model.name)
    run = RunState(seed=0, dataset=data, global_batch=8, microbatches=1, batch=8)
    state = RankState(graph, 0, run)
    load_checkpoint(source, state)
    return state


def _weights() -> dict[str, bytes]:
    import io

    graph = tiny_plan().graph
    shapes = {op.outputs[0]: graph.tensor(op.outputs[0]).shape for op in graph.ops[:4]}
    buffer = io.BytesIO()
    np.savez(buffer, **{name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
    return {"weights.npz": buffer.getvalue()}


def weighed(path: Path) -> object:
    """Values of every variable that a file of weights has."""
    from millrace.executor.values.weights import Weights, check_weights

    check_weights(path, tiny_plan().graph)
    weights = Weights(path)
    return [weights.value(name) for name in sorted(weights.names)]


def opened(path: Path, model: str) -> object:
    """Description of the data that a model would read, opened."""
    from millrace.executor.data import open_dataset
    from millrace.models.importers.opening import open_model

    data = open_dataset(str(path), open_model(model, 16), 0)
    return data.description


def _onnx() -> dict[str, bytes]:
    import onnx

    text = """<ir_version: 8, opset_import: ["" : 17]>
    mlp (float[batch, 6] x) => (float[batch, 4] y)
    <float[2, 6] w1 = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float[2] b1 = {0, 0},
     float[2, 4] w2 = {1, 2, 3, 4, 5, 6, 7, 8}> {
        a = Gemm <transB = 1> (x, w1, b1)
        h = Relu (a)
        y = MatMul (h, w2)
    }"""
    return {"model.onnx": onnx.parser.parse_model(text).SerializeToString()}


@cache
def _exported() -> dict[str, bytes]:
    import io

    import torch

    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(model, (torch.zeros(2, 4),), dynamic_shapes=({0: batch},))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return {"model.pt2": buffer.getvalue()}


LINES = (
    *(("models", "gpt-demo", "--seq-len", "64"), ("models", "mlp"), ("clusters", "local:2")),
    *(("clusters", "a100-sxm-80gb:8x16"), ("clusters", "h100-sxm-80gb", "b200:8x2")),
    *(
        ("show", "plan.json"),
        ("show", "plan.json", "plan.json"),
        ("show", "plan.json", "--commands", "0"),
    ),
    ("simulate", "plan.json", "--straggler", "1:2.0", "--jitter", "0.1", "--seed", "3"),
    ("simulate", "plan.json", "--fidelity", "stage", "--trace", "trace.json"),
)


def of_words(content: bytes, draw: Random) -> bytes:
    """Command line, as JSON, with one or two of its words changed."""
    words = list(draw.choice(LINES))
    for _ in range(draw.randint(1, 2)):
        position = draw.randrange(len(words))
        value = str(draw.choice(draw.choice((NUMBERS, TEXTS))))[:5000].replace("\0", "?")
        value = value.replace("os:abort", "os:nothing")  # it would be called, as asked
        change = draw.randrange(6)
        if change == 0:
            del words[position]
        elif change == 1:
            words.insert(
                position, draw.choice((value, words[position], "--help", "--no-such", "--json"))
            )
        elif change == 2 and ":" in words[position]:
            words[position] = f"{words[position].partition(':')[0]}:{value}"
        elif change == 3:
            words[position] = words[position][: draw.randrange(len(words[position]) + 1)] + value
        else:
            words[position] = value
        words = words or [""]
    return json.dumps(words).encode()


def _words(folder: Path) -> list[Asked]:
    words: Arguments = json.loads((folder / "words.json").read_bytes())
    return [words]


def _commands(*lines: tuple[str, ...]) -> Callable[[Path], list[Asked]]:
    """Command lines in which FILE stands for the folder."""
    return lambda folder: [[word.replace("FILE", str(folder)) for word in line] for line in lines]


SHOWN = _commands(
    ("show", "FILE/plan.json"),
    ("simulate", "FILE/plan.json", "--fidelity", "stage"),
    ("simulate", "FILE/plan.json", "--fidelity", "op", "--json"),
)
FORMED = (of_json, of_json, of_json, of_bytes)


def kinds() -> Iterator[Kind]:
    """Yield every kind, those of optional packages where these are installed."""
    yield from _of_documents()
    yield from _of_tables()
    yield from _of_training()
    yield Kind(
        name="arguments",
        file="words.json",
        sound=lambda: _plan() | {"words.json": b""},
        mutations=(of_words,),
        ask=_words,
    )
    yield from _of_packages()


def _of_documents() -> Iterator[Kind]:
    """Yield kinds of documents: plans, traces, profiles and clusters."""
    yield Kind(name="plan", file="plan.json", sound=_plan, mutations=FORMED, ask=SHOWN)
    yield Kind(
        name="plan of a pipeline", file="plan.json", sound=_pipeline, mutations=FORMED, ask=SHOWN
    )
    yield Kind(
        name="trace",
        file="trace.json",
        sound=_trace,
        mutations=FORMED,
        ask=_commands(("compare", "FILE/plan.json", "FILE/trace.json")),
    )
    yield Kind(
        name="profile",
        file="profile.json",
        sound=_profile,
        mutations=FORMED,
        ask=lambda folder: [lambda: priced(folder / "profile.json")],
    )
    yield Kind(
        name="cluster",
        file="cluster.toml",
        sound=lambda: {"cluster.toml": CLUSTER},
        mutations=(of_lines("="), of_lines("="), of_bytes),
        ask=_commands(
            ("clusters", "FILE/cluster.toml"), ("clusters", "FILE/cluster.toml", "--json")
        ),
    )


def _of_tables() -> Iterator[Kind]:
    """Yield kinds of configurations of models, and of tables of published runs."""
    for name, values in CONFIGURATIONS.items():
        content = json.dumps({"model_type": name} | values).encode()
        yield Kind(
            name=f"config.json of {name}",
            file="config.json",
            sound=lambda content=content: {"config.json": content},
            mutations=FORMED,
            ask=_commands(("models", "FILE/config.json"), ("models", "FILE", "--json")),
        )
    for name, text in (("language", LANGUAGE), ("DLPerf", DLPERF)):
        yield Kind(
            name=f"CSV, {name}",
            file="table.csv",
            sound=lambda text=text: {"table.csv": text.encode()},
            mutations=(of_lines(","), of_lines(","), of_bytes),
            ask=lambda folder: [lambda: asked_of_table(folder / "table.csv")],
        )


def _of_training() -> Iterator[Kind]:
    """Yield kinds that a run begins with: a checkpoint, weights, data."""
    yield Kind(
        name="manifest",
        file=next(name for name in _checkpoint() if name.endswith("manifest.json")),
        sound=_checkpoint,
        mutations=FORMED,
        ask=lambda folder: [lambda: loaded(folder)],
    )
    yield Kind(
        name="shard",
        file=_shard(),
        sound=_checkpoint,
        mutations=(of_bytes, of_array),
        ask=lambda folder: [lambda: loaded(folder)],
    )
    yield Kind(
        name="weights",
        file="weights.npz",
        sound=_weights,
        mutations=(of_archive, of_archive, of_bytes),
        ask=lambda folder: [lambda: weighed(folder / "weights.npz")],
    )
    text = b"It was the best of times, it was the worst of times. " * 20
    yield Kind(
        name="text",
        file="data.txt",
        sound=lambda: {"data.txt": text},
        mutations=(of_bytes,),
        ask=lambda folder: [lambda: opened(folder / "data.txt", "gpt-demo")],
    )
    yield Kind(
        name="tokens",
        file="data.bin",
        sound=lambda: {"data.bin": np.arange(400, dtype="<u2").tobytes()},
        mutations=(of_bytes,),
        ask=lambda folder: [lambda: opened(folder / "data.bin", "gpt2-small")],
    )


def _of_packages() -> Iterator[Kind]:
    """Yield kinds that a package reads, where it is installed."""
    if find_spec("onnx") is not None:
        yield Kind(
            name="ONNX",
            file="model.onnx",
            sound=_onnx,
            mutations=(of_message, of_message, of_bytes),
            ask=_commands(("models", "FILE/model.onnx")),
        )
    if find_spec("torch") is not None:
        yield Kind(
            name=".pt2",
            file="model.pt2",
            sound=_exported,
            mutations=(of_archive, of_archive, of_bytes),
            ask=_commands(("models", "FILE/model.pt2")),
        )
