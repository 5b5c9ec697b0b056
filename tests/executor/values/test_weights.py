"""Weights from a file: the values a run begins with, and files that do not fit."""

from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from millrace.executor.data import open_dataset
from millrace.executor.errors import DataError
from millrace.executor.launch import execute
from millrace.executor.reference import Reference
from millrace.executor.values.initial import initial_value, stored
from millrace.executor.values.weights import Weights, check_weights
from millrace.models.zoo.catalogue import build_training
from tests.millrace.plans import data_parallel_pipeline

PLAN = data_parallel_pipeline()
GRAPH = build_training(PLAN.model, PLAN.training, PLAN.batch)


def value_of(name: str) -> np.ndarray:
    shape = GRAPH.tensors_by_name[name].shape
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32) / 8


def saved(tmp_path: Path, **arrays: np.ndarray) -> Path:
    path = tmp_path / "weights.npz"
    np.savez(path, **arrays)
    return path


VARIABLES = [op.outputs[0] for op in GRAPH.ops if op.kind == "variable"]
MATRIX = next(name for name in VARIABLES if len(GRAPH.tensors_by_name[name].shape) > 1)


@pytest.mark.parametrize("names", [VARIABLES, [MATRIX]], ids=["all", "one"])
def test_a_run_begins_with_the_weights_of_the_file(tmp_path: Path, names: list[str]) -> None:
    values = {name: value_of(name) for name in names}
    losses = execute(PLAN, steps=2, weights=saved(tmp_path, **values)).losses
    dataset = open_dataset(None, PLAN.model, 0)
    reference = Reference(GRAPH, PLAN.microbatches, dataset, 0)
    for name, value in values.items():
        np.copyto(reference.values[name], value)
    reference.step()
    reference.step()
    expected = [loss / count for loss, count, _ in reference.run.totals]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_weights_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="`stranger` is no variable"):
        check_weights(saved(tmp_path, stranger=np.zeros(3)), GRAPH)
    with pytest.raises(DataError, match=r"has shape \(3,\), the model's is"):
        check_weights(saved(tmp_path, **{MATRIX: np.zeros(3)}), GRAPH)
    with pytest.raises(DataError, match=r"not compute .* \(sinks are left out; caps are\); leave"):
        check_weights(saved(tmp_path), GRAPH, ("sinks are left out", "caps are"))


SHAPE = GRAPH.tensors_by_name[MATRIX].shape


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.full(SHAPE, np.nan), "`.*` holds .* values that are not finite"),
        (np.full(SHAPE, -np.inf, np.float32), "values that are not finite"),
        (np.full(SHAPE, 1e300), "holds values beyond the range of float32"),
        (np.full(SHAPE, 1 + 1j), "is of dtype complex128: expected numbers"),
        (np.zeros(SHAPE, "datetime64[s]"), "is of dtype datetime64"),
        (np.full(SHAPE, b"text"), r"is of dtype \|S4"),
        (np.zeros(SHAPE, "V2"), r"is of dtype \|V2"),
        (np.zeros(SHAPE, bool), "is of dtype bool"),
    ],
)
def test_arrays_that_are_no_finite_numbers_are_refused_by_name(
    tmp_path: Path, array: np.ndarray, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        check_weights(saved(tmp_path, **{MATRIX: array}), GRAPH)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "uint8"])
def test_numbers_of_other_dtypes_are_taken(tmp_path: Path, dtype: str) -> None:
    check_weights(saved(tmp_path, **{MATRIX: np.ones(SHAPE, dtype)}), GRAPH)


def test_malformed_members_are_refused(tmp_path: Path) -> None:
    good = saved(tmp_path, **{MATRIX: value_of(MATRIX)}).read_bytes()
    longer = b"(" + b"1" * 40 + b",)"
    members = {
        "shape": b"\x93NUMPY\x01\x00"
        + (118).to_bytes(2, "little")
        + (b"{'descr': '<f4', 'fortran_order': False, 'shape': " + longer + b"}").ljust(118),
        "no header": b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + b"{'descr'".ljust(118),
        "no array": b"plain text",
    }
    path = tmp_path / "odd.npz"
    for content in members.values():
        with ZipFile(path, "w") as archive:
            archive.writestr(f"{MATRIX}.npy", content)
        with pytest.raises(DataError, match=r"odd.npz` cannot be read|has shape \(\)"):
            check_weights(path, GRAPH)
    offset = good.index(b"PK\x01\x02") + 6  # the version needed, in the central directory
    path.write_bytes(good[:offset] + (212).to_bytes(2, "little") + good[offset + 2 :])
    with pytest.raises(DataError, match="cannot be read"):
        check_weights(path, GRAPH)


def test_bfloat16_values_are_kept_as_the_bits_of_the_nearest_rounded_to_even() -> None:
    bits = np.arange(0x3F00, 0x4100, dtype=np.uint32) << 16
    exact = bits.view(np.float32)
    middles = (bits + 0x8000).view(np.float32)
    upper = stored(exact, "bfloat16")
    np.testing.assert_array_equal(upper, bits >> 16)
    np.testing.assert_array_equal(stored(np.nextafter(middles, exact), "bfloat16"), upper)
    np.testing.assert_array_equal(stored(np.nextafter(middles, 9), "bfloat16"), (bits >> 16) + 1)
    assert not (stored(middles, "bfloat16") & 1).any()
    assert stored(-exact, "bfloat16").dtype == np.uint16
    assert initial_value("w", (2,), "bfloat16", {"init": "ones"}, 0).tolist() == [0x3F80, 0x3F80]


def test_files_that_hold_no_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        Weights(tmp_path / "nothing.npz")
    garbage = tmp_path / "garbage.npz"
    garbage.write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(DataError, match="cannot be read"):
        Weights(garbage)
    single = tmp_path / "single.npy"
    np.save(single, np.zeros(3))
    with pytest.raises(DataError, match="is one array"):
        Weights(single)
    objects = tmp_path / "objects.npz"
    np.savez(objects, **{MATRIX: np.array([{}], dtype=object)})
    with pytest.raises(DataError, match="cannot be read"):
        check_weights(objects, GRAPH)
