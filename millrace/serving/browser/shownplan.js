// One plan on the page: its cards, charts and tables, which follow its simulations.

import { breakdownOf } from "./breakdown.js";
import { Cards, proofOf, readoutOf } from "./answers.js";
import { make } from "./formats.js";
import { layoutOf } from "./layout.js";
import { MemoryChart } from "./memory.js";
import { latest, Refusal, simulate, step } from "./requests.js";
import { ScheduleChart } from "./schedule.js";

export class ShownPlan {
  // `told(plan)` is called whenever something about the plan has changed.
  constructor(plan, catalogue, view, told) {
    this.plan = plan;
    this.told = told;
    this.cards = new Cards(plan);
    const { phases, memory } = catalogue.colours;
    this.memoryColours = memory;
    this.phases = phases;
    this.schedule = new ScheduleChart(view, phases, plan.headline);
    this.memory = new MemoryChart(view, memory, plan.headline);
    this.breakdown = make("div", {}, make("p", { class: "note" }, "simulating …"));
    this.layout = layoutOf(plan, memory);
    this.proof = proofOf(plan);
    this.readout = "";
    this.refusal = null;
    this.stepNs = 0;
    this.step = null;
    this.follow = latest((changes) => this.ask(changes));
  }

  end() {
    this.schedule.end();
    this.memory.end();
  }

  async ask(changes) {
    const changed = Object.keys(changes).length > 0;
    try {
      const simulated = await simulate(this.plan.plan, changes);
      this.refusal = simulated.changed.shortage;
      this.readout = changed ? readoutOf(this.plan, simulated, "") : "";
      this.cards.show(simulated, changed);
      this.told(this);
      this.step = await step(this.plan.plan, changes);
      this.stepNs = this.step.step_time_ns;
      this.schedule.set(this.step);
      this.memory.set(this.step, this.plan.cluster.limit_bytes);
    } catch (refusal) {
      if (!(refusal instanceof Refusal)) throw refusal;
      this.refusal = refusal.message;
      this.status = refusal.status;
    }
    this.told(this);
  }

  showBreakdown(longestNs) {
    if (this.step) this.breakdown.replaceChildren(breakdownOf(this.step, longestNs, this.plan.headline));
  }
}
