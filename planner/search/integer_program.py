"""Integer programs in arrays, and the one door to the solvers: HiGHS and GLOP by OR-Tools MathOpt.

A program is put together in blocks of columns and rows; entries refer to them by index. HiGHS
stops at a relative gap or a number of nodes, never after a time, so that equal questions have equal
answers; GLOP solves the relaxation, for which integers may be any numbers, and HiGHS where GLOP
doubts its own answer.

Shapes: N columns, M rows; `values` and costs are [N], limits and multipliers [M], entries three
arrays of one length: rows, columns, coefficients.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from millrace.models.arrays import Floats, Ints

NODE_LIMIT = 100_000
# Costs add up to so much in the solvers: absolute tolerances of HiGHS are harmless then, and GLOP
# does not doubt its answers (with 1e6 it does so in half of those of 128 chunks).
COSTS_WHOLE, COSTS_RELAXED = 1e6, 1e2
# Iterations of the simplex, in multiples of rows and columns, after which GLOP gives a relaxation
# up, which can go round in circles for ever; HiGHS takes over. Others were seen to take up to 0.7.
ITERATIONS, ITERATIONS_MIN, HIGHS_ITERATIONS = 1, 2_000, 10
PRESOLVE, NO_PRESOLVE = "EMPHASIS_UNSPECIFIED", "EMPHASIS_OFF"  # by their names in MathOpt


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class IntegerSolution:
    """Values of the columns, what they cost, and the proven least.

    Where the solver stopped before it found any there are no values, and the cost is infinite.
    Of a relaxation there are multipliers, too: by how much the cost rises with the limit that each
    row lies at, above zero at a lower limit and below at an upper one.
    """

    values: Floats
    cost: float
    bound: float
    multipliers: Floats | None = None

    @property
    def has_values(self) -> bool:
        """True if there are values."""
        return self.cost < float("inf")


class IntegerProgram:
    """A minimisation over columns x ≥ 0 with rows lower ≤ A x ≤ upper."""

    def __init__(self) -> None:
        self.columns = 0
        self.rows = 0
        self._cost: list[Floats] = []
        self._highest: list[Floats] = []
        self._integer: list[NDArray[np.bool_]] = []
        self._lower: list[Floats] = []
        self._upper: list[Floats] = []
        self._entries: list[tuple[Ints, Ints, Floats]] = []
        self._limits: dict[int, tuple[float, float]] = {}  # limits that were changed, by row
        self._solver: Any = None  # the one that is asked again
        self._sizes_sent = 0, 0, 0  # columns, rows and entries that it has
        self._limits_sent: dict[int, tuple[float, float]] = {}
        self._relaxing: tuple[str, ...] = ("GLOP", "HIGHS")  # solvers that are tried

    def add_columns(
        self, cost: ArrayLike, *, integer: bool = False, highest: float = np.inf
    ) -> int:
        """Add one column per cost, each between 0 and `highest`; return the first index."""
        first = self.columns
        values = np.atleast_1d(np.asarray(cost, np.float64))
        self.columns += len(values)
        self._cost.append(values)
        self._highest.append(np.full(len(values), highest))
        self._integer.append(np.full(len(values), integer))
        return first

    def add_rows(self, count: int, lower: float = -np.inf, upper: float = np.inf) -> int:
        """Add rows with the same limits and no entries yet; return the first index."""
        first = self.rows
        self.rows += count
        self._lower.append(np.full(count, lower))
        self._upper.append(np.full(count, upper))
        return first

    def enter(self, rows: ArrayLike, columns: ArrayLike, values: ArrayLike) -> None:
        """Add coefficients; each argument is an array, or one value for all."""
        entries = np.broadcast_arrays(
            np.asarray(rows, np.int64), np.asarray(columns, np.int64), np.asarray(values, float)
        )
        self._entries.append((entries[0].ravel(), entries[1].ravel(), entries[2].ravel()))

    def solve(self, max_gap: float = 0.0, node_limit: int = NODE_LIMIT) -> IntegerSolution | None:
        """Best values and the proven bound; None where no values are feasible.

        Parameters
        ----------
        max_gap : float
            Relative gap at which to stop.
        node_limit : int
            Nodes of the branch and bound, after which it stops with what was found.
        """
        from ortools.math_opt.python import mathopt

        cost, unit = self._costs(COSTS_WHOLE)
        model = mathopt.Model.from_model_proto(self._proto(cost / unit))
        parameters = mathopt.SolveParameters(
            relative_gap_tolerance=max_gap,
            absolute_gap_tolerance=0.0,
            node_limit=node_limit,
            random_seed=0,
        )
        result = mathopt.solve(model, mathopt.SolverType.HIGHS, params=parameters)
        if result.termination.reason is mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED:
            parameters.presolve = mathopt.Emphasis.OFF  # which leaves open what it is
            result = mathopt.solve(model, mathopt.SolverType.HIGHS, params=parameters)
        if result.termination.reason is mathopt.TerminationReason.INFEASIBLE:
            return None
        assert result.termination.reason is not mathopt.TerminationReason.UNBOUNDED, (
            "columns without a limit lower the cost for ever"
        )
        bound = float(result.termination.objective_bounds.dual_bound * unit)
        if not result.has_primal_feasible_solution():
            return IntegerSolution(values=np.zeros(0), cost=float("inf"), bound=bound)
        values = np.array(result.variable_values(list(model.variables())))
        return IntegerSolution(values=values, cost=float(cost @ values), bound=bound)

    def limit(self, rows: ArrayLike, lower: float = -np.inf, upper: float = np.inf) -> None:
        """Give rows other limits."""
        for row in np.atleast_1d(np.asarray(rows, np.int64)).tolist():
            self._limits[row] = lower, upper

    def relaxed(self, *, again: bool = False) -> IntegerSolution | None:
        """Best values where integers may be any numbers; None where none are feasible.

        With multipliers of the rows.

        Parameters
        ----------
        again : bool
            True if it is asked once more, when rows were added or their limits changed: it then
            goes on from where it ended.
        """
        cost, unit = self._costs(COSTS_RELAXED)
        result = None
        if again and self._relaxing[0] == "GLOP":
            if self._sizes_sent[0] != self.columns or not self._solver.update(self._update()):
                self._solver = _solver(self._proto(cost / unit, relaxed=True))
            self._sizes_sent = self.columns, self.rows, len(self._entries)
            self._limits_sent = dict(self._limits)
            result = self._solved(self._solver, NO_PRESOLVE)  # which would begin anew
            if result is None:
                self._sizes_sent = -1, 0, 0
        elif not again:
            result = self._solved(_solver(self._proto(cost / unit, relaxed=True)), PRESOLVE)
        # Presolving may leave open what it is, and GLOP may call its own answer imprecise.
        for solver in self._relaxing:
            if result is not None:
                break
            proto = self._proto(cost / unit, relaxed=True)
            result = self._solved(_solver(proto, solver), NO_PRESOLVE)
        if result is None:
            return IntegerSolution(values=np.zeros(0), cost=float("inf"), bound=-float("inf"))
        if not result.solutions:
            return None
        bound = float(result.termination.objective_bounds.dual_bound * unit)
        solution = result.solutions[0]
        values = _spelled_out(solution.primal_solution.variable_values, self.columns)
        multipliers = unit * _spelled_out(solution.dual_solution.dual_values, self.rows)
        total_cost = float(cost @ values)
        return IntegerSolution(
            values=values, cost=total_cost, bound=min(bound, total_cost), multipliers=multipliers
        )

    def _solved(self, solver: Any, presolve: str) -> Any:
        """Answer of a solver that has this program, as `_solved` says."""
        most = max(ITERATIONS_MIN, ITERATIONS * (self.rows + self.columns))
        most *= 1 if "GLOP" in self._relaxing else HIGHS_ITERATIONS
        result, iterations = _solved(solver, presolve, most)
        if result is None and iterations >= most:
            self._relaxing = ("HIGHS",)
        return result

    def _update(self) -> Any:
        """Rows with their entries, and limits, that are new since the solver was asked."""
        from ortools.math_opt import model_update_pb2

        _, rows, entries = self._sizes_sent
        update = model_update_pb2.ModelUpdateProto()
        new = update.new_linear_constraints
        new.ids.extend(range(rows, self.rows))
        lower, upper = self._row_limits()
        new.lower_bounds.extend(lower[rows:].tolist())
        new.upper_bounds.extend(upper[rows:].tolist())
        moved = sorted(
            row
            for row, limits in self._limits.items()
            if row < rows and self._limits_sent.get(row) != limits
        )
        for limits, values in (
            (update.linear_constraint_updates.lower_bounds, lower),
            (update.linear_constraint_updates.upper_bounds, upper),
        ):
            limits.ids.extend(moved)
            limits.values.extend(values[moved].tolist())
        self._fill(update.linear_constraint_matrix_updates, entries)
        return update

    def _costs(self, total: float) -> tuple[Floats, float]:
        """Costs of the columns, and a unit in which they add up to so much."""
        cost = np.concatenate(self._cost)
        return cost, max(float(np.abs(cost).sum()), 1e-30) / total

    def _proto(self, cost: Floats, *, relaxed: bool = False) -> Any:
        """The program as MathOpt reads it, filled from arrays."""
        from ortools.math_opt import model_pb2

        proto = model_pb2.ModelProto()
        variables = proto.variables
        variables.ids.extend(range(self.columns))
        variables.lower_bounds.extend([0.0] * self.columns)
        variables.upper_bounds.extend(np.concatenate(self._highest).tolist())
        integer = np.concatenate(self._integer) & (not relaxed)
        variables.integers.extend(integer.tolist())
        charged = np.nonzero(cost)[0]
        proto.objective.linear_coefficients.ids.extend(charged.tolist())
        proto.objective.linear_coefficients.values.extend(cost[charged].tolist())
        proto.linear_constraints.ids.extend(range(self.rows))
        lower, upper = self._row_limits()
        proto.linear_constraints.lower_bounds.extend(lower.tolist())
        proto.linear_constraints.upper_bounds.extend(upper.tolist())
        self._fill(proto.linear_constraint_matrix, 0)
        return proto

    def _row_limits(self) -> tuple[Floats, Floats]:
        """Lower and upper limits of all rows."""
        lower, upper = (
            np.concatenate([np.zeros(0), *given]) for given in (self._lower, self._upper)
        )
        for row, limits in self._limits.items():
            lower[row], upper[row] = limits
        return lower, upper

    def _fill(self, matrix: Any, first: int) -> None:
        """Write the entries from the first on; coefficients of one row and column add up."""
        rows, columns, values = (
            np.concatenate([np.zeros(0, kind), *(entry[i] for entry in self._entries[first:])])
            for i, kind in enumerate((np.int64, np.int64, np.float64))
        )
        places, inverse = np.unique(rows * self.columns + columns, return_inverse=True)
        matrix.row_ids.extend((places // self.columns).tolist())
        matrix.column_ids.extend((places % self.columns).tolist())
        matrix.coefficients.extend(np.bincount(inverse, values).tolist())


def _solver(proto: Any, name: str = "GLOP") -> Any:
    """A solver that holds a program."""
    # Arrays go straight in and out: MathOpt's objects for each column take longer than GLOP does.
    from ortools.math_opt import parameters_pb2
    from ortools.math_opt.core.python import solver

    kind = getattr(parameters_pb2, f"SOLVER_TYPE_{name}")
    return solver.new(kind, proto, parameters_pb2.SolverInitializerProto())


def _solved(solver: Any, presolve: str, most: int) -> tuple[Any, int]:
    """Answer of a solver, and its iterations of the simplex, of which it makes so many at most.

    The answer is without solutions where none is feasible, and None where it gave up.
    """
    from ortools.math_opt import callback_pb2, model_parameters_pb2, parameters_pb2, result_pb2
    from pybind11_abseil.status import StatusNotOk

    try:
        result = solver.solve(
            parameters_pb2.SolveParametersProto(
                presolve=getattr(parameters_pb2, presolve), iteration_limit=most
            ),
            model_parameters_pb2.ModelSolveParametersProto(),
            None,
            callback_pb2.CallbackRegistrationProto(),
            None,
            None,
        )
    except StatusNotOk:
        return None, 0
    iterations = int(result.solve_stats.simplex_iterations)
    reason = result.termination.reason
    assert reason != result_pb2.TERMINATION_REASON_UNBOUNDED, (
        "columns without a limit lower the cost for ever"
    )
    if reason == result_pb2.TERMINATION_REASON_INFEASIBLE:
        del result.solutions[:]
        return result, iterations
    return (result if reason == result_pb2.TERMINATION_REASON_OPTIMAL else None), iterations


def _spelled_out(sparse: Any, length: int) -> Floats:
    """Values of a sparse vector at their indices, zero elsewhere."""
    values = np.zeros(length)
    values[np.array(sparse.ids, np.int64)] = sparse.values
    return values
