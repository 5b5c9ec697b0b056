"""Explanations: what decided each choice of a plan."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millrace.api.views import ResultView, ShownResult, TableView, result_text
from millrace.units import format_percent

if TYPE_CHECKING:
    from millrace.planner.search.report.explain import Reason


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExplanationResult(ShownResult):
    """Reasons for each choice of a plan: its nearest alternatives, and why they lost.

    Attributes
    ----------
    plan_text : str
        The plan in one line.
    reasons : tuple of Reason
        With `choice`, `value`, `alternative`, `effect` (the fraction by which its step is longer,
        in the planner's cost), `reason`, `over_bytes`, and all of it in words as `line`.
    """

    plan_text: str
    reasons: tuple["Reason", ...]

    @property
    def document(self) -> list[dict[str, Any]]:
        """Reasons as `millrace plan --explain --json` has them."""
        return [reason.document for reason in self.reasons]

    @property
    def view(self) -> ResultView:
        """View in a notebook."""
        rows = tuple(
            (
                reason.choice.replace("_", "-"),
                reason.value,
                reason.alternative or "",
                "" if reason.effect is None else format_percent(reason.effect, signed=True),
                reason.reason,
            )
            for reason in self.reasons
        )
        table = TableView(
            title="what decided each choice",
            columns=("choice", "value", "alternative", "step", "reason"),
            numbers=(False, False, False, True, False),
            rows=rows,
        )
        return ResultView(title=self.plan_text, tables=(table,))

    def __iter__(self) -> "Iterator[Reason]":
        return iter(self.reasons)

    def __repr__(self) -> str:
        lines = tuple(reason.line for reason in self.reasons)
        return result_text(ResultView(title=self.plan_text, notes=lines))
