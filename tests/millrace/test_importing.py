"""An import is held against PyTorch, and what comes of it is said; wrong ones are refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.executor.data.datasets import open_dataset
from millrace.executor.errors import DataError
from millrace.importing import check, checked, checking, import_module, open_checked
from millrace.models.errors import ModelError
from millrace.models.importers.torch_export import ExportedModel, spec
from millrace.models.importers.torch_export import import_module as imported_from
from millrace.models.spec import TrainingSpec
from millrace.models.training import training_graph
from millrace.planner.clusters import local_cluster
from tests.extras import optional
from tests.plan_requests import plan_of

torch = optional("torch")
nn = torch.nn


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))


EXAMPLE = torch.zeros(4, 6)


def test_a_module_is_imported_with_what_its_check_found() -> None:
    imported = import_module(network(), EXAMPLE)
    assert imported.notes[-1].startswith("checked against PyTorch: the loss is ")
    checked = check(imported, network(), EXAMPLE)
    assert checked.loss_error < 1e-6
    assert checked.gradient_error < 1e-5


def wrong() -> ExportedModel:
    imported = imported_from(network(), EXAMPLE)
    assert imported.values is not None
    name = next(name for name, source in imported.parameters.items() if source.fqn == "3.weight")
    return replace(imported, values={**imported.values, name: imported.values[name] * 1.01})


def test_an_import_that_is_not_what_pytorch_computes_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"is not what PyTorch computes: .* of `0.bias`"):
        check(wrong(), network(), EXAMPLE)


class PerSample(nn.Linear):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return super().forward(x) / x.shape[0]


class OneBatch(nn.Linear):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return super().forward(x.view(4, 6))


def test_what_counts_the_samples_is_refused() -> None:
    with pytest.raises(ModelError, match="computes with the number of samples"):
        import_module(PerSample(6, 3), EXAMPLE)


def test_a_module_for_one_batch_is_checked_with_that() -> None:
    assert import_module(OneBatch(6, 3), EXAMPLE).notes[-1].startswith("checked")


def test_a_check_changes_nothing_of_the_module() -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    import_module(module, EXAMPLE)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_what_is_not_checked_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device("meta"):
        without = import_module(network(), torch.zeros(4, 6))
    assert without.notes == ("not checked against PyTorch: the module has no values",)
    imported = imported_from(network(), EXAMPLE)
    monkeypatch.setattr(checking, "CHECKED_BYTES", 100)
    assert "a step holds" in checked(imported, network(), EXAMPLE)
    monkeypatch.setattr(checking, "CHECKED_FLOPS", 100)
    assert "a step computes" in checked(imported, network(), EXAMPLE)


def test_an_import_in_16_bits_is_checked_in_32() -> None:
    imported = import_module(network(), EXAMPLE, precision="bf16")
    assert imported.precision == "bf16"
    assert imported.notes[-1].startswith("checked")


def test_a_program_is_checked_as_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "network.pt2"
    torch.export.save(torch.export.export(network(), (EXAMPLE,)), path)
    told: list[str] = []
    open_checked(str(path), told=told.append)
    assert [line.partition(" is ")[0] for line in told] == [
        f"`{path}`: checked against PyTorch: the loss"
    ]


class Frozen(nn.Module):  # type: ignore[misc]
    """A frozen layer with a trained correction, and a part that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 3).requires_grad_(False)
        self.more = nn.Linear(6, 3)
        self.unused = nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.more(x)


def test_frozen_parameters_are_neither_trained_nor_forgotten() -> None:
    imported = imported_from(Frozen(), EXAMPLE)
    trained = training_graph(imported.graph, TrainingSpec())
    moved = {op.inputs[0] for op in trained.ops if op.kind == "adamw"}
    assert {imported.parameters[name].fqn for name in moved} == {"more.weight", "more.bias"}
    assert imported.graph.parameter_count == 2 * (6 * 3 + 3)
    assert imported.notes == (
        "the loss does not depend on `unused.weight`, `unused.bias` (21 values): left out",
    )


class Difference(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, left: Any, right: Any) -> Any:
        return self.head(left - right)


def test_inputs_of_one_kind_are_planned_but_not_fed_the_same_data() -> None:
    model = spec(imported_from(Difference(), (EXAMPLE, EXAMPLE)))
    on = local_cluster(1, cores=1, memory_bytes=2**33)
    plan_of(model, on, 4)
    with pytest.raises(DataError, match=r"reads classes, input.left, input.right, which no data"):
        open_dataset(None, model, 0)


class FilledAttention(nn.Module):  # type: ignore[misc]
    """Attention that looks both ways, and predictions of every token."""

    def __init__(self, classes: int = 260) -> None:
        super().__init__()
        self.table = nn.Embedding(260, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, classes)

    def forward(self, ids: Any) -> Any:
        return self.head(self.layer(self.table(ids)))


IDS = torch.zeros(2, 12, dtype=torch.long)


def test_attention_that_looks_both_ways_reads_masked_text_or_no_data() -> None:
    masked = imported_from(FilledAttention(), IDS, mask_id=0)
    data = open_dataset(None, spec(masked), 0)
    assert data.description.startswith("text with ids hidden")
    unmasked = imported_from(FilledAttention(), IDS)
    assert "attention looks both ways (`layer.self_attn`)" in unmasked.notes[0]
    with pytest.raises(DataError, match="reads masked_targets, tokens, which no data"):
        open_dataset(None, spec(unmasked), 0)


class Biased(nn.Module):  # type: ignore[misc]
    """Attention with a learned term, and what is ahead shut off in it or not."""

    def __init__(self, shut: bool) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(260, 8), nn.Linear(8, 260)
        self.bias = nn.Parameter(torch.zeros(12, 12))
        self.register_buffer("mask", torch.full((12, 12), -1e9).triu(1) * shut)

    def forward(self, decoder_ids: Any) -> Any:
        h = self.table(decoder_ids).unflatten(-1, (2, 4)).transpose(1, 2)
        bias = self.bias + self.mask
        mixed = nn.functional.scaled_dot_product_attention(h, h, h, attn_mask=bias)
        return self.head(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("shut", "targets"), [(True, "decoder_targets"), (False, "masked_targets")]
)
def test_a_learned_term_behind_a_mask_looks_one_way(shut: bool, targets: str) -> None:
    imported = import_module(Biased(shut), IDS)
    assert imported.notes[-1].startswith("checked")
    read = {op.attributes["source"] for op in imported.graph.ops if op.kind == "input"}
    assert read == {"decoder_tokens", targets}


def test_classes_of_tokens_are_no_next_tokens() -> None:
    with pytest.raises(DataError, match="reads token_classes, tokens, which no data"):
        open_dataset(None, spec(imported_from(FilledAttention(5), IDS)), 0)
    with pytest.raises(ModelError, match="mask_id is for a model"):
        imported_from(FilledAttention(5), IDS, mask_id=0)


class Choosing(nn.Linear):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return super().forward(x if x.sum() > 0 else -x)


def test_a_failed_export_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelError, match="cannot be exported"):
        imported_from(Choosing(6, 3), EXAMPLE)
    assert capfd.readouterr() == ("", "")


def test_dropout_stays_in_the_graph_though_the_check_drops_nothing() -> None:
    imported = import_module(FilledAttention(), IDS)
    kinds = [op.kind for op in imported.graph.ops]
    assert kinds.count("dropout") == 4  # one of them on the probabilities of attention
