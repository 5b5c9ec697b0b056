"""Readers: whatever a file or a command line holds, it is read or refused in a sentence.

Every input is a sound one with up to three changes: bytes flipped, put in, taken out or cut off;
keys and values dropped, exchanged, or made what nobody means. `pytest --hypothesis-profile=many
tests/test_readers.py` tries a thousand of each kind.
"""

import io
import json
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, NoReturn

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millrace
from millrace.cli import exit_code_of, run
from millrace.executor.data import open_dataset
from millrace.executor.kernels import RunState
from millrace.executor.kernels.context import Dataset
from millrace.executor.rank import RankState
from millrace.executor.values.checkpoint import checked_checkpoint, load_checkpoint
from millrace.executor.values.weights import Weights, check_weights
from millrace.figures import prediction_of
from millrace.models.arrays import Array
from millrace.models.graph import to_json
from millrace.models.importers.opening import open_model
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.compile import compile_plan
from millrace.planner.plan import Plan
from millrace.published.notes import with_columns
from millrace.published.reading import read_table
from millrace.published.validation import ask
from millrace.simulator import predict
from tests.changed_files import HOSTILE, edited, remodelled, rewritten, spoilt
from tests.extras import optional
from tests.millrace.published.rows import BILLION, PLAIN
from tests.millrace.trainers.test_torchtitan_reading import OLDER
from tests.millrace.trainers.test_transformers import AXOLOTL
from tests.plan_requests import searched

FEW = settings(max_examples=30, deadline=None, derandomize=True, database=None)
EXAMPLES = settings() if settings.get_current_profile_name() == "many" else FEW
SECONDS_MAX = 30
ADDRESSES_BYTES = 2**31  # more than the process has already: what a reader may come to ask for
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class LateError(BaseException):
    """No answer in time; nothing in between takes it for an error of its own."""


@contextmanager
def bounded() -> Iterator[None]:
    """Time and memory that a reader may take; a hang, or a huge array, is an error."""

    def late(number: int, frame: object) -> NoReturn:
        raise LateError

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ADDRESSES_BYTES, hard))
    signal.alarm(SECONDS_MAX)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def read(reads: Callable[[Path], None], path: Path) -> int:
    """Exit code of a function, which may refuse by an error of ours with a message."""
    with bounded():
        try:
            reads(path)
        except Exception as error:
            code = exit_code_of(error)
            if code not in (1, 2) or not str(error):
                raise
            return code
    return 0


def commanded(*words: str) -> int:
    """Exit code of a command line: 0, or 1 or 2 and one sentence."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        bounded(),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", ["millrace", *words])
        code = run(list(words))
    said, told = out.getvalue(), err.getvalue()
    assert code in (0, 1, 2), told  # 3 is a bug, or nothing that an input alone should come to
    assert code == 0 or told.strip().rpartition("\n")[2].startswith("millrace: "), told
    assert "Traceback (most recent call last)" not in told
    assert not STEERING.search(said + told), words
    if "--json" in words and "Usage:" not in said:
        json.loads(said)
    return code


CLUSTER = b"""name = "mixed"
[[groups]]
device = "b200"
nodes = 2
devices_per_node = 4
inter_node = "8xndr+sharp"
[[groups]]
devices_per_node = 8
nodes = 4
[groups.device]
name = "mine"
source = "a data sheet"
memory_bytes = 80_000_000_000
memory_bandwidth_bytes_per_s = 2e12
launch_ns = 5_000
matmul_efficiency = 0.6
memory_efficiency = 0.8
[groups.device.flops_per_s]
fp32 = 19.5e12
bf16 = 312e12
[groups.intra_node]
bandwidth_bytes_per_s = 300e9
latency_ns = 3_000
source = "a data sheet"
[groups.inter_node]
bandwidth_bytes_per_s = 25e9
latency_ns = 5_000
source = "a data sheet"
[leaves]
nodes = 2
oversubscription = 2
[software]
name = "mine"
host_ns = 6_000
"""
HIDDEN = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 4}
DECODED = HIDDEN | {"num_hidden_layers": 2, "num_key_value_heads": 4, "vocab_size": 64}
DECODED |= {"max_position_embeddings": 16}
CONFIGURATIONS: tuple[dict[str, Any], ...] = (
    DECODED | {"model_type": "llama", "rope_theta": 10000.0, "rope_scaling": None},
    DECODED | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    DECODED
    | {"model_type": "deepseek_v3", "moe_intermediate_size": 8, "first_k_dense_replace": 1}
    | {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 2}
    | {"topk_group": 1, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 4}
    | {"qk_rope_head_dim": 4, "v_head_dim": 4},
    {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8}
    | {"vocab_size": 64, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5},
    DECODED | {"model_type": "bert", "type_vocab_size": 2},
    {"model_type": "t5", "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    | {"vocab_size": 64, "relative_attention_num_buckets": 8},
    HIDDEN
    | {"model_type": "vit", "num_hidden_layers": 2, "image_size": 16, "patch_size": 8}
    | {"num_channels": 3},
)
ONNX = """<ir_version: 8, opset_import: ["" : 17]>
mlp (float[batch, 6] x) => (float[batch, 4] y)
<float[2, 6] w1 = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float[2] b1 = {0, 0},
 float[2, 4] w2 = {1, 2, 3, 4, 5, 6, 7, 8}> {
    a = Gemm <transB = 1> (x, w1, b1)
    h = Relu (a)
    y = MatMul (h, w2)
}"""
DLPERF = """model,framework,version,dtype,xla,batch_per_gpu,nodes,gpus_per_node,throughput,unit,\
source_path,variant
resnet50-v1.5,OneFlow,0.2,fp32,,128,1,8,3000,images/s,a,
bert-base,NGC PyTorch,1.0,amp,,32,4,8,4000,sequences/s,b,
"""
LINES = (
    ("models", "gpt-demo", "--seq-len", "64"),
    ("clusters", "a100-sxm-80gb:8x16"),
    ("clusters", "h100-sxm-80gb", "b200:8x2", "--json"),
    ("show", "plan.json", "plan.json"),
    ("show", "plan.json", "--commands", "0"),
    ("simulate", "plan.json", "--straggler", "1:2.0", "--jitter", "0.1", "--seed", "3"),
    ("simulate", "plan.json", "--fidelity", "stage", "--trace", "trace.json"),
)


@cache
def tiny_plan(model: str = "mlp", ranks: int = 2, **pins: int) -> Plan:
    """Plan on this machine's cores, as the catalogue has them."""
    return searched(model, f"local:{ranks}", 8, **pins)


@cache
def sound_model() -> bytes:
    onnx = optional("onnx", extra="onnx")
    return bytes(onnx.parser.parse_model(ONNX).SerializeToString())


def sound_profile() -> bytes:
    points = ((1000, 2000), (100_000, 90_000))
    device = msgspec.structs.replace(
        tiny_plan().cluster.device,
        kernels={"matmul": points, "relu": points},
        collectives={"all_reduce": points},
    )
    return to_json(device)


def sound_plan_of_a_graph() -> bytes:
    with TemporaryDirectory() as name:
        path = Path(name) / "model.onnx"
        path.write_bytes(sound_model())
        return to_json(searched(str(path), "local:2", 8))


def sound_weights() -> bytes:
    graph, buffer = tiny_plan().graph, io.BytesIO()
    names = [op.outputs[0] for op in graph.ops if op.kind == "variable"]
    arrays = {name: np.zeros(graph.tensor(name).shape, np.float32) for name in names}
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


MIXTURE_NOTES = "experts=8;topk=2;moe_ffn=64;mla;sliding window 8;zero1=2;torch.compile"


def sound_table(fill: Callable[[dict[str, str]], dict[str, str]] = dict) -> str:
    """Table of three rows, with their columns filled by `fill`."""
    rows = [PLAIN, BILLION, PLAIN | {"model": "llama-x", "notes": MIXTURE_NOTES}]
    columns = [name for name in fill(PLAIN) if name != "line"]
    lines = [columns, *([fill(row)[name] for name in columns] for row in rows)]
    return "\n".join(map(",".join, lines))


def shown(path: Path) -> int:
    return (
        commanded("show", str(path))
        or commanded("simulate", str(path), "--fidelity", "op", "--json")
        or commanded("simulate", str(path), "--fidelity", "stage")
    )


def imported(path: Path) -> int:
    return commanded("import-config", str(path), "--cluster", "h100:8x1", "--json")


def priced(path: Path) -> None:
    cluster = millrace.cluster("local:2", profile=path)
    prediction_of(msgspec.structs.replace(tiny_plan(), cluster=cluster))


def weighed(path: Path) -> None:
    check_weights(path, tiny_plan().graph)
    weights = Weights(path)
    for name in sorted(weights.names):
        weights.value(name)


def opened(path: Path) -> None:
    """Open data as the model reads it that its ending is for."""
    model = "gpt2-small" if path.suffix == ".bin" else "gpt-demo"
    open_dataset(str(path), open_model(model, 16), 0)


def ask_rows(path: Path) -> None:
    table = read_table(path)
    for row in table.rows:
        ask(row, table.layout)


cached = cache(lambda sound: sound())  # content of a sound file, by what makes it
Changes = Callable[[bytes], st.SearchStrategy[bytes]]


class Kind(NamedTuple):
    """Input files of one kind: a sound one, changes to it, and who reads it, with an exit code."""

    file: str
    sound: Callable[[], bytes]
    changes: tuple[Changes, ...]
    reads: Callable[[Path], int]


JSON = (edited, edited, spoilt)
TOML = (partial(rewritten, separator="="), spoilt)
CSV = (partial(rewritten, separator=","), spoilt)
YAML = (partial(rewritten, separator=":"), spoilt)
KINDS = {
    "plan": Kind("p.json", lambda: to_json(tiny_plan()), JSON, shown),
    "plan of a pipeline": Kind("p.json", lambda: to_json(tiny_plan(pp=2)), JSON, shown),
    "graph": Kind("p.json", sound_plan_of_a_graph, JSON, shown),
    "cluster": Kind(
        "c.toml", lambda: CLUSTER, TOML, lambda path: commanded("clusters", str(path), "--json")
    ),
    "torchtitan's TOML": Kind("old.toml", OLDER.encode, TOML, imported),
    "Axolotl's YAML": Kind("a.yml", AXOLOTL.encode, YAML, imported),
    "profile": Kind("profile.json", sound_profile, JSON, partial(read, priced)),
    "trace": Kind(
        "trace.json",
        lambda: to_json(predict(tiny_plan(), fidelity="op").trace),
        JSON,
        lambda path: commanded("compare", str(path.with_name("plan.json")), str(path)),
    ),
    "published table": Kind("t.csv", lambda: sound_table().encode(), CSV, partial(read, ask_rows)),
    "table with columns": Kind(
        "t.csv", lambda: sound_table(with_columns).encode(), CSV, partial(read, ask_rows)
    ),
    "DLPerf's table": Kind("t.csv", DLPERF.encode, CSV, partial(read, ask_rows)),
    "weights": Kind("w.npz", sound_weights, (spoilt,), partial(read, weighed)),
    "text": Kind("d.txt", lambda: b"best of times, " * 80, (spoilt,), partial(read, opened)),
    "tokens": Kind("d.bin", np.arange(400, dtype="<u2").tobytes, (spoilt,), partial(read, opened)),
    "ONNX": Kind(
        "m.onnx",
        sound_model,
        (remodelled, remodelled, spoilt),
        lambda path: commanded("models", str(path)),
    ),
} | {
    f"config.json of {values['model_type']}": Kind(
        "config.json",
        json.dumps(values).encode,
        JSON,
        lambda path: commanded("models", str(path), "--json"),
    )
    for values in CONFIGURATIONS
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan, a trace and a checkpoint, in which every input is written anew."""
    path = tmp_path_factory.mktemp("readers")
    (path / "plan.json").write_bytes(to_json(tiny_plan()))
    millrace.run(tiny_plan(ranks=1), steps=1, checkpoint=path, trace=False)
    return path


@pytest.mark.parametrize("name", KINDS)
def test_a_sound_file_is_read(name: str, folder: Path) -> None:
    kind = KINDS[name]
    (folder / kind.file).write_bytes(kind.sound())
    assert kind.reads(folder / kind.file) == 0


@pytest.mark.parametrize("name", KINDS)
@EXAMPLES
@given(data=st.data())
def test_a_changed_file_is_read_or_refused(name: str, folder: Path, data: st.DataObject) -> None:
    kind = KINDS[name]
    changes = data.draw(st.sampled_from(kind.changes))
    (folder / kind.file).write_bytes(data.draw(changes(cached(kind.sound))))
    kind.reads(folder / kind.file)


@cache
def resuming_run() -> tuple[ActorGraph, Dataset]:
    """Actor graph and data of the run that resumes."""
    plan = tiny_plan(ranks=1)
    return compile_plan(plan), open_dataset(None, plan.model, 0)


def resumed(folder: Path) -> list[Array]:
    """Values that a run which resumes reads from the checkpoint in a folder."""
    plan, (graph, data) = tiny_plan(ranks=1), resuming_run()
    source, _ = checked_checkpoint(folder, graph, plan.model.name)
    run_state = RunState(seed=0, dataset=data, global_batch=8, microbatches=1, batch=8)
    state = RankState(graph, 0, run_state)
    load_checkpoint(source, state)
    registers = state.program.registers
    return [state.value(n, 0).copy() for n, register in enumerate(registers) if register.initial]


sound_values = cache(resumed)  # read before the first change


@settings(EXAMPLES, max_examples=max(150, EXAMPLES.max_examples))
@given(data=st.data())
def test_a_changed_checkpoint_is_read_to_the_same_bits_or_refused(
    folder: Path, data: st.DataObject
) -> None:
    def unchanged(folder: Path) -> None:
        for value, expected in zip(resumed(folder), sound_values(folder), strict=True):
            np.testing.assert_array_equal(value, expected)

    sound_values(folder)
    manifest = next(folder.glob("*/manifest.json"))
    shard = next(manifest.parent.glob("*.npy"))
    damages = (manifest, edited), (manifest, spoilt), (shard, spoilt)
    path, changes = data.draw(st.sampled_from(damages))
    content = path.read_bytes()
    try:
        path.write_bytes(data.draw(changes(content)))
        read(unchanged, folder)
    finally:
        path.write_bytes(content)


@EXAMPLES
@given(data=st.data())
def test_a_command_line_is_understood_or_refused(folder: Path, data: st.DataObject) -> None:
    words = list(data.draw(st.sampled_from(LINES)))
    for _ in range(data.draw(st.integers(1, 2))):
        index = data.draw(st.integers(0, len(words) - 1))
        value = str(data.draw(HOSTILE))[:5000].replace("\0", "?").replace("os:abort", "os:nothing")
        match data.draw(st.sampled_from(("out", "in", "kind", "cut", "word"))):
            case "out" if len(words) > 1:
                del words[index]
            case "in":
                others = (value, words[index], "--help", "--no-such", "--json")
                words.insert(index, data.draw(st.sampled_from(others)))
            case "kind" if ":" in words[index]:
                words[index] = f"{words[index].partition(':')[0]}:{value}"
            case "cut":
                words[index] = words[index][: data.draw(st.integers(0, len(words[index])))] + value
            case _:
                words[index] = value
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        commanded(*words)
