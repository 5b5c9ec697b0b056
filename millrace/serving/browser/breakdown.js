// Where the step of each stage goes: one stacked bar a stage, and the collectives as a table.

import { bytes, hideTip, inkOn, legend, make, percent, seconds, showTip } from "./formats.js";

export const breakdownOf = (step, longestNs, name) => {
  const { breakdown, communication } = step;
  breakdown.colours = { ...breakdown.colours, ...("bubble" in breakdown.colours ? { bubble: "var(--bubble)" } : {}) };
  const rows = breakdown.stages.map((stage) => {
    const pieces = Object.entries(stage.pieces).filter(([, ns]) => ns > 0.0005 * step.step_time_ns);
    const parts = pieces.map(([name, ns]) => {
      const share = ns / step.step_time_ns, colour = breakdown.colours[name] ?? "#340196";
      const words = [name, `${seconds(ns / 1e9)}, ${percent(share)} of the step`];
      const part = make("span", {
        colour, width: `${100 * ns / longestNs}%`,
        onpointermove: (event) => showTip(words, event.clientX, event.clientY), onpointerleave: hideTip,
      }, share * step.step_time_ns / longestNs > 0.08 ? percent(share) : "");
      part.style.color = name === "bubble" ? "var(--text)" : inkOn(colour);
      return part;
    });
    const label = `stage ${stage.stage}: ${pieces.map(([name, ns]) => `${name} ${percent(ns / step.step_time_ns)}`).join(", ")}`;
    return make("div", { class: "stage-bar" },
      make("span", { class: "name" }, `stage ${stage.stage}`),
      make("div", { class: "pieces", role: "img", "aria-label": label }, parts));
  });
  return make("div", {}, legend(breakdown.colours), make("div", { class: "bars" }, rows), collectives(communication, step.step_time_ns, name));
};

const collectives = (rows, stepNs, name) => {
  if (!rows.length) return make("p", { class: "note" }, "Nothing is communicated.");
  const longest = Math.max(...rows.map((row) => row.duration_s));
  return make("details", {}, make("summary", {}, "Communication: what hides and what shows"),
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Collectives of ${name}` },
      make("table", {},
        make("thead", {}, make("tr", {}, ["collective", "over", "bytes", "time", "shows", "of the step", ""].map((head, i) =>
          make("th", { scope: "col", class: i < 2 ? "left" : null }, head || make("span", { class: "unseen" }, "hidden and shown"))))),
        make("tbody", {}, rows.map((row) => make("tr", {},
          make("td", { class: "left" }, row.kind), make("td", { class: "left" }, row.axes.join(" ")),
          make("td", {}, bytes(row.message_bytes)), make("td", {}, seconds(row.duration_s)),
          make("td", {}, seconds(row.exposed_s)), make("td", {}, percent(row.exposed_s * 1e9 / stepNs)),
          make("td", {}, make("span", { class: "meter" },
            make("i", { class: "hidden-part", width: `${90 * (row.duration_s - row.exposed_s) / longest}px` }),
            make("i", { class: "shown-part", width: `${90 * row.exposed_s / longest}px` })))))))));
};
