// What-ifs: sliders over a fixed plan. They hold for all plans that are shown.

import { make } from "./formats.js";

const times = (value) => `× ${value}`;
const share = (value) => `${Math.round(100 * value)} %`;

const SLIDERS = [
  { name: "straggler_factor", title: "One slow rank", normal: 1, text: (value) => (value === 1 ? "none" : `${Math.round(100 * (value - 1))} % slower`) },
  { name: "jitter", title: "Jitter of all durations", normal: 0, text: (value) => (value ? share(value) : "none") },
  { name: "network", title: "Network between nodes", normal: 1, text: times, needs: (plan) => plan.cluster.nodes > 1 },
  { name: "links", title: "Links inside a node", normal: 1, text: times, needs: (plan) => plan.cluster.devices_per_node > 1 },
  { name: "compute", title: "FLOP/s of devices", normal: 1, text: times },
  { name: "memory_bandwidth", title: "Memory bandwidth", normal: 1, text: times },
  { name: "overlap", title: "Speed beside communication", normal: null, text: share },
  { name: "microbatch_factor", title: "Microbatches a step", normal: 1, text: times },
];

export class WhatIfs {
  constructor(changed) {
    this.changed = changed;
    this.plans = [];
    this.inputs = new Map();
    this.readout = make("p", { class: "readout", role: "status", "aria-live": "polite" });
    this.error = make("p", { class: "error", role: "alert", hidden: true });
    this.rank = make("input", { id: "if-straggler_rank", type: "number", min: 0, value: 0, "aria-label": "Number of the slow rank", oninput: () => this.tell() });
    this.device = make("select", { id: "if-device", onchange: () => this.tell() });
    this.precision = make("select", { id: "if-precision", onchange: () => this.tell() });
    const reset = make("button", { type: "button", class: "quiet", onclick: () => this.set({}, true) }, "Reset");
    const grid = make("div", { class: "sliders" },
      this.choice("if-device", "On another device", this.device), this.choice("if-precision", "In another precision", this.precision));
    this.element = make("section", { class: "card", "aria-labelledby": "what-if" },
      make("div", { class: "heading" }, make("h2", { id: "what-if" }, "What if"), reset),
      make("p", { class: "note" }, "The plan stays as it is and is simulated anew, by whole parts of stages."),
      this.readout, this.error, grid);
    this.grid = grid;
  }

  slider(slider) {
    const id = `if-${slider.name}`;
    const value = make("output", { for: id });
    const input = make("input", { id, type: "range", min: 0, max: slider.steps.length - 1, step: 1, oninput: () => { this.write(slider); this.tell(); } });
    this.inputs.set(slider.name, { slider, input, value, touched: false });
    const field = make("div", { class: "slider" },
      make("label", { for: id }, slider.title), value, input,
      slider.name === "straggler_factor" ? make("span", { class: "rank" }, "rank ", this.rank) : null);
    input.addEventListener("input", () => { this.inputs.get(slider.name).touched = true; });
    return field;
  }

  choice(id, title, select) {
    return make("div", { class: "slider" }, make("label", { for: id }, title), make("span"), select);
  }

  fill(catalogue) {
    this.grid.prepend(...SLIDERS.map((slider) => this.slider({ ...slider, steps: catalogue.sliders[slider.name] })));
    this.device.replaceChildren(make("option", { value: "" }, "as planned"), ...catalogue.devices.map(({ name }) => make("option", { value: name }, name)));
    this.precision.replaceChildren(make("option", { value: "" }, "as planned"), ...catalogue.precisions.map((name) => make("option", { value: name }, name)));
  }

  // Sliders that mean something for the plans that are shown.
  show(plans) {
    this.plans = plans;
    for (const { slider, input } of this.inputs.values()) {
      input.closest(".slider").hidden = slider.needs !== undefined && !plans.some(slider.needs);
    }
    this.set(this.changes, false);
  }

  normal({ name, normal }) {
    return name === "overlap" ? this.plans[0]?.overlap ?? 1 : normal;
  }

  write(slider) {
    const { input, value } = this.inputs.get(slider.name);
    const text = slider.text(slider.steps[Number(input.value)]);
    value.textContent = text;
    input.setAttribute("aria-valuetext", text);
  }

  set(changes, tell) {
    for (const { slider, input } of this.inputs.values()) {
      const entry = this.inputs.get(slider.name), wanted = changes[slider.name] ?? this.normal(slider);
      entry.touched = changes[slider.name] !== undefined;
      const near = slider.steps.reduce((best, step, i) => (Math.abs(step - wanted) < Math.abs(slider.steps[best] - wanted) ? i : best), 0);
      input.value = near;
      this.write(slider);
    }
    this.rank.value = changes.straggler_rank ?? 0;
    this.device.value = changes.device ?? "";
    this.precision.value = changes.precision ?? "";
    if (tell) this.tell();
  }

  // What differs from the plans as they are, as the link has it.
  get changes() {
    const changes = {};
    for (const { slider, input, touched } of this.inputs.values()) {
      const value = slider.steps[Number(input.value)];
      if (touched && (slider.name === "overlap" || value !== slider.normal)) changes[slider.name] = value;
    }
    const rank = Number(this.rank.value);
    if (changes.straggler_factor && Number.isInteger(rank) && rank > 0) changes.straggler_rank = rank;
    if (this.device.value) changes.device = this.device.value;
    if (this.precision.value) changes.precision = this.precision.value;
    return changes;
  }

  // The changes as the server takes them, of one plan.
  of(plan) {
    const { microbatch_factor: factor, device, ...changes } = this.changes;
    if (factor) changes.microbatches = Math.max(1, Math.round(factor * plan.summary.microbatches));
    if (device) changes.cluster = `${device}:${plan.question.cluster.split(":")[1]}`;
    if (!(plan.cluster.nodes > 1)) delete changes.network;
    return changes;
  }

  tell() {
    this.changed();
  }

  refuse(sentence) {
    this.error.textContent = sentence ?? "";
    this.error.hidden = !sentence;
  }
}
