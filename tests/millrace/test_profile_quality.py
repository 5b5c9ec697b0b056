"""Quality of a profile: shown where it is taken, and said of every prediction made from it."""

from pathlib import Path

import msgspec
import pytest

import millrace
from millrace.api.profile_results import quality_text
from millrace.executor import measure
from millrace.files import write_document
from millrace.planner.cluster import Device, MeasurementQuality
from millrace.planner.clusters import parse_cluster
from millrace.planner.clusters.doubts import profile_doubt, profile_warning
from millrace.profiling import local_profile, rehearsals

BUSY = MeasurementQuality(rounds=5, spread=0.04, others=0.5, steal=0.0)
QUIET = MeasurementQuality(
    rounds=3, spread=0.01, spread_max=0.2, spread_max_of="send/2", others=0.02, steal=0.001
)
SAID = "predictions for local:2 are in doubt: the profile was taken while other programs took 50 %"


def a_profile(quality: MeasurementQuality | None) -> Device:
    """Profile of so much quality, with built-in figures."""
    built_in = parse_cluster("local:2").device
    return msgspec.structs.replace(built_in, measured=quality)


def test_a_profile_shows_how_far_its_rounds_differed_and_what_others_took() -> None:
    assert quality_text(QUIET) == (
        "measured in 3 rounds that differed by 1.0 %, send/2 by 20.0 %, other programs took 2.0 % "
        "of the cores, the host 0.1 %"
    )
    assert quality_text(MeasurementQuality(rounds=1, frequency=0.5)) == (
        "measured in 1 round, nothing is known of other programs, cores ran at 50.0 % of their "
        "frequency"
    )


@pytest.mark.parametrize(
    ("quality", "said"),
    [
        (None, None),
        (QUIET, None),
        (
            BUSY,
            "while other programs took 50 % of the cores and rounds differed by 4 %: its ",
        ),
        (BUSY, "its collectives may be up to 100 % too slow, its kernels by less"),
        (MeasurementQuality(rounds=3, others=0.0, steal=0.2), "while the host took 20 %: its"),
        (
            MeasurementQuality(rounds=3, spread=0.3),
            "while nothing is known of other programs and rounds differed by 30 %: its",
        ),
    ],
)
def test_a_doubtful_profile_says_why_and_by_how_much_it_may_be_off(quality, said) -> None:
    doubt = profile_doubt(a_profile(quality))
    assert doubt == said if said is None else said in doubt


def test_predictions_from_a_doubtful_profile_say_so_in_every_command(
    call, answer, tmp_path: Path
) -> None:
    profile, plan = tmp_path / "busy.json", tmp_path / "plan.json"
    write_document(profile, a_profile(BUSY))
    asked = ("plan", "mlp", "--cluster", "local:2", "--global-batch", "8", "--profile", profile)
    code, _, said = call(*asked, "-o", plan)
    assert (code, SAID in said) == (0, True)
    trace = tmp_path / "run.json"
    for command in (
        ("show", plan),
        ("simulate", plan),
        ("run", plan, "--steps", "6", "--trace", trace),
        ("compare", plan, trace),
    ):
        code, document = answer(*command)
        assert code == 0
        assert document["profile_warning"].startswith(SAID)
        if command[0] != "show":
            assert SAID in call(*command)[2]
    quiet = parse_cluster("local:2", a_profile(QUIET))
    assert profile_warning(quiet) is None


def test_a_sweep_says_of_each_row_what_is_in_doubt(call, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(measure, "profile", lambda ranks, **_: a_profile(BUSY))
    monkeypatch.setattr(measure, "contradiction", lambda *_: "")
    monkeypatch.setattr(local_profile, "_in_a_step", lambda device, *_: device)
    monkeypatch.setattr(rehearsals, "LONGEST_S", 0.0)
    swept = millrace.scale("mlp", ["local:2"], nodes=[1], global_batches=[8])
    assert [row.profile_warning.startswith(SAID) for row in swept] == [True]
    arguments = ("scale", "mlp", "--cluster", "local:2", "--nodes", "1", "--global-batch", "8")
    code, _, said = call(*arguments)
    assert (code, said.count(SAID)) == (0, 1)


@pytest.mark.parametrize(
    "command",
    [
        ("plan", "mlp", "--cluster", "local:2", "--global-batch", "8"),
        ("profile", "--ranks", "2", "--seconds", "1"),
    ],
)
def test_a_machine_whose_cache_cannot_be_written_plans_and_says_so_once(
    call, monkeypatch, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "millrace").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(measure, "profile", lambda ranks, **_: a_profile(QUIET))
    code, out, said = call(*command)
    assert (code, bool(out)) == (0, True)
    assert ("measuring this machine with 2 ranks, once" in said) == (command[0] == "plan")
    assert said.count("it is made every time until the folder can be written to") == 1
