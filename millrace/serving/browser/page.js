// The page: from a question to plans that are shown, and the link that holds all of it.

import { differencesOf } from "./answers.js";
import { byId, bytes, legend, make } from "./formats.js";
import { clearErrors, fillForm, linkOf, readForm, readLink, showError, writeForm } from "./questions.js";
import * as requests from "./requests.js";
import { ShownPlan } from "./shownplan.js";
import { TimeView } from "./timeview.js";
import { WhatIfs } from "./whatifs.js";

const EXAMPLES = [
  ["GPT-2 small on 4 A100", "a few seconds", "model=gpt2-small&cluster=a100:4x1&global_batch=32"],
  ["Llama-3 8B on 16 H100", "ten seconds", "model=llama3-8b&cluster=h100:8x2&global_batch=256"],
  ["Llama-3 8B, with 4 stages", "a few seconds", "model=llama3-8b&cluster=h100:8x2&global_batch=128&pins.pp=4&pins.tp=2"],
  ["Two schedules, side by side", "a few seconds", "model=gpt2-xl&cluster=a100:8x1&global_batch=64&pins.pp=4&pins.schedule=1f1b&2.model=gpt2-xl&2.cluster=a100:8x1&2.global_batch=64&2.pins.pp=4&2.pins.schedule=interleaved-1f1b"],
  ["Mixtral 8x7B on 32 H100", "half a minute", "model=mixtral-8x7b&cluster=h100:8x4&global_batch=256&seq_len=4096"],
];

const view = new TimeView();
let catalogue = null;
let shown = []; // ShownPlan, at most two
let adding = false; // the next plan is shown beside the first
let asked = null; // the job that is waited for
const whatIfs = new WhatIfs(() => { follow(); writeLink(); });

const questions = () => shown.map(({ plan }) => plan.question);
let writing = "";
const writeLink = () => {
  writing = `#${linkOf(questions(), whatIfs.changes)}`;
  if (shown.length && location.hash !== writing) history.replaceState(null, "", writing);
};

const follow = () => {
  for (const one of shown) one.follow(whatIfs.of(one.plan));
};

// Legends of what is drawn, and no more.
const showLegends = () => {
  const steps = shown.map(({ step }) => step).filter(Boolean);
  const only = (colours, names) => legend(Object.fromEntries(Object.entries(colours).filter(([name]) => names.has(name))));
  const { phases, memory } = catalogue.colours;
  byId("phases").replaceChildren(only(phases, new Set(steps.flatMap(({ schedule }) => schedule.kinds))));
  byId("kinds").replaceChildren(only(memory, new Set(steps.flatMap(({ memory: stages }) => stages.flatMap(({ bytes_by_kind: kinds }) => Object.keys(kinds))))));
};

// Called after every answer of a simulation.
const told = () => {
  const names = shown.length > 1 ? ["A: ", "B: "] : [""];
  whatIfs.readout.textContent = shown.map(({ readout }, i) => (readout ? names[i] + readout : "")).filter(Boolean).join(" · ");
  const refused = shown.map(({ refusal }, i) => (refusal ? names[i] + refusal : "")).filter(Boolean).join(" · ");
  whatIfs.refuse(refused);
  const longest = Math.max(1, ...shown.map(({ stepNs }) => stepNs));
  view.extend([longest]);
  for (const one of shown) one.showBreakdown(longest);
  showLegends();
  document.body.dataset.answers = Number(document.body.dataset.answers ?? 0) + 1;
};

const section = (id, title, note, ...children) => make("section", { class: "card", "aria-labelledby": id },
  make("div", { class: "heading" }, make("h2", { id }, title)), note ? make("p", { class: "note" }, note) : null, children);

const titleOf = ({ plan }, i) => {
  const letter = shown.length > 1 ? make("span", { class: "letter" }, "AB"[i]) : null;
  const actions = make("div", { class: "actions" },
    make("a", { href: `/api/plans/${plan.plan}/document`, download: "" }, "Plan as JSON"),
    make("a", { href: `/api/plans/${plan.plan}/report`, target: "_blank", rel: "noopener" }, "Report of the step"),
    shown.length > 1
      ? make("button", { type: "button", class: "quiet", onclick: () => drop(i) }, `Close ${"AB"[i]}`)
      : make("button", { type: "button", class: "quiet", id: "compare", onclick: compare }, "Compare with another"));
  return make("div", { class: "plan" }, make("h2", { class: "title" }, letter, plan.headline), make("p", { class: "note" }, plan.question_text), actions, shown[i].cards.element);
};

const roomOf = ({ cluster }) => `a device has ${bytes(cluster.memory_bytes)}, of which ${bytes(cluster.limit_bytes)} may be used`;

const withLetter = (elements) => elements.map((element, i) => (shown.length > 1
  ? make("div", { class: "half" }, make("h3", {}, make("span", { class: "letter" }, "AB"[i]), ` ${shown[i].plan.question.model} on ${shown[i].plan.cluster.name}`), element)
  : make("div", { class: "half" }, element)));

const show = () => {
  byId("start").hidden = shown.length > 0;
  const place = byId("plans");
  place.hidden = shown.length === 0;
  if (!shown.length) return;
  const buttons = make("div", { class: "zoom", role: "group", "aria-label": "Time that is shown" },
    make("button", { type: "button", class: "quiet", "aria-label": "Zoom in", onclick: () => view.zoom(1 / 1.7) }, "+"),
    make("button", { type: "button", class: "quiet", "aria-label": "Zoom out", onclick: () => view.zoom(1.7) }, "−"),
    make("button", { type: "button", class: "quiet", onclick: () => view.showAll() }, "All"));
  const schedule = section("schedule", "Schedule of one step", "One rank of each stage: what it computes, and below it what it moves. Drag to pan, Ctrl and the wheel to zoom.",
    make("div", { id: "phases" }), withLetter(shown.map(({ schedule: chart }) => chart.canvas)));
  schedule.querySelector(".heading").append(buttons);
  place.replaceChildren(
    make("div", { class: "pair card" }, shown.map(titleOf)),
    ...(shown.length > 1 ? [section("differences", "What differs", null, differencesOf(shown.map(({ plan }) => plan)))] : []),
    whatIfs.element,
    schedule,
    section("memory", "Memory over the step", null, make("div", { id: "kinds" }), withLetter(shown.map(({ memory: chart }, i) => make("div", {}, chart.select, make("span", { class: "note room" }, roomOf(shown[i].plan)), chart.canvas)))),
    section("breakdown", "Where the step of each stage goes", null, withLetter(shown.map(({ breakdown }) => breakdown))),
    section("layout", "The plan", null, make("div", { class: "pair" }, withLetter(shown.map(({ layout }) => layout)))),
    section("proof", "How sure it is", null, make("div", { class: "pair" }, withLetter(shown.map(({ proof }) => proof)))));
  whatIfs.show(shown.map(({ plan }) => plan));
  view.repaint();
};

const drop = (i) => {
  shown[i].end();
  shown.splice(i, 1);
  writeForm(shown[0].plan.question);
  show();
  told();
  writeLink();
};

const compare = () => {
  adding = true;
  byId("plan").textContent = "Plan B";
  byId("progress").textContent = "Change the question and plan: the answer is shown beside this one.";
  byId("model").focus();
};

const busy = (running) => {
  byId("cancel").hidden = !running;
  byId("plan").disabled = running;
  byId("question").setAttribute("aria-busy", String(running));
};

// The plan that answers a question; null where it was cancelled.
const answer = async (question) => {
  let job = await requests.begin(question);
  asked = job.job;
  for (let waits = 0; job.state === "queued" || job.state === "running"; waits++) {
    const seconds = Math.floor(job.seconds);
    byId("progress").textContent = job.state === "queued" ? "waiting for another search …" : `${seconds ? `${seconds} s: ` : ""}${job.progress || "searching …"}`;
    await new Promise((resolve) => { setTimeout(resolve, waits < 8 ? 100 : 400); });
    job = await requests.job(asked);
  }
  if (job.state === "cancelled") return null;
  if (job.state === "failed") throw new requests.Refusal(job, 422);
  return requests.plan(job.plan);
};

const planAll = async (list, keepFirst) => {
  clearErrors();
  busy(true);
  try {
    const plans = [];
    for (const question of list) {
      const plan = await answer(question);
      if (plan === null) {
        byId("progress").textContent = "cancelled";
        return;
      }
      plans.push(plan);
    }
    byId("progress").textContent = "";
    for (const one of shown.slice(keepFirst ? 1 : 0)) one.end();
    shown = [...shown.slice(0, keepFirst ? 1 : 0), ...plans.map((plan) => new ShownPlan(plan, catalogue, view, told))];
    adding = false;
    byId("plan").textContent = "Plan";
    show();
    view.showAll();
    follow();
    writeLink();
    if (matchMedia("(max-width: 860px)").matches) byId("answer").scrollIntoView();
    document.title = `${shown[0].plan.question.model} · Millrace`;
  } catch (refusal) {
    if (!(refusal instanceof requests.Refusal)) throw refusal;
    byId("progress").textContent = "";
    showError(refusal.message, refusal.field);
  } finally {
    asked = null;
    busy(false);
  }
};

byId("question").addEventListener("submit", (event) => {
  event.preventDefault();
  clearErrors();
  let question;
  try {
    question = readForm();
  } catch (wrong) {
    showError(wrong.message, wrong.field);
    return;
  }
  planAll([question], adding || shown.length > 1);
});
byId("cancel").addEventListener("click", () => { if (asked) requests.cancel(asked); });
byId("copy-link").addEventListener("click", async () => {
  const link = shown.length ? location.href : `${location.origin}/#${linkOf([readForm()], {})}`;
  try {
    await navigator.clipboard.writeText(link);
    byId("spoken").textContent = "link copied";
    byId("copy-link").textContent = "Copied";
    setTimeout(() => { byId("copy-link").textContent = "Copy link"; }, 1500);
  } catch {
    location.hash = link.split("#")[1] ?? "";
  }
});

const open = () => {
  const { questions: list, changes } = readLink(location.hash);
  if (!list.length) return;
  writeForm(list.at(-1));
  whatIfs.set(changes, false);
  planAll(list.slice(0, 2), false);
};

window.addEventListener("hashchange", () => { if (location.hash !== writing) open(); });
window.addEventListener("resize", () => view.repaint());
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view.repaint());

byId("examples").replaceChildren(...EXAMPLES.map(([name, takes, hash]) => make("li", {}, make("a", { href: `#${hash}` }, make("b", {}, name), make("span", {}, takes)))));

try {
  catalogue = await requests.catalogue();
  fillForm(catalogue);
  whatIfs.fill(catalogue);
  document.body.dataset.ready = "true";
  open();
} catch (refusal) {
  showError(refusal.message, null);
}
