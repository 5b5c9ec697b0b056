"""Repeated blocks, found by structure: a forward graph goes in, the same graph in blocks comes out.

`with_blocks` cuts a graph whose blocks are unknown (an imported one); `merge_templates` ties blocks
that a graph has already, `split_templates` unties those that differ in the backward pass. Read
`cutting.py` first; `maximal_repetitions.py` finds what recurs, `structural_equality.py` says when
two blocks are equal, `naming.py` gives the new names.
"""

from millrace.models.blocks.cutting import BlockedGraph, cut, with_blocks
from millrace.models.blocks.templates import merge_templates, split_templates

__all__ = ["BlockedGraph", "cut", "merge_templates", "split_templates", "with_blocks"]
