// The question: fields of the form, the JSON that is asked, and the link that holds it.

import { byId, make } from "./formats.js";

const DEGREES = ["dp", "tp", "pp", "cp", "ep", "etp"];
const COUNTS = [...DEGREES, "micro_batch", "interleave", "mtp_layers"];
const WORDS = { sequence_parallel: "flag", ring: "flag", expert_overlap: "flag" };
const TITLES = {
  dp: "data parallel", tp: "tensor parallel", pp: "pipeline stages", cp: "context parallel",
  ep: "expert parallel", etp: "expert tensor par.", micro_batch: "microbatch", interleave: "chunks a stage",
  schedule: "schedule", recompute: "recompute", zero: "ZeRO", sequence_parallel: "sequence par.",
  offload: "offload", ring: "ring attention", fusion: "fusion", dispatcher: "dispatcher",
  expert_overlap: "expert overlap", mtp_layers: "MTP layers", capacity_factor: "capacity factor",
  routing: "routing",
};
const PINS = [
  "tp", "pp", "dp", "cp", "ep", "etp", "micro_batch", "interleave", "schedule", "recompute", "zero",
  "sequence_parallel", "offload", "ring", "fusion", "dispatcher", "expert_overlap", "mtp_layers",
  "capacity_factor", "routing",
];

// Fields of the form by the names that refusals have for them.
const FIELD_OF = { cluster: "device" };

const errorBelow = (input) => {
  const error = make("p", { class: "error", id: `${input.id}-error`, hidden: true });
  input.setAttribute("aria-describedby", error.id);
  input.closest(".field").append(error);
};

const choices = (names, none) => [make("option", { value: "" }, none), ...names.map((name) =>
  Array.isArray(name) ? make("option", { value: name[0] }, name[1]) : make("option", { value: name }, name))];

let aliases = {};

export const fillForm = (catalogue) => {
  byId("models").replaceChildren(...catalogue.models.map((name) => make("option", { value: name })));
  const device = byId("device"), before = device.value;
  device.replaceChildren(...catalogue.devices.map(({ name }) => make("option", { value: name }, name)));
  aliases = catalogue.aliases;
  device.value = aliases[before] ?? before;
  const keep = (id, names, none) => {
    const select = byId(id), value = select.value;
    select.replaceChildren(...choices(names, none));
    select.value = value;
  };
  keep("precision", catalogue.precisions, "usual");
  keep("framework", catalogue.frameworks, "usual");
  keep("network", catalogue.networks, "the device's");
  byId("reserve").placeholder = catalogue.reserve;
  const words = {
    schedule: catalogue.schedules, recompute: catalogue.recompute, zero: catalogue.zero,
    offload: ["none", "optimizer"], fusion: ["none", "full"], dispatcher: catalogue.dispatchers,
    routing: ["balanced", "natural"],
  };
  for (const name of PINS) {
    const id = `pin-${name}`;
    let input;
    if (COUNTS.includes(name)) input = make("input", { id, type: "number", min: name === "mtp_layers" ? 0 : 1, inputmode: "numeric" });
    else if (WORDS[name]) input = make("select", { id }, choices([["true", "yes"], ["false", "no"]], "open"));
    else if (words[name]) input = make("select", { id }, choices(words[name], "open"));
    else input = make("input", { id, autocomplete: "off" });
    if (input.tagName === "INPUT") input.placeholder = "open";
    byId("pin-fields").append(make("div", { class: "field" }, make("label", { for: id }, TITLES[name]), input));
  }
  for (const input of byId("question").querySelectorAll("input, select")) errorBelow(input);
  const perNode = () => {
    const chosen = catalogue.devices.find(({ name }) => name === device.value);
    if (chosen) byId("per_node").value = chosen.devices_per_node;
  };
  device.addEventListener("change", perNode);
  byId("pins").addEventListener("change", countPins);
};

const countPins = () => {
  const count = PINS.filter((name) => byId(`pin-${name}`).value.trim() !== "").length;
  byId("pin-count").textContent = count ? `(${count})` : "";
};

export const clearErrors = () => {
  for (const error of byId("question").querySelectorAll(".error")) {
    error.hidden = true;
    error.textContent = "";
  }
  for (const input of byId("question").querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
};

// Shows a refusal beside the field that caused it, and moves there; below the form where none did.
export const showError = (sentence, field) => {
  const name = (field ?? "").replace("pins.", "pin-");
  const input = byId(FIELD_OF[name] ?? name);
  const error = input && byId("question").contains(input) ? byId(`${input.id}-error`) : null;
  const place = error ?? byId("question-error");
  place.textContent = sentence;
  place.hidden = false;
  if (!error) return;
  for (let parent = input.parentElement; parent; parent = parent.parentElement) {
    if (parent.tagName === "DETAILS") parent.open = true;
  }
  input.setAttribute("aria-invalid", "true");
  input.focus();
};

class FieldError extends Error {
  constructor(sentence, field) {
    super(sentence);
    this.field = field;
  }
}

const number = (id, name, field, missing = undefined) => {
  const input = byId(id), text = input.value.trim();
  if (text === "" && !input.validity.badInput) {
    if (missing === undefined) return undefined;
    throw new FieldError(`${name}: ${missing}`, field);
  }
  const value = Number(text);
  if (!Number.isInteger(value) || text === "") throw new FieldError(`${name}: expected a whole number`, field);
  return value;
};

// The question as the form has it now, with nothing that is left open.
export const readForm = () => {
  const text = (id) => byId(id).value.trim() || undefined;
  const per = number("per_node", "Devices per node", "per_node", "say how many there are");
  const nodes = number("nodes", "Nodes", "nodes", "say how many there are");
  if (per < 1) throw new FieldError("Devices per node: expected at least 1", "per_node");
  if (nodes < 1) throw new FieldError("Nodes: expected at least 1", "nodes");
  if (!text("model")) throw new FieldError("choose a model of the list", "model");
  const pins = {};
  for (const name of PINS) {
    const id = `pin-${name}`;
    const value = COUNTS.includes(name) ? number(id, TITLES[name], `pins.${name}`) : text(id);
    if (value !== undefined) pins[name] = WORDS[name] ? value === "true" : value;
  }
  const question = {
    model: text("model"),
    cluster: `${byId("device").value}:${per}x${nodes}`,
    global_batch: number("global_batch", "Global batch", "global_batch", "say how many samples a step has"),
    network: text("network"),
    seq_len: number("seq_len", "Sequence", "seq_len"),
    precision: text("precision"),
    framework: text("framework"),
    reserve: text("reserve"),
    optimize_for: text("optimize_for"),
    pins,
  };
  return Object.fromEntries(Object.entries(question).filter(([, value]) => value !== undefined));
};

export const writeForm = (question) => {
  const [device, shape] = (question.cluster ?? ":x").split(":");
  const [per, nodes] = (shape ?? "").split("x");
  const select = byId("device");
  select.value = aliases[device] ?? device;
  byId("per_node").value = per ?? "";
  byId("nodes").value = nodes ?? "";
  byId("model").value = question.model ?? "";
  for (const name of ["global_batch", "seq_len", "precision", "framework", "network", "reserve"]) {
    byId(name).value = question[name] ?? "";
  }
  byId("optimize_for").value = question.optimize_for === "throughput" ? "" : question.optimize_for ?? "";
  const pins = question.pins ?? {};
  for (const name of PINS) byId(`pin-${name}`).value = pins[name] === undefined ? "" : String(pins[name]);
  byId("pins").open = Object.keys(pins).length > 0;
  byId("more").open = ["network", "reserve"].some((name) => question[name]) || byId("optimize_for").value !== "";
  countPins();
};

// A link holds both questions and the what-ifs: `model=…&pins.tp=8`, `2.model=…`, `if.network=0.5`.
const NUMBERS = ["global_batch", "seq_len"];

const entries = (question, prefix) => Object.entries(question).flatMap(([name, value]) =>
  name === "pins"
    ? Object.entries(value).map(([pin, chosen]) => [`${prefix}pins.${pin}`, String(chosen)])
    : [[prefix + name, String(value)]]);

export const linkOf = (questions, changes) => {
  const [first, second] = questions;
  const pairs = [
    ...(first ? entries(first, "") : []),
    ...(second ? entries(second, "2.") : []),
    ...Object.entries(changes).map(([name, value]) => [`if.${name}`, String(value)]),
  ];
  return new URLSearchParams(pairs).toString().replaceAll("%3A", ":");
};

export const readLink = (hash) => {
  const questions = [{}, {}], changes = {};
  for (const [key, value] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (key.startsWith("if.")) {
      changes[key.slice(3)] = Number.isNaN(Number(value)) ? value : Number(value);
      continue;
    }
    const question = questions[key.startsWith("2.") ? 1 : 0];
    const name = key.replace(/^2\./, "");
    if (name.startsWith("pins.")) {
      const pin = name.slice(5);
      question.pins ??= {};
      question.pins[pin] = COUNTS.includes(pin) ? Number(value) : WORDS[pin] ? value === "true" : value;
    } else question[name] = NUMBERS.includes(name) ? Number(value) : value;
  }
  return { questions: questions.filter(({ model }) => model), changes };
};
