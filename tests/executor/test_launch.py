"""Plans run as processes: the mathematics of one process, causes of failure, nothing left."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import msgspec
import numpy as np
import pytest

from millrace.executor.data import open_dataset
from millrace.executor.errors import CheckpointError, DataError, ExecutorError
from millrace.executor.hosts.job_remains import TOKEN
from millrace.executor.hosts.local_ranks import RankEnded
from millrace.executor.hosts.rank_failures import failure_of, report_failure
from millrace.executor.hosts.rank_runs import run_ranks
from millrace.executor.kernels import RunState
from millrace.executor.launch import execute
from millrace.executor.processes import check_capacity
from millrace.executor.rank import RankState
from millrace.executor.training.orders import Saving, Supervision
from millrace.executor.values.initial import initial_value
from millrace.models.zoo.catalogue import build_training
from millrace.planner.clusters import framework, local_cluster
from millrace.planner.compile import compile_plan
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.plan import Plan, recomputed
from tests.executor.sources import ROOT
from tests.in_process import KernelWork, execute_lockstep
from tests.millrace.plans import data_parallel_pipeline
from tests.plan_requests import plan_of
from tests.small_models import gpt_of

DEADLINE_S = 120.0


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Require that no rank, shared-memory segment or job folder outlives a run."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    before = segments()
    yield
    assert is_soon(lambda: not ranks_of(os.getpid()))
    assert is_soon(lambda: not unused(segments() - before))
    assert is_soon(lambda: not list(folder.iterdir()))


def is_soon(condition: Callable[[], bool]) -> bool:
    """True if the condition comes true; the deadline only ends what never does."""
    deadline = monotonic() + DEADLINE_S
    while not (came_true := condition()) and monotonic() < deadline:
        sleep(0.02)
    return came_true


def segments() -> set[Path]:
    return set(Path("/dev/shm").glob("*mpich*"))


def unused(segments: set[Path]) -> set[Path]:
    """Segments that no process maps: those of other runs, which go on meanwhile, are not ours."""
    for path in Path("/proc").glob("[0-9]*/maps") if segments else ():
        try:
            mapped = path.read_text()
        except OSError:
            continue
        segments = {segment for segment in segments if str(segment) not in mapped}
    return segments


def ranks_of(parent: int) -> list[int]:
    """Process ids of the ranks that `parent` started."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{TOKEN}={parent}-".encode() in path.read_bytes():
                pids.append(int(path.parent.name))
        except OSError:
            continue
    return pids


def losses_in_one_process(plan: Plan, steps: int) -> list[float]:
    training_graph = build_training(plan.model, plan.training, plan.batch)
    graph = compile_plan(plan)
    variables = {op.outputs[0]: op for op in training_graph.ops if op.kind == "variable"}
    states = []
    for rank in range(graph.ranks):
        run = RunState(
            seed=0,
            dataset=open_dataset(None, plan.model, 0),
            global_batch=plan.global_batch,
            microbatches=plan.microbatches,
            batch=plan.batch,
        )
        state = RankState(graph, rank, run)
        for index, register in enumerate(state.program.registers):
            if register.initial and register.tensor in variables:
                attributes = variables[register.tensor].attributes
                shape, dtype = register.global_shape, register.dtype
                state.load(index, initial_value(register.tensor, shape, dtype, attributes, 0))
        states.append(state)
    work = KernelWork(states)
    execute_lockstep(graph, steps, work, work.meet)
    return [loss / count for loss, count, _ in states[0].run_state.totals]


def test_processes_give_the_losses_of_one_process_and_checkpoints_go_on(tmp_path: Path) -> None:
    """So do those that recompute, to the bit; a checkpoint that lacks a file names it."""
    plan = data_parallel_pipeline()
    expected = losses_in_one_process(plan, 5)
    told: list[tuple[int, float]] = []
    folder = tmp_path / "kept"
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        execute(plan, steps=1, saving=Saving(folder=folder, resume=True))
    first = execute(
        plan,
        steps=4,
        trace=True,
        saving=Saving(folder=folder, every=2),
        supervision=Supervision(progress=lambda step, loss: told.append((step, loss))),
    )
    np.testing.assert_allclose(first.losses, expected[:4], rtol=1e-5)
    assert told == list(enumerate(first.losses))
    assert first.ranks == 4
    assert first.trace.plan_digest == plan.digest()
    assert len(first.trace.step_end_ns) == 4
    assert all(list(ends) == sorted(ends) for ends in first.trace.step_end_ns)
    firings = sum(sum(lane.firings) for lane in first.trace.lanes)
    assert len(first.trace.spans) == 4 * firings
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000002", "step-00000004"]

    def gone(step: int, loss: float) -> None:
        raise BrokenPipeError

    second = execute(
        plan,
        steps=1,
        saving=Saving(folder=folder, resume=True),
        supervision=Supervision(progress=gone),
    )
    np.testing.assert_allclose(second.losses, expected[4:], rtol=1e-5)
    assert second.first_step == 4
    again = recomputed(plan, {"h.0": "full", "h.2": "selective", "h.3": "full", "head": "full"})
    third = execute(again, steps=3, trace=True)
    assert third.losses == first.losses[:3]
    assert third.gradient_norms == first.gradient_norms[:3]
    assert {phase for lane in third.trace.lanes for phase in lane.phases} >= {"recompute"}
    file = next((folder / "step-00000005").glob("head*.npy"))
    file.unlink()
    with pytest.raises(CheckpointError, match=file.name):
        execute(plan, steps=1, saving=Saving(folder=folder, resume=True))


def test_data_that_is_not_there_is_refused_before_any_process_starts() -> None:
    with pytest.raises(DataError, match="no-such-file"):
        execute(data_parallel_pipeline(), steps=1, data="/no-such-file")


def test_a_user_folder_with_the_names_of_our_packages_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    for name in ("models/__init__.py", "planner.py", "numpy.py", "executor.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong module')")
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from millrace.executor.launch import execute\n"
        "from tests.millrace.plans import data_parallel_pipeline\n"
        "print(len(execute(data_parallel_pipeline(), steps=1).losses))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == "1\n", done.stderr


RANK = """
import os, sys, signal
from pathlib import Path
from time import sleep
from millrace.executor.errors import ExecutorError
from millrace.executor.transport.mpi import join_world
from millrace.executor.hosts.rank_line import open_line
from millrace.executor.worker import give_up

folder = Path(sys.argv[1])
done = open_line(folder)
world = join_world()
world.barrier()
"""


def run_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, ranks: int = 2, first: str = RANK
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (tmp_path / "rank_script.py").write_text(first + body)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run_ranks("rank_script", ranks, folder)


def test_work_that_raises_in_the_middle_of_a_run_names_its_actor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f"""
sys.path.insert(0, {str(ROOT)!r})
from millrace.executor.rank import RankMemory
from millrace.executor.transport.shared import share_memory
from millrace.executor.worker import run_rank
from tests.executor.actor_graphs import split_matmul

class Fails:
    def run(self, fire):
        if world.rank == 1 and fire.firing == 7:
            raise FloatingPointError("overflow")

graph = split_matmul(3, size=6)
shared = share_memory(graph, world)
memory = RankMemory(graph, world.rank, shared.blocks[world.rank])
run_rank(memory, Fails(), world, folder, shared=shared, steps=100, spans=False)
"""
    with pytest.raises(ExecutorError, match=r"rank 1, actor `\w.read`: FloatingPointError: over"):
        run_script(tmp_path, monkeypatch, body, ranks=3)


def test_a_killed_rank_ends_the_others_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
if world.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
world.barrier()
"""
    with pytest.raises(ExecutorError, match=r"rank 1: .*[Kk]illed"):
        run_script(tmp_path, monkeypatch, body)


def test_a_rank_killed_before_it_has_begun_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not who gives up because of it."""
    body = """
import os, signal, sys
if os.environ["PMI_RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with pytest.raises(ExecutorError, match=r"rank 1: the process ended: .*[Kk]illed"):
        run_script(tmp_path, monkeypatch, RANK, first=body)


def test_one_that_dies_without_a_word_is_named_before_those_that_give_up(tmp_path: Path) -> None:
    report_failure(tmp_path, 0, None, ExecutorError("rank 2 has gone"))
    killed = RankEnded(rank=2, code=-9, is_done=False)
    assert str(failure_of(tmp_path, killed)) == "rank 2: the process ended: Killed (signal 9)"
    (tmp_path / "output").write_text("cannot open it\n")
    assert str(failure_of(tmp_path, RankEnded(rank=2, code=1, is_done=False))) == (
        "rank 2: the process ended with code 1; last lines of the ranks: cannot open it"
    )
    report_failure(tmp_path, 2, "h.0", ExecutorError("overflow"))
    assert str(failure_of(tmp_path, killed)) == "rank 2, actor `h.0`: overflow"


def test_what_befalls_a_rank_whose_work_is_done_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_script(
        tmp_path, monkeypatch, "done()\nworld.barrier()\nos.kill(os.getpid(), signal.SIGKILL)"
    )


def test_ranks_of_one_machine_listen_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
def sockets(process):
    names = [os.readlink(path) for path in Path(f"/proc/{process}/fd").glob("[0-9]*")
             if path.is_symlink()]
    return {name[8:-1] for name in names if name.startswith("socket:")}

tables = (Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6"))
listening = {line.split()[9] for lines in tables for line in lines if line.split()[3] == "0A"}
if listening & (sockets("self") | sockets(os.getppid())):
    raise SystemExit("listens")
world.barrier()
done()
"""
    run_script(tmp_path, monkeypatch, body)


def test_a_rank_that_raises_outside_our_code_ends_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ExecutorError, match="no way on"):
        run_script(
            tmp_path, monkeypatch, "if world.rank == 0: raise ValueError('no way on')\nsleep(60)"
        )


LONG_RUN = f"""
import signal, sys; sys.path.insert(0, {str(ROOT)!r})
from millrace.executor.launch import execute
from millrace.executor.training.orders import Supervision
from tests.millrace.plans import data_parallel_pipeline
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts behind ignores it
print("ready", flush=True)
told = Supervision(progress=lambda s, l: print(s, flush=True))
execute(data_parallel_pipeline(), steps=100000, supervision=told)
"""


def test_a_stopped_rank_is_named_within_its_time() -> None:
    """And nothing stays behind, though a stopped process takes no signal but one."""
    stopped: list[int] = []

    def stop(step: int, loss: float) -> None:
        if step == 3:
            pid = next(pid for pid in ranks_of(os.getpid()) if "PMI_RANK=2" in environment_of(pid))
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)

    with pytest.raises(ExecutorError, match=r"rank 2, actor .*no progress .* process is stopped"):
        execute(
            data_parallel_pipeline(),
            steps=100_000,
            supervision=Supervision(progress=stop, stall_s=1.0),
        )
    assert stopped


def test_a_run_goes_on_by_itself_after_failures_and_loses_no_bit(tmp_path: Path) -> None:
    """From the beginning where nothing is saved yet; more failures than allowed end it."""
    plan = data_parallel_pipeline()
    expected = execute(plan, steps=14)
    kills = {1: "PMI_RANK=3", 8: "PMI_RANK=0"}
    told: list[str] = []

    def kill(step: int, loss: float) -> None:
        if (rank := kills.pop(step, None)) is not None:
            pid = next(pid for pid in ranks_of(os.getpid()) if rank in environment_of(pid))
            os.kill(pid, signal.SIGKILL)

    measured = execute(
        plan,
        steps=14,
        saving=Saving(folder=tmp_path / "saved", every=4),
        supervision=Supervision(restarts=2, progress=kill, noted=told.append),
    )
    assert measured.losses == expected.losses
    assert measured.gradient_norms == expected.gradient_norms
    assert [restart.rank for restart in measured.restarts] == [3, 0]
    assert [restart.step % 4 for restart in measured.restarts] == [0, 0]
    assert measured.restarts[1].step >= 4
    assert [sentence.split("(")[-1] for sentence in told] == ["restart 1 of 2)", "restart 2 of 2)"]
    kills[0] = "PMI_RANK=2"
    with pytest.raises(ExecutorError, match=r"^rank 2: the process ended: Killed"):
        execute(plan, steps=100_000, supervision=Supervision(progress=kill))


def environment_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_text().split("\0")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_the_command(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LONG_RUN],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        for line in parent.stdout:
            if line.strip() == "1":
                break
        assert len(ranks_of(parent.pid)) >= 4
        parent.send_signal(number)
        parent.stdout.read()
        assert parent.wait(DEADLINE_S) != 0
    assert is_soon(lambda: not ranks_of(parent.pid))


def test_more_ranks_than_the_machine_holds_are_refused() -> None:
    with pytest.raises(InfeasibleError, match=r"ranks need .* GiB of memory"):
        check_capacity((10**12,) * 4)
    with pytest.raises(InfeasibleError, match="100000 ranks"):
        check_capacity((0,) * 100_000)


def test_padded_shards_are_left_to_the_trainers_that_have_them() -> None:
    cluster = msgspec.structs.replace(
        local_cluster(3, cores=3, memory_bytes=2**33), software=framework("torchtitan")
    )
    model = gpt_of(2, 32, 4, vocab=256, positions=16)
    plan = plan_of(model, cluster, 6, dp=3, tp=1, cp=1, pp=1, zero=3, max_gap=1.0)
    with pytest.raises(InfeasibleError, match=r"size 256\) over axis 0 \(3\).* Trainers that pad"):
        execute(plan, steps=1)


def test_a_number_of_steps_that_nobody_can_keep_is_refused() -> None:
    with pytest.raises(InfeasibleError, match=r"short\): use .*fewer steps"):
        execute(data_parallel_pipeline(), steps=10**20)
    with pytest.raises(PlanError, match="0 steps: expected at least one"):
        execute(data_parallel_pipeline(), steps=0)


def test_a_learning_rate_of_its_own_keeps_the_digest_of_the_plan() -> None:
    plan = data_parallel_pipeline()
    still = execute(plan, steps=2, learning_rate=0.0)
    assert still.trace.plan_digest == plan.digest()
    training = msgspec.structs.replace(plan.training, learning_rate=0.0)
    expected = losses_in_one_process(msgspec.structs.replace(plan, training=training), 2)
    np.testing.assert_allclose(still.losses, expected, rtol=1e-5)
