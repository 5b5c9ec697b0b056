// What is said of a plan in figures: the cards at its top, the proof, and how two plans differ.

import { bytes, change, dollars, make, percent, rate, seconds, whole } from "./formats.js";

const unitOf = (plan) => plan.summary.unit;

// Figures of a card: label, value of a plan, and the key of a simulation that has it too.
const CARDS = [
  ["step time", "step_time_s", seconds, -1],
  ["speed", "tokens_per_s", (value, plan) => rate(value, unitOf(plan)), 1],
  ["MFU", "mfu", percent, 1],
  ["memory, fullest device", "memory_bytes_max", bytes, -1],
  ["cost per million", "cost_usd_per_mtoken", dollars, -1],
  ["energy", "energy_j_per_token", (value, plan) => (value === null ? "–" : `${value.toPrecision(3)} J/${unitOf(plan)}`), -1],
  ["bubble", "bubble_fraction", percent, -1],
  ["exposed communication", "exposed_communication_s", seconds, -1],
];

export class Cards {
  constructor(plan) {
    this.plan = plan;
    this.cells = new Map(CARDS.map(([label, key]) => [key, {
      value: make("b", {}, "…"), delta: make("span", { class: "delta" }), label,
    }]));
    this.element = make("dl", { class: "cards" }, CARDS.map(([label, key]) => {
      const { value, delta } = this.cells.get(key);
      const name = key === "cost_usd_per_mtoken" ? `cost per million ${unitOf(plan)}s` : label;
      return make("div", {}, make("dt", {}, name), make("dd", {}, value, delta));
    }));
    this.show(null, false);
  }

  // Planned figures, or those of a simulation under changes, with what they differ by.
  show(simulated, changed) {
    const { plan } = this, { summary } = plan;
    for (const [, key, text, better] of CARDS) {
      const { value, delta } = this.cells.get(key);
      const base = simulated?.base[key] ?? null;
      const planned = summary[key] ?? base;
      const now = changed ? simulated.changed[key] : planned;
      value.textContent = now === undefined || now === null && !simulated ? "…" : text(now, plan);
      delta.className = "delta";
      delta.textContent = "";
      if (changed && base !== null && now !== null) {
        const ratio = base ? now / base : now ? Infinity : 1;
        delta.textContent = base ? change(ratio) : "";
        if (Math.abs(ratio - 1) > 0.0005 && base) delta.classList.add((ratio - 1) * better > 0 ? "better" : "worse");
      } else if (key === "memory_bytes_max") delta.textContent = `of ${bytes(plan.cluster.limit_bytes)} usable`;
      else if (key === "step_time_s" && summary.step_time_range_s) delta.textContent = summary.step_time_range_s.map(seconds).join(" to ");
    }
  }
}

export const readoutOf = (plan, simulated, name) => {
  const { base, changed } = simulated;
  return `${name ? `${name}: ` : ""}step ${seconds(changed.step_time_s)} (${change(changed.step_time_s / base.step_time_s)}), ` +
    `${rate(changed.tokens_per_s, unitOf(plan))}${changed.mfu === null ? "" : `, MFU ${percent(changed.mfu)}`}` +
    `${changed.shortage ? `; ${changed.shortage}` : ""}`;
};

export const proofOf = (plan) => {
  const { summary } = plan;
  const alternatives = (summary.alternatives ?? []).filter((row) => row.objective_s || row.objective);
  return make("div", {},
    make("p", {}, plan.range ?? ""),
    summary.objective === null ? null : make("p", {},
      `Searched for ${seconds(plan.search_time_s)}: ${whole(plan.candidates)} candidates, ${whole(plan.pruned)} pruned. `,
      `Objective ${seconds(summary.objective)}, bound ${seconds(summary.bound)}: at most ${percent(summary.gap)} from the best of all that was searched, in the search's own cost.`),
    summary.profile_warning ? make("p", { class: "error" }, summary.profile_warning) : null,
    alternatives.length ? alternativesTable(alternatives, summary.objective, plan.headline) : null);
};

const alternativesTable = (rows, objective, name) => {
  const words = ["dp", "tp", "pp", "cp", "ep", "schedule", "microbatches", "micro_batch", "interleave", "recompute", "zero"];
  const columns = words.filter((name) => rows.some((row) => row[name] !== undefined && row[name] !== null));
  const cost = (row) => row.objective_s ?? row.objective;
  return make("details", {}, make("summary", {}, `${rows.length} alternatives that lost`),
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Alternatives to ${name}` }, make("table", {},
      make("thead", {}, make("tr", {}, columns.map((name) => make("th", { scope: "col" }, name.replaceAll("_", " "))), make("th", { scope: "col" }, "step, by the search"), make("th", { scope: "col" }, "longer by"))),
      make("tbody", {}, rows.map((row) => make("tr", {}, columns.map((name) => make("td", {}, row[name] === undefined || row[name] === null ? "–" : String(row[name]))),
        make("td", {}, seconds(cost(row))), make("td", {}, change(cost(row) / objective))))))));
};

const DECISIONS = [
  ["model", (plan) => plan.question.model], ["cluster", (plan) => plan.cluster.name],
  ["framework", (plan) => plan.summary.framework], ["precision", (plan) => plan.summary.precision],
  ["global batch", (plan) => plan.summary.global_batch], ["sequence", (plan) => plan.summary.seq_len],
  ...["dp", "tp", "pp", "cp", "ep", "etp", "zero", "sequence_parallel", "micro_batch", "microbatches", "schedule", "interleave", "recompute", "ring", "offload", "fusion", "dispatcher"]
    .map((name) => [name.replaceAll("_", " "), (plan) => plan.summary[name]]),
];
const FIGURES = [
  ["step time", "step_time_s", seconds], ["speed", "tokens_per_s", (value, plan) => rate(value, unitOf(plan))],
  ["TFLOP/s per device", "tflops_per_gpu", (value) => value?.toFixed(0)], ["MFU", "mfu", percent],
  ["memory, fullest device", "memory_bytes_max", bytes], ["cost per million", "cost_usd_per_mtoken", dollars],
  ["energy per token", "energy_j_per_token", (value) => (value === null ? "–" : `${value.toPrecision(3)} J`)],
  ["gap", "gap", percent],
];

const word = (value) => value === null || value === undefined ? "–" : value === true ? "yes" : value === false ? "no" : String(value);

// What differs between both plans, line by line, and in one sentence what is equal.
export const differencesOf = ([first, second]) => {
  const lines = [
    ...FIGURES.map(([name, key, text]) => {
      const [a, b] = [first.summary[key], second.summary[key]];
      return [name, text(a, first) ?? "–", text(b, second) ?? "–", a && b && key !== "gap" ? change(b / a) : ""];
    }),
    ...DECISIONS.filter(([, value]) => [first, second].some((plan) => ![null, undefined].includes(value(plan))))
      .map(([name, value]) => [name, word(value(first)), word(value(second)), ""]),
  ];
  const differing = lines.filter(([, a, b]) => a !== b), equal = lines.filter(([, a, b]) => a === b);
  const table = make("table", { class: "differences" },
    make("thead", {}, make("tr", {}, ["", "A", "B", "B over A"].map((head, i) => make(head ? "th" : "td", { scope: head ? "col" : null, class: i ? null : "left" }, head)))),
    make("tbody", {}, differing.map(([name, a, b, difference]) => make("tr", {},
      make("th", { scope: "row", class: "left" }, name), make("td", {}, a), make("td", {}, b), make("td", {}, difference)))));
  return make("div", {},
    differing.length ? make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Differences, line by line" }, table) : make("p", {}, "The plans are equal."),
    equal.length ? make("p", { class: "note equal" }, `Equal in both: ${equal.map(([name, value]) => `${name} ${value}`).join(", ")}.`) : null);
};
