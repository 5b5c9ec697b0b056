"""Gradients on the graph, by reverse-mode differentiation.

In goes a forward graph, out come the gradients of its variables as further ops. Every kind of op
has one rule, an entry of `RULES`, that adds the gradient ops of one forward op; `reverse.py`
applies them from the loss back, `tape.py` is what a rule sees. Read `reverse.py` first.
"""

from millrace.models.gradients.gradient_rules import RULES
from millrace.models.gradients.reverse import backward
from millrace.models.gradients.tape import LOSS_SCALED, UNIT_GRADIENT, Rule, Tape

__all__ = ["LOSS_SCALED", "RULES", "UNIT_GRADIENT", "Rule", "Tape", "backward"]
