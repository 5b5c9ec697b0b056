"""Joint: signatures, recomputation and stages of one candidate decided at once.

In come the programs of every mode of recomputation, out comes the best plan of a small candidate,
as whole solutions that its stages mix, and the proven least. Read first `joint_program.py`;
`stage_rows.py` holds what all blocks share, `cells.py` and `sections.py` add what one block costs.
"""

from millrace.planner.search.joint.answer import Solutions, joint_solutions

__all__ = ["Solutions", "joint_solutions"]
