"""MODEL on the command line: a zoo name, a configuration, an ONNX or .pt2 file, or a function."""

import json

import pytest

from millrace.models.graph import Graph
from millrace.models.zoo.catalogue import build, model_spec
from millrace.requested_cluster import usual_precision_on
from tests.extras import optional
from tests.models.importers.onnx_files import MLP, attention_text, parsed, saved, with_weights


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def a_small_graph() -> Graph:
    return build(model_spec("mlp"), 1)


def written(kind: str, folder) -> tuple[str, int]:
    """Put a model of a kind into a folder and return its MODEL and how many parameters it has."""
    if kind == "zoo":
        return "mlp", a_small_graph().parameter_count
    if kind == "function":
        return f"{__name__}:a_small_graph", a_small_graph().parameter_count
    if kind == "onnx":
        saved(with_weights(parsed(MLP)), folder / "model.onnx")
        return "model.onnx", 8 * 6 + 8 + 8 * 4
    if kind == "pt2":
        torch = optional("torch")
        program = torch.export.export(torch.nn.Linear(4, 3), (torch.randn(2, 4),))
        torch.export.save(program, folder / "model.pt2")
        return "model.pt2", 4 * 3 + 3
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8, "vocab_size": 64}
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"} | sizes))
    layer = 4 * 16 * 16 + 4 * 16 + 8 * 16 * 16 + 4 * 16 + 16 + 4 * 16
    return ("config.json" if kind == "config" else "."), 64 * 16 + 8 * 16 + 2 * layer + 2 * 16


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("meta-llama/Meta-Llama-3-8B", "llama3-8b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
        ("openai-community/gpt2", "gpt2-small"),
    ],
)
def test_a_name_of_a_hub_is_told_from_a_path(call, name, near):
    code, _, err = call("models", name)
    assert code == 2
    assert f"`hf download {name} config.json`" in err
    assert err.rstrip().endswith(f"the zoo's `{near}` comes near")
    assert "hub" not in call("models", f"./{name}")[2]


KINDS = ("zoo", "config", "folder", "onnx", "pt2", "function")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_is_described(call, tmp_path, kind):
    model, parameters = written(kind, tmp_path)
    code, out, err = call("models", model, "--json")
    assert code == 0
    assert err == "" if kind != "pt2" else "checked against PyTorch" in err
    (row,) = json.loads(out)["rows"]
    assert row["parameters"] == parameters
    assert row["training_flops"] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_is_planned_and_its_plan_simulated(call, tmp_path, kind):
    model, _ = written(kind, tmp_path)
    arguments = ("--cluster", "a100-sxm-80gb:2x1", "--global-batch", "4", "-o", "plan.json")
    code, out, _ = call("plan", model, *arguments, "--json")
    assert code == 0
    assert json.loads(out)["step_time_s"] > 0
    for path in tmp_path.iterdir():  # the plan needs them no longer
        if path.name != "plan.json":
            path.unlink()
    code, out, _ = call("simulate", "plan.json", "--json", *["--trust"][: kind == "function"])
    assert code == 0
    assert json.loads(out)["firings"] > 0


CALLS = []


def called_and_gone() -> Graph:
    CALLS.append(1)
    raise SystemExit(0)


def test_a_plan_file_calls_no_function_unless_it_is_trusted(call, tmp_path):
    model, _ = written("function", tmp_path)
    arguments = ("--cluster", "a100-sxm-80gb:2x1", "--global-batch", "4", "-o", "plan.json")
    assert call("plan", model, *arguments)[0] == 0
    path = tmp_path / "plan.json"
    path.write_text(path.read_text().replace(model, f"{__name__}:called_and_gone"))
    for command in (["show"], ["show", "plan.json"], ["simulate"], ["run"], ["compare", "x.json"]):
        code, out, err = call(command[0], "plan.json", *command[1:])
        assert (code, out) == (2, "")
        assert f"calls the function `{__name__}:called_and_gone`" in err
        assert "--trust" in err
    assert not CALLS
    code, out, err = call("show", "plan.json", "--trust")
    assert (code, out) == (2, "")
    assert "called_and_gone` fails with SystemExit: 0" in err
    assert CALLS


def test_a_length_and_a_precision_reach_an_imported_model(call, tmp_path):
    saved(with_weights(parsed(attention_text("add"))), tmp_path / "model.onnx")
    _, out, _ = call("models", "model.onnx", "--seq-len", "7", "--json")
    assert json.loads(out)["rows"][0]["seq_len"] == 7
    arguments = ("--cluster", "a100-sxm-80gb:2x1", "--global-batch", "4", "--precision", "bf16")
    code, _, _ = call("plan", "model.onnx", "--seq-len", "7", *arguments, "-o", "plan.json")
    assert code == 0
    model = json.loads((tmp_path / "plan.json").read_text())["model"]
    assert (model["seq_len"], model["precision"]) == (7, "bf16")
    assert {t["dtype"] for t in model["graph"]["tensors"]} == {"bfloat16", "float32", "int32"}


WRONG = {
    "missing.onnx": "`missing.onnx` cannot be read",
    "missing.pt2": "`missing.pt2` cannot be read",
    "missing.json": "`missing.json` cannot be read",
    "missing/model": "there is no file `missing/model`",
    "gtp2": "did you mean gpt2",
    "garbage.json": "`garbage.json` is not JSON",
    "garbage.onnx": "`garbage.onnx` is not an ONNX file",
    "garbage.pt2": "`garbage.pt2` is not an exported program",
    "unknown.json": "model_type",
    "odd.onnx": "Celu `odd`",
    "folder": "`folder/config.json` cannot be read",
    "no.such:function": "cannot be imported",
    "math:sqrt": "model `math:sqrt`",
    "os:getcwd": "returns a str; expected a Graph",
}


@pytest.mark.filterwarnings("ignore")  # torch warns of a file that it cannot read
@pytest.mark.parametrize("model", WRONG)
def test_what_is_no_model_ends_with_2_and_one_sentence(call, tmp_path, model):
    for name in ("garbage.json", "garbage.onnx", "garbage.pt2"):
        (tmp_path / name).write_text("{ nothing")
    (tmp_path / "folder").mkdir()
    (tmp_path / "unknown.json").write_text('{"model_type": "mamba-9"}')
    odd = with_weights(parsed(MLP.replace("Relu (a)", "Celu (a)")))
    odd.graph.node[1].name = "odd"
    saved(odd, tmp_path / "odd.onnx")
    if model.endswith(".pt2"):
        optional("torch")
    plan = ("plan", model, "--cluster", "local:2", "--global-batch", "4")
    for arguments in (("models", model), plan):
        code, out, err = call(*arguments)
        assert (code, out) == (2, "")
        assert WRONG[model] in err
        assert len(err.splitlines()) == 1
        code, out, _ = call(*arguments, "--json")
        assert code == 2
        assert WRONG[model] in json.loads(out)["error"]


@pytest.mark.parametrize(
    ("clusters", "precision"),
    [
        (["h100:8x1"], "bf16"),
        (["v100:8x1"], "fp16"),
        (["h100:8x1", "v100:8x1"], "fp16"),
        (["tpu-v5p:4x1", "v100:8x1"], "fp32"),
        (["h100:8x1", "local:2"], "fp32"),
    ],
)
def test_where_none_is_said_sixteen_bits_are_taken_that_all_devices_have(clusters, precision):
    assert usual_precision_on(clusters, "gpt2-small") == precision
