// The stretch of time that timelines and memory show together, and how figures are written.

const FONT = "11px system-ui, sans-serif";

// Colours of the page's theme, which are variables of its style; read again when the theme changes.
const theme = {};
const readTheme = () => {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["paper", "card", "ink", "soft", "rule", "grid"]) {
    theme[name] = style.getPropertyValue(`--${name}`).trim();
  }
  theme.lines = [0, 1, 2, 3, 4, 5].map((place) => style.getPropertyValue(`--line-${place}`).trim());
  [theme.predicted, theme.mark] = theme.lines;
  theme.measured = theme.ink;
};
readTheme();

const byId = (id) => document.getElementById(id);

const threeDigits = (value) => {
  const size = Math.abs(value);
  return size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(2);
};
const seconds = (value) => {
  for (const [unit, scale] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) {
    if (Math.abs(value) >= scale * 0.9995) return `${threeDigits(value / scale)} ${unit}`;
  }
  return value ? `${Math.round(value * 1e9)} ns` : "0 s";
};
const unitsText = (units) => seconds(units * unitNs / 1e9);
const nsText = (ns) => (ns === null ? "–" : seconds(ns / 1e9));
const signed = (value, text) => `${value < 0 ? "−" : "+"}${text(Math.abs(value))}`;
const percent = (ratio) => {
  const change = 100 * (ratio - 1);
  return ratio > 3 || ratio < 1 / 3
    ? `${threeDigits(ratio >= 1 ? ratio : 1 / ratio)} × ${ratio >= 1 ? "longer" : "shorter"}`
    : `${change < 0 ? "−" : "+"}${Math.abs(change).toFixed(1)} %`;
};
const bytes = (kib) => {
  for (const [unit, scale] of [["TiB", 2 ** 30], ["GiB", 2 ** 20], ["MiB", 2 ** 10]]) {
    if (kib >= scale) return `${(kib / scale).toFixed(2)} ${unit}`;
  }
  return `${kib.toFixed(0)} KiB`;
};

const latest = Math.max(
  ...data.timelines.map((timeline) => timeline.duration),
  ...rows.flat().map((row) => (row.count ? row.reach[row.count - 1] : 0)));
const earliest = Math.min(0, ...rows.flat().map((row) => (row.count ? row.start[0] : 0)));
const margin = 0.01 * (latest - earliest);
const limits = { start: earliest - margin, end: latest + margin };
const view = { ...limits };
const cursor = { time: null };
const narrow = window.matchMedia("(max-width: 640px)");

// Pixels left of both plots and across them: those of the timelines' canvas, which a scroll bar may
// make narrower than memory's. They are read once a frame, for each reading may lay out the page.
const plot = { left: 226, width: 800 };
const measurePlot = () => {
  plot.left = narrow.matches ? 92 : 226;
  plot.width = Math.max(byId("timelines").clientWidth - plot.left, 10);
};

// Whatever shows the view draws once a frame, however often it is asked to.
const painters = [];
let pending = 0;
const repaint = () => {
  if (!pending) pending = requestAnimationFrame(() => {
    pending = 0;
    measurePlot();
    for (const paint of painters) paint();
  });
};

window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  readTheme();
  repaint();
});

const show = (start, end) => {
  const longest = limits.end - limits.start;
  const span = Math.min(Math.max(end - start, Math.min(20, longest)), longest);
  const middle = (start + end) / 2;
  view.start = Math.min(Math.max(middle - span / 2, limits.start), limits.end - span);
  view.end = view.start + span;
  repaint();
};
const zoom = (factor, time = (view.start + view.end) / 2) =>
  show(time - (time - view.start) * factor, time + (view.end - time) * factor);
const pan = (units) => {
  const shift = Math.min(Math.max(units, limits.start - view.start), limits.end - view.end);
  show(view.start + shift, view.end + shift);
};
const showAll = () => show(limits.start, limits.end);

const xOf = (time) => plot.left + (time - view.start) / (view.end - view.start) * plot.width;
const timeAt = (x) => view.start + (x - plot.left) / plot.width * (view.end - view.start);

// Context of a canvas, sharp on any screen, cleared.
const fresh = (canvas, height) => {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = theme.paper;
  context.fillRect(0, 0, width, height);
  context.font = FONT;
  context.textBaseline = "middle";
  return context;
};

const roundStep = (least) => {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= least);
};

// Round times of the view: a pale line through the plot at each, its text at `textY`.
const drawTimes = (context, top, bottom, textY) => {
  const marks = Math.max(2, Math.floor(plot.width / (narrow.matches ? 75 : 110)));
  const step = roundStep((view.end - view.start) / marks);
  context.textAlign = "center";
  for (let mark = Math.ceil(view.start / step); mark * step <= view.end; mark++) {
    const x = Math.round(xOf(mark * step)) + 0.5;
    context.strokeStyle = theme.grid;
    context.beginPath();
    context.moveTo(x, top);
    context.lineTo(x, bottom);
    context.stroke();
    if (textY === null) continue;
    context.fillStyle = theme.soft;
    const text = axisText(mark * step, step);
    const half = context.measureText(text).width / 2;
    context.fillText(text, Math.min(Math.max(x, plot.left + half), plot.left + plot.width - half), textY);
  }
};

// Time of the step, as exactly as a pixel is.
const timeText = (units) => axisText(units, roundStep((view.end - view.start) / 1000));

// Text that fits into a width, its end left out where it does not.
const fitted = (context, text, width) => {
  if (context.measureText(text).width <= width) return text;
  let length = text.length;
  while (length > 1 && context.measureText(`${text.slice(0, length)}…`).width > width) length--;
  return `${text.slice(0, length)}…`;
};

// Text of a time on the axis: one unit for all marks, and no digit that the step does not need.
const axisText = (units, step) => {
  const largest = Math.max(Math.abs(view.start), Math.abs(view.end)) * unitNs;
  const [unit, scale] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]]
    .find(([, size]) => largest >= size) ?? ["ns", 1];
  const digits = Math.max(0, Math.ceil(-Math.log10(step * unitNs / scale) - 1e-9));
  return `${(units * unitNs / scale).toFixed(digits)} ${unit}`;
};

const drawLine = (context, x, top, bottom, colour, dashes = []) => {
  context.strokeStyle = colour;
  context.setLineDash(dashes);
  context.beginPath();
  context.moveTo(x, top);
  context.lineTo(x, bottom);
  context.stroke();
  context.setLineDash([]);
};

const inPlot = (context, height, action) => {
  context.save();
  context.beginPath();
  context.rect(plot.left, 0, plot.width, height);
  context.clip();
  action();
  context.restore();
};
