"""A plan with one simulated step of it: what pictures of its schedule and memory are drawn from."""

from dataclasses import dataclass
from functools import cached_property

from millrace.planner.plan import Plan
from millrace.simulator import predict
from millrace.simulator.account import Account, account_of
from millrace.simulator.simulate import Simulated


@dataclass(frozen=True, kw_only=True)
class SimulatedPlan:
    """A plan whose step is simulated once something asks for it."""

    plan: Plan

    @cached_property
    def step(self) -> Simulated:
        """One steady step, with what an account of it needs."""
        return predict(self.plan, detailed=True)

    @cached_property
    def account(self) -> Account:
        """Account of the step: where its time and memory go."""
        return account_of(self.plan, self.step)
