// Scatter of the costs of actors: predicted against measured median of a firing, logarithmic.

const scatter = byId("scatter");
const COLOURED = 5;
const PAD = { left: 62, right: 10, top: 8, bottom: 40 };
const BAND = 0.2;

const points = [];
actors.name.forEach((name, number) => {
  const predicted = actors.predicted_median_ns[number], measured = actors.measured_median_ns[number];
  if (predicted > 0 && measured > 0) points.push({ number, predicted, measured });
});
points.sort((a, b) => actors.measured_ns[b.number] - actors.measured_ns[a.number]);

// The kinds that take most of the step have colours of their own.
const kindTimes = new Map();
for (const { number } of points) {
  const kind = actors.kind[number];
  kindTimes.set(kind, (kindTimes.get(kind) ?? 0) + actors.measured_ns[number]);
}
const kindsByTime = [...kindTimes].sort((a, b) => b[1] - a[1]).map(([kind]) => kind);
const lineOf = new Map(kindsByTime.slice(0, COLOURED).map((kind, place) => [kind, place]));

const values = points.flatMap((point) => [point.predicted, point.measured]);
const scale = values.length
  ? { low: Math.log10(values.reduce((a, b) => Math.min(a, b))) - 0.1, high: Math.log10(values.reduce((a, b) => Math.max(a, b))) + 0.1 }
  : { low: 0, high: 1 };
const longest = points.reduce((most, point) => Math.max(most, actors.measured_ns[point.number]), 1);
const radius = ({ number }) => 2 + 7 * Math.sqrt(actors.measured_ns[number] / longest);
let hoveredPoint = null, markedActor = null;

const side = () => Math.min(scatter.clientWidth, 460);
const scatterX = (log) => PAD.left + (log - scale.low) / (scale.high - scale.low) * (side() - PAD.left - PAD.right);
const scatterY = (log) => side() - PAD.bottom - (log - scale.low) / (scale.high - scale.low) * (side() - PAD.top - PAD.bottom);

const drawScatterAxes = (context) => {
  const size = side();
  const marks = [];
  for (let power = Math.floor(scale.low); power <= scale.high; power++) {
    for (const digit of scale.high - scale.low < 1.5 ? [1, 2, 5] : [1]) marks.push(power + Math.log10(digit));
  }
  for (const mark of marks) {
    if (mark < scale.low || mark > scale.high) continue;
    const x = Math.round(scatterX(mark)) + 0.5, y = Math.round(scatterY(mark)) + 0.5;
    drawLine(context, x, PAD.top, size - PAD.bottom, theme.grid);
    context.beginPath();
    context.moveTo(PAD.left, y);
    context.lineTo(size - PAD.right, y);
    context.stroke();
    context.fillStyle = theme.soft;
    const text = seconds(10 ** mark / 1e9).replace(/\.0+ /, " ");
    context.textAlign = "center";
    context.fillText(text, x, size - PAD.bottom + 11);
    context.textAlign = "right";
    context.fillText(text, PAD.left - 6, y);
  }
  context.textAlign = "center";
  context.fillStyle = theme.ink;
  context.fillText("predicted", (PAD.left + size - PAD.right) / 2, size - 10);
  context.save();
  context.translate(9, (PAD.top + size - PAD.bottom) / 2);
  context.rotate(-Math.PI / 2);
  context.fillText("measured", 0, 0);
  context.restore();
};

const drawDiagonal = (context) => {
  const up = Math.log10(1 + BAND), down = Math.log10(1 - BAND);
  context.fillStyle = theme.card;
  context.beginPath();
  context.moveTo(scatterX(scale.low), scatterY(scale.low + down));
  context.lineTo(scatterX(scale.high), scatterY(scale.high + down));
  context.lineTo(scatterX(scale.high), scatterY(scale.high + up));
  context.lineTo(scatterX(scale.low), scatterY(scale.low + up));
  context.fill();
  context.strokeStyle = theme.rule;
  context.beginPath();
  context.moveTo(scatterX(scale.low), scatterY(scale.low));
  context.lineTo(scatterX(scale.high), scatterY(scale.high));
  context.stroke();
};

const drawPoint = (context, point, outline) => {
  context.beginPath();
  context.arc(scatterX(Math.log10(point.predicted)), scatterY(Math.log10(point.measured)), radius(point), 0, 2 * Math.PI);
  if (outline) {
    context.strokeStyle = outline;
    context.lineWidth = 2;
    context.stroke();
    context.lineWidth = 1;
  } else {
    context.fillStyle = theme.lines[lineOf.get(actors.kind[point.number])] ?? theme.rule;
    context.fill();
  }
};

// All points, drawn once for a filter and a size: what is pointed at only adds a ring.
const layer = document.createElement("canvas");
let layerStale = true;

const drawPoints = (size) => {
  const ratio = window.devicePixelRatio || 1;
  layer.width = layer.height = Math.round(size * ratio);
  const context = layer.getContext("2d");
  context.scale(ratio, ratio);
  context.globalAlpha = 0.7;
  for (const point of points) {
    if (shownActors === null || shownActors.has(point.number)) drawPoint(context, point);
  }
  layerStale = false;
};

const drawScatter = () => {
  const size = side();
  const context = fresh(scatter, size);
  context.save();
  context.beginPath();
  context.rect(PAD.left, PAD.top, size - PAD.left - PAD.right, size - PAD.top - PAD.bottom);
  context.clip();
  drawDiagonal(context);
  context.restore();
  drawScatterAxes(context);
  if (layerStale) drawPoints(size);
  context.drawImage(layer, 0, 0, size, size);
  for (const point of points) {
    if (point.number === markedActor) drawPoint(context, point, theme.mark);
    if (point === hoveredPoint) drawPoint(context, point, theme.ink);
  }
};
let shownActors = null; // numbers of the actors that the filter lets through; null: all
let scatterPending = 0;
const repaintScatter = () => {
  if (!scatterPending) scatterPending = requestAnimationFrame(() => {
    scatterPending = 0;
    drawScatter();
  });
};

const pointAt = (x, y) => {
  let best = null, distance = 12;
  for (const point of points) {
    if (shownActors !== null && !shownActors.has(point.number)) continue;
    const away = Math.hypot(scatterX(Math.log10(point.predicted)) - x, scatterY(Math.log10(point.measured)) - y);
    const near = Math.max(away - radius(point), 0);
    if (near < distance) [best, distance] = [point, near];
  }
  return best;
};

const pointText = ({ number, predicted, measured }) => [
  actors.name[number],
  `${actors.kinds[actors.kind[number]]} · ${actors.phases[actors.phase[number]].replaceAll("_", " ")}`,
  `a firing: predicted ${nsText(predicted)}, measured ${nsText(measured)} (${percent(measured / predicted)})`,
  `a step: predicted ${nsText(actors.predicted_ns[number])}, measured ${nsText(actors.measured_ns[number])}`,
];

const scatterPlace = (event) => {
  const box = scatter.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};
scatter.addEventListener("pointermove", (event) => {
  hoveredPoint = pointAt(...scatterPlace(event));
  if (hoveredPoint) showTip(pointText(hoveredPoint), event.clientX, event.clientY);
  else hideTip();
  repaintScatter();
});
scatter.addEventListener("pointerleave", () => {
  hoveredPoint = null;
  hideTip();
  repaintScatter();
});
scatter.addEventListener("click", (event) => {
  const point = pointAt(...scatterPlace(event));
  byId("point").textContent = point ? pointText(point).join(" · ") : "";
  setFilter(point ? actors.name[point.number] : "");
});
// Arrow keys go through the points in the order of the time they take of a step.
scatter.addEventListener("keydown", (event) => {
  const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!by || !points.length) return;
  event.preventDefault();
  const next = points[Math.min(Math.max(points.indexOf(hoveredPoint) + by, 0), points.length - 1)];
  hoveredPoint = next;
  byId("point").textContent = pointText(next).join(" · ");
  repaintScatter();
});
markListeners.push((firing) => {
  markedActor = firing ? firing.actor : null;
  repaintScatter();
});

const kindButton = (text, colour, filter) => {
  const button = document.createElement("button");
  const dot = document.createElement("i");
  button.type = "button";
  dot.style.background = colour;
  button.append(dot, text.length > 42 ? `${text.slice(0, 40)}…` : text);
  button.title = text;
  if (filter !== null) button.addEventListener("click", () => setFilter(byId("filter").value === filter ? "" : filter));
  return button;
};
byId("kinds").append(...kindsByTime.slice(0, COLOURED).map((kind) =>
  kindButton(actors.kinds[kind], `var(--line-${lineOf.get(kind)})`, `kind:${actors.kinds[kind]}`)));
if (kindsByTime.length > COLOURED) {
  byId("kinds").append(kindButton(`${kindsByTime.length - COLOURED} other kinds`, "var(--rule)", null));
}
