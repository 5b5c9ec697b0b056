"""The benchmark of training on a GPU: ours on the emulated device, PyTorch's on the CPU.

Its figures and losses are checked here, not its speed.
"""

from importlib.util import find_spec
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.gpu import step_times as gpu_training
from benchmarks.gpu.emulated import BRIEF, emulated
from benchmarks.gpu.rows import row
from benchmarks.gpu.slices.parts import SECONDS, SLICES
from benchmarks.gpu.starting_point import RandomSamples, sources_of, starting_values
from benchmarks.gpu.trained_models import TRAINED, benchmark_model
from millrace.executor.reference import run_reference
from millrace.files import write_document
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import build, build_training
from millrace.planner.clusters import device, parse_cluster
from millrace.planner.memory.device_overhead import reserved_bytes
from tests.executor.cuda.emulation.machine import COMPILER
from tests.executor.sources import ROOT
from tests.extras import optional
from tests.parallel_runs import STRAYING
from tests.small_models import small

BATCH, LOSSES = 4, 4
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs g++")


def of_one_layer(precision: str = "fp32") -> ModelSpec:
    return emulated(benchmark_model("gpt2-small", precision))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Figures of a small model on the emulated device, and what was handed over meanwhile.

    By its profile the device has room for the second batch alone.
    """
    profile = tmp_path_factory.mktemp("gpu") / "profile.json"
    room = reserved_bytes(parse_cluster("h100-sxm-80gb:1x1")) + 2**20
    write_document(profile, msgspec.structs.replace(device("h100-sxm-80gb"), memory_bytes=room))
    handed: list[dict[str, Any]] = []
    figures = gpu_training.trained(
        of_one_layer("bf16"), (16 * BATCH, BATCH), profile, handed.append, BRIEF
    )
    return figures | {"handed": handed}


@needs_compiler
def test_figures_of_a_training_are_complete(ours: dict[str, Any]) -> None:
    assert ours["batch"] == BATCH
    assert ours["memory_bytes"]["arena"] == ours["planned_arena_bytes"]
    assert ours["grown_bytes"] == 0
    assert ours["bit_equal"]
    assert {"our attention_mma": 1} in ours["picked"].values()
    assert ours["deterministic_price"] == ours["deterministic_s"] / ours["measured_s"] - 1
    assert len(ours["losses"]) == LOSSES
    for name in ("predicted_s", "measured_s", "fed_s", "eager_s", "host_share", "busy_s"):
        assert ours[name] > 0, name
    assert 0 <= ours["idle_share"] < 1
    assert ours["prediction_error"] == ours["predicted_s"] / ours["measured_s"] - 1
    for kind in ours["kinds"]:
        assert kind["actors"] > 0
        assert all(kind[name] > 0 for name in ("measured_s", "predicted_s")), kind
    early, later = ours["handed"]
    assert early["measured_s"] > 0
    assert later.items() <= ours.items(), "what is handed over is told again, with more beside it"


@needs_compiler
def test_losses_are_those_of_the_reference(ours: dict[str, Any]) -> None:
    np.testing.assert_allclose(ours["losses"], reference(of_one_layer(), LOSSES), atol=2e-2)


def reference(spec: ModelSpec, steps: int) -> list[float]:
    """Losses of the single-device reference from where every benchmark starts."""
    graph = build_training(spec, TrainingSpec(), BATCH)
    data = RandomSamples(BATCH * steps)
    return list(run_reference(graph, microbatches=1, steps=steps, dataset=data).losses)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["gpt", "llama", "mixtral", "resnet"])
def test_pytorch_trains_as_the_reference_does(name: str) -> None:
    """Several steps with the same weights, samples, decay, clipping and updates.

    In float32 PyTorch strays from the truth as our own float32 does.
    """
    optional("torch")
    from benchmarks.gpu.torch_models.settings import Setting
    from benchmarks.gpu.torch_models.training import tried

    spec = small(name)
    graph = build(spec, BATCH)
    values = dict(starting_values(graph))
    expected = np.array(reference(small(name, "fp64"), LOSSES))
    spread = np.abs(np.array(reference(spec, LOSSES)) - expected).max()
    strays = STRAYING * spread + 1e-5  # losses are told in five digits
    assert strays < 1e-3
    for numerics, apart in (("float32", strays), ("autocast", 2e-2), ("masters", 2e-2)):
        setting = Setting(numerics=numerics, vocab_multiple=64)
        attempt = tried(spec, graph, setting, values, BATCH, 3, LOSSES, "cpu")
        np.testing.assert_allclose(attempt["losses"], expected, atol=apart, err_msg=numerics)
        assert attempt["step_s"] > 0


@pytest.mark.filterwarnings("ignore")
def test_a_change_that_is_faster_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    optional("torch")
    from benchmarks.gpu.torch_models import training
    from benchmarks.gpu.torch_models.settings import changes_of

    seen = []

    def timed(spec: Any, graph: Any, setting: Any, *rest: Any) -> dict[str, object]:
        seen.append(setting)
        if setting.attention == "cudnn":
            raise RuntimeError("no such kernel")
        return {"step_s": 2.0 - setting.graph + (setting.optimizer == "foreach")}

    monkeypatch.setattr(training, "tried", timed)
    monkeypatch.setattr(training, "_forget", lambda device: None)
    spec = small("gpt", "bf16")
    how = {"steps": 1, "losses": 1, "device": "cuda", "deterministic": True}
    attempts = list(training.tries(spec, BATCH, {}, budget_s=1e9, **how))
    assert [attempt["name"] for attempt in attempts][-1] == "deterministic"
    assert len(attempts) <= len(changes_of(spec)) + 1
    by_name = {attempt["name"]: attempt for attempt in attempts}
    assert by_name["cuDNN attention"]["error"] == "RuntimeError: no such kernel"
    assert by_name["flash attention"]["setting"]["graph"], "the graph was faster, and was kept"
    assert not by_name["flash attention"]["setting"]["deterministic"]
    assert seen[-1].graph
    assert seen[-1].optimizer == "fused"
    none = list(training.tries(spec, BATCH, {}, budget_s=-1.0, **how))
    assert all(attempt["error"] == "no time was left" for attempt in none)


def test_samples_are_the_same_whoever_reads_them() -> None:
    sources = sources_of(build(small("gpt"), BATCH))
    first, second = RandomSamples(6), RandomSamples(6, sources.values())
    numbers = np.array([5, 0, 7])
    tokens = first.read(sources["tokens"], numbers)
    np.testing.assert_array_equal(tokens, second.read(sources["tokens"], numbers))
    targets = first.read(sources["targets"], numbers)
    np.testing.assert_array_equal(tokens[:, 1:], targets[:, :-1])
    np.testing.assert_array_equal(
        first.read(sources["tokens"], np.array([1])), tokens[2:], "numbers repeat after six"
    )


TRIED = {
    "compiled": "",
    "graph": False,
    "optimizer": "fused",
    "deterministic": False,
}


def test_a_row_sets_the_best_of_theirs_beside_ours() -> None:
    entry = TRAINED[0]
    ours = {
        "ok": True,
        "figures": {"batch": 2, "seq_len": 10, "measured_s": 0.5, "eager_s": 1.0, "bit_equal": True}
        | {"deterministic_price": 0.25}
        | {"losses": [3.0, 2.0], "device_used_bytes": 10, "predicted_s": 0.4, "host_share": 0.1},
    }
    tried = [
        {"setting": TRIED, "step_s": 2.0, "losses": [3.0, 2.5]},
        {
            "setting": TRIED | {"compiled": "default"},
            "step_s": 0.25,
            "losses": [3.0, 2.01],
            "device_used_bytes": 20,
        },
        {"setting": TRIED | {"compiled": "default", "deterministic": True}, "step_s": 0.5},
        {"setting": TRIED | {"graph": True}, "error": "no time was left"},
    ]
    comparison = row(entry, ours, {"ok": True, "figures": {"tried": tried, "items": 20}})
    assert comparison["ok"]
    assert comparison["error"] is None
    assert comparison["millrace_tokens_per_s"] == 40
    assert comparison["torch_tokens_per_s"] == 80
    assert comparison["ratio"] == 0.5
    assert comparison["eager_ratio"] == 2.0
    assert comparison["torch_eager_tokens_per_s"] == 10
    assert comparison["memory_ratio"] == 0.5
    assert comparison["torch_deterministic_price"] == 1.0
    assert comparison["losses_apart"] == pytest.approx(0.01)
    assert comparison["losses_equal"]
    assert comparison["torch_setting"]["compiled"] == "default"
    assert comparison["torch_images_per_s"] is None


def test_every_model_can_be_planned_and_has_settings() -> None:
    names = [entry.model for entry in TRAINED]
    assert names[0] == "gpt2-small", "the most important first"
    assert {benchmark_model(name).precision for name in names} == {"bf16"}
    assert sum(entry.weight for entry in TRAINED) == pytest.approx(1)
    for name in names:
        spec = benchmark_model(name)
        assert emulated(spec).family == spec.family
        assert ("experts" in emulated(spec).config) == ("experts" in spec.config)


def test_slices_train_models_and_run_tests_that_there_are() -> None:
    for part in (part for parts in SLICES.values() for part in parts):
        assert find_spec(part.module), part
        assert part.seconds <= SECONDS, part
        for given in part.arguments:
            assert not given.endswith(".py") or (ROOT / given).is_file(), part
        if "--models" in part.arguments:
            assert part.arguments[-1] in {entry.model for entry in TRAINED}, part
