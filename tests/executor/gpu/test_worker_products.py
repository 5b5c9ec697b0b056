"""A process of a run: whether it times products, and that all ranks take what is agreed on."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from millrace.executor.backend import Backend
from millrace.executor.gpu import gpu_worker
from millrace.executor.gpu.gemm.tuning_cache import Pick, Picks, load_picks

PICK = Pick(taken="0" * 128, duration_ns=5)


class NotingDevice:
    """A device that notes what it is given."""

    def __init__(self, local, products, networks, *, tuner) -> None:
        self.networks, self.tuner, self.again = networks, tuner, 0

    def plan_again(self) -> None:
        self.again += 1

    def close(self) -> None:
        pass


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, deterministic: bool) -> NotingDevice:
    """One rank of two on one node, whose products the other has picked something else for."""
    devices: list[NotingDevice] = []
    used = Picks(device="x", library_version=1, picks={"p": PICK, "q": PICK})
    other = Picks(device="x", library_version=1, picks={"p": Pick(taken="1" * 128, duration_ns=4)})

    def device(*given, **more) -> NotingDevice:
        devices.append(NotingDevice(*given, **more))
        return devices[-1]

    def train(job, folder, world, device, collectives, prepared) -> None:
        if device.tuner is not None:
            device.tuner.settle(used)
            device.tuner._cached_picks = used
        prepared()

    monkeypatch.setattr(gpu_worker, "CupyDevice", device)
    monkeypatch.setattr(gpu_worker, "require_gpu", lambda ranks: None)
    monkeypatch.setattr(gpu_worker, "cache_folder", lambda: folder)
    monkeypatch.setattr(gpu_worker, "train_and_record", train)
    world = SimpleNamespace(
        rank=1,
        size=2,
        local_rank=lambda: 0,
        communicator=SimpleNamespace(allgather=lambda own_picks: [other, own_picks]),
    )
    graph = SimpleNamespace(ranks=2)
    job = SimpleNamespace(loopback=True, graph=graph, **_without_loopback(deterministic))
    gpu_worker.run_on_gpu(job, folder, world)  # type: ignore[arg-type]
    return devices[0]


def _without_loopback(deterministic: bool) -> dict[str, bool]:
    orders = Backend(name="cupy", deterministic=deterministic).orders
    return {name: value for name, value in orders.items() if name != "loopback"}


def test_ranks_agree_and_what_they_agreed_on_is_kept(monkeypatch, tmp_path: Path) -> None:
    device = run(monkeypatch, tmp_path, False)
    assert (device.networks.keywords, device.again) == ({"deterministic": False}, 1)
    picks = load_picks(tmp_path, "x", 1).picks
    assert {name: pick.taken[0] for name, pick in picks.items()} == {"p": "1", "q": "0"}


def test_a_deterministic_run_times_nothing_and_keeps_nothing(monkeypatch, tmp_path: Path) -> None:
    device = run(monkeypatch, tmp_path, True)
    assert device.networks.keywords == {"deterministic": True}
    assert (device.tuner, device.again) == (None, 0)
    assert not list(tmp_path.iterdir())
