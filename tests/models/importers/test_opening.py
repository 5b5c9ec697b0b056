"""Whatever a model is called, it becomes a specification; what is none is refused in a sentence."""

import json
import re

import pytest

from millrace.models.errors import ModelError
from millrace.models.graph import Graph, to_json
from millrace.models.importers.opening import open_model
from millrace.models.zoo.catalogue import build, model_spec
from tests.extras import optional
from tests.models.importers.onnx_files import MLP, attention_text, parsed, saved, with_weights

GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}


def a_small_graph() -> Graph:
    return build(model_spec("mlp"), 1)


def written_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(GPT2 | changes))
    return path


def test_names_of_the_zoo_are_opened_as_the_catalogue_does():
    assert open_model("gpt2", 64, "bf16") == model_spec("gpt2-small", 64, "bf16")


def test_what_a_graph_leaves_out_is_told(tmp_path):
    notes: list[str] = []
    open_model("llama4-scout", 8193, told=notes.append)
    open_model(str(written_config(tmp_path, model_type="gpt_oss")), 64, told=notes.append)
    assert [note.split(": ")[1][:23] for note in notes] == ["attention within chunks"]


def test_a_function_is_opened_as_the_catalogue_does():
    name = f"{__name__}:a_small_graph"
    assert open_model(name) == model_spec(name)


def test_a_configuration_is_opened_by_its_path_or_its_folder(tmp_path):
    path = written_config(tmp_path)
    spec = open_model(str(path), 8)
    assert (spec.family, spec.seq_len) == ("gpt", 8)
    assert open_model(str(tmp_path), 8) == spec
    renamed = path.rename(tmp_path / "mine")
    assert open_model(str(renamed), 8).config == spec.config


def test_a_folder_named_like_a_model_of_the_zoo_needs_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    written_config(tmp_path / "gpt2")
    assert open_model("gpt2") == model_spec("gpt2")
    assert open_model("./gpt2").config["hidden"] == 32


def test_a_model_in_a_folder_whose_name_is_no_text_can_be_written(tmp_path):
    folder = tmp_path / "a\udcff"  # a byte of no letter, as Python has it
    folder.mkdir()
    spec = open_model(str(written_config(folder)))
    assert spec.name == "a?"
    assert b"a?" in to_json(spec)


def test_an_onnx_file_lies_in_its_specification(tmp_path):
    path = saved(with_weights(parsed(attention_text("add"))), tmp_path / "tiny.onnx")
    spec = open_model(str(path), 6)
    path.unlink()
    assert (spec.family, spec.name, spec.seq_len) == ("graph", "tiny", 6)
    graph = build(spec, 3)
    assert graph.batch == 3
    assert b"tiny" in to_json(spec)


def test_a_torch_program_lies_in_its_specification(tmp_path):
    torch = optional("torch")
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    path = tmp_path / "tiny.pt2"
    torch.export.save(torch.export.export(module, (torch.randn(2, 4),)), path)
    spec = open_model(str(path))
    path.unlink()
    assert (spec.family, spec.name) == ("graph", "tiny")
    assert build(spec, 3).parameter_count == 4 * 8 + 8 + 8 * 3 + 3


def test_a_file_that_fixes_its_length_is_not_opened_at_another(tmp_path):
    text = attention_text("add").replace("seq]", "9]").replace("seq,", "9,")
    path = str(saved(with_weights(parsed(text)), tmp_path / "nine.onnx"))
    assert open_model(path, 9) == open_model(path)
    with pytest.raises(ModelError, match="12 were asked for"):
        open_model(path, 12)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gpt5", "there is no model `gpt5`"),
        ("nowhere/gpt", "there is no file `nowhere/gpt`; models are not fetched from a hub"),
        ("none.onnx", "`none.onnx` cannot be read"),
        ("none.pt2", "`none.pt2` cannot be read"),
        ("none.json", "configuration `none.json` cannot be read"),
        ("garbage.onnx", "`garbage.onnx` is not an ONNX file"),
        ("garbage.json", "configuration `garbage.json` is not JSON"),
        ("empty", "configuration `empty/config.json` cannot be read"),
        ("strange", "model_type"),
        ("no.such.module:graph", "cannot be imported"),
        ("\0", "there is no model"),
        ("a" * 5000, "there is no model"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path, monkeypatch, text, reason):
    monkeypatch.chdir(tmp_path)
    for name in ("garbage.onnx", "garbage.json"):
        (tmp_path / name).write_text("{ nothing")
    for name in ("empty", "strange"):
        (tmp_path / name).mkdir()
    written_config(tmp_path / "strange", model_type="mamba-9")
    with pytest.raises(ModelError, match=re.escape(reason)):
        open_model(text)


def test_a_precision_is_checked_before_a_file_is_read():
    with pytest.raises(ModelError, match="there is no precision `fp4`"):
        open_model("none.onnx", precision="fp4")


def test_without_its_package_a_file_is_refused_with_the_extra_that_brings_it(tmp_path, monkeypatch):
    path = saved(with_weights(parsed(MLP)), tmp_path / "mlp.onnx")
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(ModelError, match=re.escape("pip install '.[onnx]' in Millrace's checkout")):
        open_model(str(path))
