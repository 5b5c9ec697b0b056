"""Predictions of the committed steps on a GPU, from committed files alone."""

import json

import pytest

from benchmarks.gpu.predictions import FOLDS, main, measured_steps

MODELS = {"gpt2-small", "llama-1b", "moe-1b", "resnet-50"}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, object]]:
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda text, **_: lines.append(text))
        assert main(["--json"]) == 0
    document = json.loads("\n".join(lines))
    assert tuple(document["folds"]) == FOLDS
    return list(document["rows"])


def errors(row: dict[str, object]) -> dict[str, float]:
    values = row["errors"]
    assert isinstance(values, list)
    return dict(zip(FOLDS, map(float, values), strict=True))


def test_every_committed_step_is_predicted_within_five_percent_once_runs_are_folded_in(
    rows: list[dict[str, object]],
) -> None:
    assert {row["model"] for row in rows} == MODELS
    for row in rows:
        assert abs(errors(row)["own"]) < 0.05
        assert abs(errors(row)["all"]) < 0.05


def test_a_model_that_was_never_run_is_predicted_nearly_as_well(
    rows: list[dict[str, object]],
) -> None:
    for row in rows:
        assert abs(errors(row)["profile"]) < 0.10
        assert abs(errors(row)["others"]) < 0.10


def test_kinds_make_up_the_captured_step() -> None:
    kinds = [
        {"kind": "matmul", "actors": 3, "measured_s": 0.6},
        {"kind": "add", "actors": 1, "measured_s": 0.3},
    ]
    row = {"model": "a", "batch": 2, "seq_len": 4, "kinds": kinds, "idle_share": 0.1}
    (step,) = measured_steps([row | {"measured_s": 0.8}, row | {"measured_s": 1.0}]).values()
    assert step.step_s == pytest.approx(0.9)
    assert sum(step.kind_s.values()) == pytest.approx(0.9)
    assert step.kind_s["add"] == pytest.approx(0.9 * (0.3 + 0.1 / 4))


@pytest.mark.parametrize("option", ["--results", "--profile"])
def test_a_file_of_another_kind_is_refused_in_a_sentence(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([option, "README.md"]) == 2
    said = capsys.readouterr().err
    assert "README.md" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("options", [[], ["--kinds"], ["--markdown"]])
def test_tables_name_every_model(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(options) == 0
    printed = capsys.readouterr().out
    assert all(model in printed for model in MODELS)
