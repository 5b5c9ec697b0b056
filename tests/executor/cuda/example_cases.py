"""Examples on the emulator: whole in every float dtype, and cut along their labels."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pytest

from millrace.executor.cuda.calls import Call
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.kernels.context import Array, Shard
from millrace.models.labels import parse, shape_of
from millrace.models.ops import OPS
from millrace.models.type_inference import at_least_float32
from tests.executor.cuda.calling import FLOATS, call, context_of, loaded, to_device
from tests.executor.cuda.emulation.machine import Emulator, functions_of
from tests.executor.cuda.usual import NARROW, enumerate_by_kind, runs_exhaustive
from tests.executor.examples.example import Example, splittable
from tests.executor.kernel_calls import shard_of

TOLERANCE = {"float64": 1e-11, "float32": 2e-4, "float16": 4e-3, "bfloat16": 3e-2}
ROUNDED_ONCE = TOLERANCE | {"float16": 2**-10, "bfloat16": 2**-7}  # and a sum once


@dataclass(frozen=True, kw_only=True)
class CasePart:
    """One rank's call of a case: its inputs' and outputs' shards and regions."""

    inputs: tuple[Shard, ...]
    outputs: tuple[Shard, ...]
    read: tuple[tuple[slice, ...], ...]
    written: tuple[tuple[slice, ...], ...]


@dataclass(frozen=True, kw_only=True)
class ExampleCase:
    """An example in one dtype, its labels cut into parts; `wide` inputs have at least 32 bits.

    One that is not `usual` is run where all are (`tests/executor/cuda/usual.py`).
    """

    example: Example
    dtype: str
    splits: dict[str, int] = field(default_factory=dict)
    wide: tuple[int, ...] = ()
    usual: bool = True
    firings: int = 1
    tolerance: Mapping[str, float] = field(default_factory=lambda: TOLERANCE)

    def __str__(self) -> str:
        attributes = ",".join(f"{value}" for value in self.example.attributes.values())
        return f"{self.example.kind}: {self.example.labels} {attributes} {self.dtype} {self.splits}"

    def input_arrays(self) -> list[Array]:
        """Inputs, as wide numbers that are exact in their dtypes, and consistent as rounded."""
        rounded = self._rounded(self.example.inputs("float64"))
        wide = [a if a.dtype == np.int32 else a.astype(np.float64) for a in rounded]
        return self._rounded(self.example.derive(*wide))

    def _rounded(self, arrays: Sequence[Array]) -> list[Array]:
        return [
            loaded(to_device(array, dtype), dtype).reshape(array.shape)
            for array, dtype in zip(arrays, self._input_dtypes(), strict=True)
        ]

    def _input_dtypes(self) -> list[str]:
        return [
            "int32" if array.dtype == np.int32 else self._float(position in self.wide)
            for position, array in enumerate(self.example.inputs("float64"))
        ]

    def _float(self, wide: bool) -> str:
        return at_least_float32(self.dtype) if wide else self.dtype

    def _output_dtypes(self) -> list[str]:
        row, outputs = OPS[self.example.kind], parse(self.example.labels).outputs
        return [
            "int32"
            if position in row.integer_outputs
            else self._float(position in row.wide_outputs)
            for position in range(len(outputs))
        ]

    def parts(self) -> Iterator[CasePart]:
        """The call of every place of the split labels."""
        expression = parse(self.example.labels)
        for place in product(*(range(parts) for parts in self.splits.values())):
            place_by_label = dict(zip(self.splits, place, strict=True))
            sides = [
                [
                    shard_of(operand, shape_of(operand, self.example.label_sizes), dtype,
                             self.splits, place_by_label)
                    for operand, dtype in zip(operands, dtypes, strict=True)
                ]
                for operands, dtypes in (
                    (expression.inputs, self._input_dtypes()),
                    (expression.outputs, self._output_dtypes()),
                )
            ]  # fmt: skip
            (inputs, read), (outputs, written) = (
                tuple(zip(*side, strict=True)) or ((), ()) for side in sides
            )
            yield CasePart(inputs=inputs, outputs=outputs, read=read, written=written)

    def functions(self) -> dict[str, set[str]]:
        """Functions that the case launches, by source."""
        names_by_source: dict[str, set[str]] = {}
        for part in self.parts():
            calls = make_calls(
                context_of(
                    self.example.kind, self.example.labels, part.inputs, part.outputs,
                    self.example.attributes,
                )
            )  # fmt: skip
            for source, names in functions_of(calls.of(0)).items():
                names_by_source.setdefault(source, set()).update(names)
        return names_by_source

    def run(self, emulator: Emulator) -> list[Array]:
        """The outputs, put together of those of all parts: partial ones are joined."""
        example, given = self.example, self.input_arrays()
        outputs = parse(example.labels).outputs
        start, join = (-np.inf, np.maximum) if OPS[example.kind].reduction == "max" else (0, np.add)
        totals = [
            np.full(shape_of(operand, example.label_sizes), start, float) for operand in outputs
        ]
        for part in self.parts():
            part_outputs = call(
                example.kind, example.labels,
                [np.ascontiguousarray(a[place]) for a, place in zip(given, part.read, strict=True)],
                part.outputs, input_shards=part.inputs, attributes=example.attributes,
                emulator=emulator, firings=self.firings,
            )  # fmt: skip
            for total, output, region in zip(totals, part_outputs, part.written, strict=True):
                total[region] = join(total[region], output)
        return totals

    def check(self, emulator: Emulator) -> None:
        """Compare with the formula on the rounded inputs."""
        expected = self.example.expected(self.input_arrays())
        near = self.tolerance[self.dtype]
        for output, reference in zip(self.run(emulator), expected, strict=True):
            scale = max(1.0, float(np.abs(reference).max())) if self.dtype in FLOATS[2:] else 1.0
            np.testing.assert_allclose(output, reference, rtol=near, atol=near * scale)


def parametrize_cases(cases: Iterable[ExampleCase]) -> pytest.MarkDecorator:
    """Give a test the cases of every kind of op, those that are usual and the others apart."""
    alike: dict[tuple[str, bool], list[ExampleCase]] = {}
    for case in cases:
        alike.setdefault((case.example.kind, case.usual), []).append(case)
    marks = {True: (), False: pytest.mark.exhaustive}
    values = [pytest.param(of, id=kind, marks=marks[usual]) for (kind, usual), of in alike.items()]
    return pytest.mark.parametrize("cases", values)


def check_all(cases: Iterable[ExampleCase], emulator: Emulator) -> None:
    """Check every case, and tell of all that fail."""
    complaints = []
    for case in cases:
        try:
            case.check(emulator)
        except AssertionError as error:
            complaints.append(f"{case}: {error}")
    assert not complaints, "\n".join(complaints)


def selected_cases(
    cases: Sequence[ExampleCase], request: pytest.FixtureRequest
) -> list[ExampleCase]:
    """Cases that tests of the module are run on."""
    everything = runs_exhaustive(request)
    return [case for case in cases if case.usual or everything]


def emulator_of(cases: Iterable[ExampleCase], more: Iterable[Call] = ()) -> Emulator:
    """Emulator of all that the cases launch, and of `more`."""
    names_by_source: dict[str, set[str]] = {}
    for functions in (functions_of(more), *(case.functions() for case in cases)):
        for source, names in functions.items():
            names_by_source.setdefault(source, set()).update(names)
    return Emulator(names_by_source)


def cases_of(
    examples: Iterable[Example],
    wide: Mapping[str, tuple[int, ...]] | None = None,
    tolerance: Mapping[str, float] = TOLERANCE,
) -> list[ExampleCase]:
    """All examples in every dtype, and in float64 cut along every label and along all.

    In float32 calls are carried out twice. Usual are those in float32 and in 16 bits of one kind or
    the other, and those with all labels cut (nothing, where none can be) and with one; of the first
    example of a kind, all.
    """
    cases = []
    for number, example in enumerate_by_kind(examples):
        wide_inputs = (wide or {}).get(example.kind, ())
        parts_by_label = {
            label: next(parts for parts in (2, 3, 5) if example.label_sizes[label] % parts == 0)
            for label in splittable(example)
            if any(example.label_sizes[label] % parts == 0 for parts in (2, 3, 5))
        }
        cuts = [{label: parts} for label, parts in parts_by_label.items()]
        cuts += [parts_by_label] if len(cuts) > 1 else []
        usual = {"float32", NARROW[number % 2]} | (set() if cuts else {"float64"})
        cases += [
            ExampleCase(
                example=example, dtype=dtype, wide=wide_inputs, usual=number == 0 or dtype in usual,
                firings=2 if dtype == "float32" else 1, tolerance=tolerance,
            )
            for dtype in FLOATS
        ]  # fmt: skip
        turn = number % max(1, len(parts_by_label))
        cases += [
            ExampleCase(
                example=example, dtype="float64", splits=cut, wide=wide_inputs, tolerance=tolerance,
                usual=number == 0 or cut_number in (turn, len(cuts) - 1),
            )
            for cut_number, cut in enumerate(cuts)
        ]  # fmt: skip
    return cases
