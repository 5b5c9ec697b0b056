"""Imports are what PyTorch computes, loss and every gradient, or are refused in words."""

from typing import Any

import pytest

from millrace.importing import check
from millrace.models.errors import ModelError
from millrace.models.importers.torch_export import ExportedModel, import_module
from tests.extras import optional
from tests.models.importers.torch_corpus import Build
from tests.models.importers.torch_corpus_shapes import EXACT, REFUSED

torch = optional("torch")
TOLERANCE = 1e-4


def imported(build: Build) -> tuple[ExportedModel, Any, Any]:
    torch.manual_seed(0)
    module, inputs, options = build()
    return import_module(module, inputs, **options), module, inputs


@pytest.mark.parametrize("name", EXACT)
def test_a_module_is_imported_as_pytorch_computes_it(name: str) -> None:
    model, module, inputs = imported(EXACT[name])
    if model.values is not None:
        checked = check(model, module, inputs)
        assert checked.loss_error <= TOLERANCE, checked.line


@pytest.mark.parametrize("name", REFUSED)
def test_a_module_is_refused_in_words(name: str) -> None:
    build, phrase = REFUSED[name]
    with pytest.raises(ModelError) as caught:
        imported(build)
    assert phrase in str(caught.value), str(caught.value)


def test_the_corpus_is_broad() -> None:
    assert len(EXACT) + len(REFUSED) >= 80
