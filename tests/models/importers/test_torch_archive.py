"""Archives of exported programs: an author's code in any of their members is not run."""

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.extras import optional

torch = optional("torch")

from millrace.models.errors import ModelError  # noqa: E402
from millrace.models.importers.torch_export import import_file  # noqa: E402
from millrace.models.importers.torch_export.tracing import load  # noqa: E402


class Planted:
    """A pickle of it makes a file called `planted` where it is loaded."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return Path.touch, (Path("planted"),)  # type: ignore[return-value]


class Shifted(torch.nn.Module):  # type: ignore[misc]
    """A layer with weights and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("shift", torch.arange(3.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.shift


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Members of an archive by their names."""
    path = tmp_path_factory.mktemp("saved") / "model.pt2"
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(Shifted(), (torch.zeros(2, 4),), dynamic_shapes=({0: batch},))
    torch.export.save(program, path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def evil() -> bytes:
    buffer = io.BytesIO()
    torch.save(Planted(), buffer)
    return buffer.getvalue()


def test_an_archive_is_read_without_its_example_inputs(saved: dict[str, bytes], tmp_path: Path):
    imported = import_file(write(tmp_path / "model.pt2", saved))
    assert imported.graph.parameter_count == 15
    assert imported.values is not None


def test_no_member_is_unpickled(
    saved: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Every member in turn, and those that other programs have."""
    monkeypatch.chdir(tmp_path)
    root = next(iter(saved)).partition("/")[0]
    others = (
        *("data/weights/model.pt", "data/constants/model.pt", "data/constants/custom_obj_0"),
        *("data/constants/opaque_obj_0", "data/aotinductor/model/a.so", "extra/a", "version"),
        *("serialized_state_dict.pt", "serialized_constants.pt", "serialized_example_inputs.pt"),
    )
    names = [*saved, *(f"{root}/{other}" for other in others)]
    members = [(name, evil()) for name in names]
    members += [(name, pickle.dumps(Planted())) for name in names if "/data/" in name]
    for name, content in members:
        with suppress(ModelError):  # some members are not needed
            load(write(tmp_path / "model.pt2", saved | {name: content}))
        assert not Path("planted").exists(), name


def test_a_file_of_the_older_form_is_refused_without_a_look_at_its_pickles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    names = ("state_dict", "constants", "example_inputs")
    members = {f"serialized_{name}.pt": evil() for name in names} | {"version": b"8.1"}
    members["serialized_exported_program.json"] = b"{}"
    with pytest.raises(ModelError, match=r"of the form of torch before 2\.8"):
        import_file(write(tmp_path / "model.pt2", members))
    assert not Path("planted").exists()


@pytest.mark.parametrize(
    ("member", "before", "after", "said"),
    [
        (
            "models/model.json",
            "Symbol(",
            "__import__('os').mkdir('planted') or Symbol(",
            "expr_str",
        ),
        ("models/model.json", "Symbol(", "().__class__.__base__(", "expr_str"),
        ("models/model.json", "Symbol(", "lambdify(", "expr_str"),
        ("models/model.json", "Symbol(", "Pow(Integer(9), Integer(99), ", "expr_str"),
        ("models/model.json", "torch.ops.aten.linear.default", "#a:b", "target"),
        (
            "models/model.json",
            json.dumps('[1, {"type": null, "context": null, "children_spec": []}]')[1:-1],
            json.dumps('[1, {"type": "builtins.dict", "context": "{\\"__enum__\\": 1}"}]')[1:-1],
            "out_spec",
        ),
        (
            "data/weights/model_weights_config.json",
            '"use_pickle": false',
            '"use_pickle": 1',
            "pick",
        ),
    ],
)
def test_json_that_would_run_is_refused(
    saved: dict[str, bytes], member: str, before: str, after: str, said: str, tmp_path: Path
):
    (name,) = [name for name in saved if name.endswith(member)]
    assert before in saved[name].decode()
    changed = saved[name].decode().replace(before, after, 1).encode()
    with pytest.raises(ModelError, match=said):
        import_file(write(tmp_path / "model.pt2", saved | {name: changed}))


def test_an_archive_that_would_grow_is_refused(saved: dict[str, bytes], tmp_path: Path):
    grown = saved | {"model/data/weights/weight_0": bytes(2**26)}
    path = write(tmp_path / "model.pt2", grown, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**20
    with pytest.raises(ModelError, match="is compressed"):
        import_file(path)
