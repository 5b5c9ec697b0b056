"""Repeated blocks, found by structure: a forward graph goes in, the same graph in blocks comes out.

`with_blocks` cuts a graph whose blocks are unknown (an imported one); `same_templates` ties blocks
that a graph has already, `unlike_parted` unties those that differ in the backward pass. Read
`cutting.py` first; `repeats.py` finds what recurs, `structure.py` says when two blocks are equal,
`naming.py` gives the new names.
"""

from millrace.models.blocks.cutting import Cut, cut, with_blocks
from millrace.models.blocks.templates import same_templates, unlike_parted

__all__ = ["Cut", "cut", "same_templates", "unlike_parted", "with_blocks"]
