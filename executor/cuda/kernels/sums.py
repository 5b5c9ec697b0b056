"""Sums over the labels that an output lacks, of one tensor or of a product of two.

Where neighbouring terms lie side by side, a block of threads adds up those of one output; where
neighbouring outputs do, a thread has an output and goes down its terms. Few outputs of many terms
are cut into parts, whose sums a second launch adds up: sums have one order and nothing is atomic.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from millrace.executor.cuda.calls import (
    BLOCK_THREADS,
    BLOCKS_MAX,
    TYPES,
    WARP_THREADS,
    Calls,
    CallTensor,
    Launch,
    Operand,
    same_calls,
    table,
    workspace,
    write,
)
from millrace.executor.cuda.kernels.column_sums import ColumnSums, column_sum
from millrace.executor.cuda.kernels.strides import DIMS_MAX, Walk, index_type, walk
from millrace.executor.kernels.context import Array
from millrace.executor.kernels.dims import Dims

SOURCE = "sums"
TABLE_BYTES = 3 * DIMS_MAX * 8

# These keep every multiprocessor of a large GPU busy (132 of up to 2048 threads: NVIDIA H100
# data sheet and Hopper tuning guide, 2022); fewer terms than PART_TERMS are not worth a part.
THREADS_WANTED = 2**17
BLOCKS_WANTED = 2**10
PARTS_MAX = 2**10
PART_TERMS = 32  # least terms of a thread in a part
ROW_TERMS = 32  # most terms that a thread adds up alone wherever they lie


@dataclass(frozen=True, slots=True, kw_only=True)
class Summands:
    """Terms of a sum: of one tensor, or of two.

    Parameters
    ----------
    function
        `Single`, `Product` or `Below` of `sources/sums.cu`.
    operands, dims, dtypes
        Both tensors of a term; of a `Single` twice the same.
    """

    function: str
    operands: tuple[Operand, Operand]
    dims: tuple[Dims, Dims]
    dtypes: tuple[str, str]

    @property
    def sum_dtype(self) -> str:
        """Dtype that terms are added up in."""
        if "float64" in self.dtypes:
            return "float64"
        return self.dtypes[0] if set(self.dtypes) <= {"int32", "int64"} else "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """One launch: outputs, their terms, and in how many parts these are summed."""

    output_walk: Walk
    term_walk: Walk
    by_block: bool
    parts: int

    @property
    def is_of_columns(self) -> bool:
        """True if terms and outputs are the rows and columns of a tensor of many of both."""
        columns, rows = self.output_walk.count, self.term_walk.count
        places = (self.output_walk.first, self.term_walk.first)
        return min(columns, rows) >= WARP_THREADS and places == ((1,), (columns,))

    def launch(
        self,
        template: tuple[str, ...],
        operands: tuple[Operand, Operand],
        target: Operand,
        number: int,
    ) -> Launch:
        """Launch of the pass, whose tables lie behind `number` others."""
        outputs, terms = self.output_walk.count, self.term_walk.count
        part = ceil(terms / self.parts)
        if self.by_block:
            warps = min(ceil(part / WARP_THREADS), BLOCK_THREADS // WARP_THREADS)
            blocks, threads = min(outputs, 2**31 - 1), warps * WARP_THREADS
        else:
            threads = min(ceil(outputs / WARP_THREADS) * WARP_THREADS, BLOCK_THREADS)
            blocks = min(ceil(outputs / threads), BLOCKS_MAX)
        arguments = ", ".join((*template, index_type(outputs, terms)))
        return Launch(
            SOURCE,
            f"sum_by_{'block' if self.by_block else 'thread'}<{arguments}>",
            (max(blocks, 1), self.parts, 1),
            (max(threads, WARP_THREADS), 1, 1),
            (
                *operands,
                target,
                table(0)._replace(offset_bytes=number * TABLE_BYTES),
                table(0)._replace(offset_bytes=(number + 1) * TABLE_BYTES),
                self.output_walk.dims,
                self.term_walk.dims,
                np.int64(outputs),
                np.int64(terms),
                np.int64(part),
            ),
        )


def sums(
    actor: str, terms: Summands, result: Dims, sizes: Mapping[str, int], number: int, dtype: str
) -> Calls:
    """Calls that write the sums of terms over every label that the result lacks.

    Parameters
    ----------
    actor
        Its name, for messages.
    terms
        Terms that are added up.
    result, sizes
        Labels of the output, and the size of every label.
    number, dtype
        Number of the output among the actor's, and its dtype.
    """
    first = _first_pass(terms, result, sizes)
    if first.is_of_columns and terms.function == "Single":
        rows, columns = first.term_walk.count, first.output_walk.count
        x = CallTensor(terms.operands[0], terms.dtypes[0], rows * columns)
        output = CallTensor(write(number), dtype, columns)
        if "int" not in x.dtype + dtype:
            return column_sum(x, ColumnSums(outputs=(output,)), columns=columns)
    outputs, wide = first.output_walk.count, terms.sum_dtype
    types = tuple(TYPES[term_dtype] for term_dtype in terms.dtypes)
    last = write(number)
    tables: list[Array] = [first.output_walk.table(actor), first.term_walk.table(actor)]
    if first.parts == 1:
        launch = first.launch((terms.function, *types, TYPES[dtype]), terms.operands, last, 0)
        return same_calls(launch, tables=(np.stack(tables),))
    middle = (terms.function, *types, TYPES[wide])
    second = _second_pass(outputs, first.parts, rows=not first.by_block)
    tables += [second.output_walk.table(actor), second.term_walk.table(actor)]
    return same_calls(
        first.launch(middle, terms.operands, workspace(), 0),
        second.launch(
            ("Single", TYPES[wide], TYPES[wide], TYPES[dtype]), (workspace(),) * 2, last, 2
        ),
        tables=(np.stack(tables),),
        workspace_bytes=outputs * first.parts * np.dtype(wide).itemsize,
    )


def _first_pass(terms: Summands, result: Dims, sizes: Mapping[str, int]) -> _Pass:
    """Pass over all terms: it says who adds them up, and in how many parts."""
    first_dims, second_dims = terms.dims
    largest = max(terms.dims, key=lambda dims: prod(sizes[label] for label in dims))
    gone = [label for label in (*largest, *first_dims, *second_dims) if label not in result]
    over_outputs = walk(result, first_dims, second_dims, sizes)
    over_terms = walk(tuple(dict.fromkeys(gone)), first_dims, second_dims, sizes)
    outputs, count = over_outputs.count, over_terms.count
    innermost = next((label for label in reversed(largest) if sizes[label] > 1), None)
    by_block = count > ROW_TERMS and (innermost in gone or outputs < WARP_THREADS)
    if by_block:
        wanted, least = BLOCKS_WANTED // max(outputs, 1), PART_TERMS * BLOCK_THREADS
    else:
        wanted, least = THREADS_WANTED // max(outputs, 1), PART_TERMS
    parts = max(1, min(wanted, count // least, PARTS_MAX))
    return _Pass(output_walk=over_outputs, term_walk=over_terms, by_block=by_block, parts=parts)


def _second_pass(outputs: int, parts: int, *, rows: bool) -> _Pass:
    """Pass over sums of parts; `rows`: those of one part lie side by side, not of one output."""
    near, down = (1, outputs) if rows else (parts, 1)
    return _Pass(
        output_walk=Walk(sizes=(outputs,), first=(near,), second=(near,)),
        term_walk=Walk(sizes=(parts,), first=(down,), second=(down,)),
        by_block=parts > ROW_TERMS,
        parts=1,
    )
