"""Instructions in PTX that round and store values and packs of 16 bits."""

import re
from collections import defaultdict

import pytest

from millrace.executor.cuda.source_text import source_text
from tests.executor.cuda.kept_code import kept_ptx
from tests.executor.cuda.launched import functions_in_bf16
from tests.extras import optional

PAIRED = "cvt.rn.bf16x2.f32"
# This matches a store of 16 bits that is no part of a vector: register of the address, and offset.
STORE = re.compile(r"st\.global\.[bu]16\s+\[(%rd\d+)(?:\+(\d+))?\]")
LEFT_OUT = ("convolution_units",)  # writes pairs, of sums that lie apart in registers


def split_stores(ptx: str) -> list[tuple[str, int]]:
    """Address of every store of 16 bits that its block follows up with one of the next 16."""
    stores = []
    for block in re.split(r"^\$L.*:|\bbra\b|\bbar\.", ptx, flags=re.MULTILINE):
        offsets_by_register: dict[str, set[int]] = defaultdict(set)
        for register, offset in STORE.findall(block):
            offsets_by_register[register].add(int(offset or 0))
        stores += [
            (base, x)
            for base, offsets in offsets_by_register.items()
            for x in offsets
            if x + 2 in offsets
        ]
    return stores


def test_a_pack_that_is_stored_piece_by_piece_is_seen() -> None:
    first, second = "\tst.global.u16 \t[%rd1], %rs1;\n", "\tst.global.u16 \t[%rd1+2], %rs2;\n"
    assert split_stores(first + second) == [("%rd1", 0)]
    assert not split_stores(f"{first}$L_2:\n{second}")
    assert not split_stores("\tst.global.v4.u32 \t[%rd1], {%r1, %r2, %r3, %r4};\n")


@pytest.mark.parametrize("source", sorted(set(functions_in_bf16()) - set(LEFT_OUT)))
def test_a_pack_is_stored_at_once(source: str) -> None:
    optional("cuda.core", extra="test")
    ptx = kept_ptx(source_text(source), functions_in_bf16()[source], "compute_90")
    assert not split_stores(ptx)


@pytest.mark.parametrize("architecture", ["compute_80", "compute_90"])
@pytest.mark.parametrize(
    ("source", "function", "packs", "alone"),
    [
        ("loss", "cross_entropy_grad<bf16, int, float>", 2, 1),  # the edge of a row alone
        ("elementwise", "join_flat<Sum, bf16, bf16, bf16>", 2, 0),
        ("pointwise", "swiglu_grad<bf16>", 4, 0),
        ("rotary", "rotary<bf16, bf16, false, 8>", 3, 0),
    ],
)
def test_neighbours_are_rounded_two_by_one_instruction(
    source: str, function: str, packs: int, alone: int, architecture: str
) -> None:
    optional("cuda.core", extra="test")
    ptx = kept_ptx(source_text(source), [function], architecture)
    assert ptx.count(PAIRED) == 4 * packs
    assert ptx.count("cvt.rn.bf16.f32") == alone
    assert ptx.count("st.global.v4") == packs
