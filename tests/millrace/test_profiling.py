"""profile and clusters of this machine's GPUs, where there are none: a sentence, an exit code."""

import json
import sys

import pytest

import millrace
from millrace.cli import run
from millrace.executor.gpu.probing.measuring import profile_key
from millrace.executor.measure import kept_profile
from millrace.files import write_document
from millrace.planner.clusters import device
from millrace.planner.errors import ClusterError, InfeasibleError
from millrace.requested_cluster import crowding, is_local, with_software
from tests.executor.gpu.test_availability import machine

PLAN = ("plan", "gpt2-small", "--global-batch", "8", "--cluster")


@pytest.fixture
def call(answer):
    """Return (exit code, error) of a command line that fails."""

    def called(*arguments: str) -> tuple[int, str]:
        code, document = answer(*arguments)
        assert document["exit_code"] == code
        return code, document["error"]

    return called


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (("profile", "--device", "gpu"), "--device gpu"),
        (("profile", "--device", "gpu", "--ranks", "2"), "--device gpu"),
        ((*PLAN, "local-gpu:2"), "--cluster local-gpu:2"),
    ],
)
def test_what_lacks_for_a_gpu_is_said_in_one_sentence(call, monkeypatch, arguments, asked):
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "cupy", None)
        code, said = call(*arguments)
        assert code == 3
        assert said.startswith(f"{asked} needs CuPy: pip install '.[cuda]' in Millrace's checkout")
    machine(monkeypatch, driver=13020, gpus=0)
    code, said = call(*arguments)
    assert code == 1
    assert said.startswith(f"{asked} needs a GPU, and no GPU was found")


def test_more_gpus_than_there_are_cannot_be_had(call, monkeypatch):
    machine(monkeypatch, driver=13020, gpus=2)
    code, said = call("profile", "--device", "gpu", "--ranks", "3")
    assert (code, "need 3 GPUs, found 2: ask for at most 2" in said) == (1, True)
    with pytest.raises(InfeasibleError, match="found 2"):
        millrace.cluster("local-gpu:4")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("profile", "--device", "tpu"), "--device tpu: expected one of cpu, gpu"),
        (("profile", "--device", "gpu", "--seconds", "0"), "--seconds 0: expected a number"),
        ((*PLAN, "local-gpu:none"), "expected local-gpu:N with N GPUs, such as local-gpu:4"),
    ],
)
def test_what_cannot_be_understood_is_refused_before_a_gpu_is_looked_for(call, arguments, said):
    code, error = call(*arguments)
    assert code == 2
    assert said in error


def test_a_profile_that_is_given_needs_no_gpu(tmp_path):
    path = tmp_path / "gpu.json"
    write_document(path, device("h100-sxm-80gb"))
    cluster = millrace.cluster("local-gpu:1", profile=path)
    assert (cluster.name, cluster.device.name, cluster.devices) == (
        "local-gpu:1",
        "h100-sxm-80gb",
        1,
    )
    assert with_software(cluster, None) == cluster
    with pytest.raises(ClusterError, match="no collectives between 2 GPUs"):
        millrace.cluster("local-gpu:2", profile=path)


def named_gpus(monkeypatch, tmp_path, gpus: int) -> None:
    """Let the machine have GPUs with a name, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    machine(monkeypatch, driver=13020, gpus=gpus)
    runtime, cupy = sys.modules["cupy.cuda.runtime"], sys.modules["cupy"]
    monkeypatch.setattr(
        runtime, "getDeviceProperties", lambda index: {"name": b"A GPU"}, raising=False
    )
    monkeypatch.setattr(cupy, "__version__", "14.2.0", raising=False)


def test_a_gpu_that_was_measured_is_read_from_the_cache(monkeypatch, tmp_path):
    named_gpus(monkeypatch, tmp_path, 1)
    key = profile_key(1, "--cluster local-gpu:1")
    assert "gpu A GPU; driver 13.2; runtime 13.2; cupy 14.2.0; ranks 1" in key
    measured = device("h100-sxm-80gb")
    kept_profile(key, lambda: measured, refresh=False, told="", progress=None)
    assert millrace.cluster("local-gpu:1", progress=pytest.fail).device == measured
    with pytest.raises(ClusterError, match="--cluster local-gpu:1,local-gpu:2"):
        millrace.scale("mlp", ["local-gpu:1"], nodes=[1, 2], global_batches=[8])


def test_a_limit_of_time_reaches_every_rank_and_what_it_left_out_is_said(
    capsys, monkeypatch, tmp_path
):
    named_gpus(monkeypatch, tmp_path, 2)
    orders = []

    def run_ranks(module, ranks, folder):
        orders.append(json.loads((folder / "order.json").read_bytes()))
        timings = {
            "name": "A GPU",
            "memory_bytes": 1,
            "multiprocessors": 1,
            "launch_ns": 1,
            "memory_bandwidth_bytes_per_s": 1.0,
            "kernels": {"matmul@bf16": [[64, 2]]},
            "collectives": {},
            "missed": [] if orders[-1]["limit_s"] is None else ["relu@bf16", "relu@bf16"],
        }
        for rank in range(ranks):
            (folder / f"timings.{rank}.json").write_text(json.dumps(timings))

    monkeypatch.setattr("millrace.executor.gpu.probing.measuring.run_ranks", run_ranks)
    path = tmp_path / "profile.json"
    command = ["profile", "--device", "gpu", "--ranks", "2", "-o", str(path)]
    left = "in 15 s 2 kernels were not reached, so by rates are priced: relu@bf16"
    for options, limit_s, timed_s in (([], None, 60.0), (["--seconds", "15"], 15.0, 10.0)):
        assert run([*command, *options]) == 0
        assert (orders[-1]["limit_s"], orders[-1]["seconds"]) == (limit_s, timed_s)
        said = capsys.readouterr().err
        assert (left in said) == bool(options)
        written = json.loads(path.read_bytes())
        assert written["source"].endswith(left) == bool(options)
        assert written["kernels"] == {"matmul@bf16": [[64, 2]]}


def test_a_limit_of_time_reaches_the_measuring_of_cores(monkeypatch):
    asked = []

    def cached_profile(ranks, *, refresh, seconds, unkept, **_):
        asked.append((ranks, refresh, seconds))
        return device("h100-sxm-80gb")

    monkeypatch.setattr("millrace.profiling.local_profile.cached_profile", cached_profile)
    assert run(["profile", "--ranks", "1", "--json"]) == 0
    assert run(["profile", "--ranks", "1", "--seconds", "3", "--json"]) == 0
    assert asked == [(1, True, 11.0), (1, True, 3.0)]


def test_clusters_of_this_machine_are_told_from_others():
    assert is_local("local:2")
    assert is_local("local-gpu:1")
    assert not is_local("locals.toml")


def test_many_processes_on_few_cores_are_told_of_before_they_are_measured():
    assert crowding(64, 2).startswith("64 processes share 2 cores: measuring them takes minutes")
    assert crowding(8, 2) == ""
