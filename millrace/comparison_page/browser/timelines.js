// Both timelines on one canvas: rows of bars, the firing under the pointer, and the marked one.

const timelines = byId("timelines"), scroller = byId("rows"), tip = byId("tip");
const ROW = 16, BAR = 12, GAP = 7, AXIS = 22;
const NAMES = ["predicted", "measured"];
let lines = []; // rows as they are drawn: top, row, and the rank whose row it is
let linesHeight = 0;
let hovered = null; // a firing: rank, stage, actor, firing, and the source that was pointed at
let marked = null;

// Queues of a rank, in the order of its rows.
const layOut = () => {
  const groups = new Map();
  for (const row of [...rows[1], ...rows[0]]) {
    if (!groups.has(row.rank)) groups.set(row.rank, row.stage);
  }
  const measuredRanks = new Set(rows[1].map((row) => row.rank));
  const entries = [];
  for (const [rank, stage] of [...groups].sort((a, b) => a[0] - b[0])) {
    // A simulated rank stands for others: it has a group only where it was measured too.
    if (measuredRanks.size && !measuredRanks.has(rank)) continue;
    const pair = [0, 1].map((source) => {
      const traced = tracedRank(source, rank, stage);
      return rows[source].filter((row) => row.rank === traced);
    });
    const queues = [...new Set(pair.flat().map((row) => row.queue))]
      .sort((a, b) => (b === "compute") - (a === "compute") || a.localeCompare(b));
    for (const queue of queues) {
      for (const source of [0, 1]) {
        const row = pair[source].find((candidate) => candidate.queue === queue);
        if (row) entries.push({ rank, stage, queue, source, row });
      }
    }
  }
  const byTrace = byId("order").value === "trace";
  if (byTrace) entries.sort((a, b) => a.source - b.source);
  let top = 4, before = null;
  for (const entry of entries) {
    if (before && (before.rank !== entry.rank || before.source !== entry.source && byTrace)) {
      top += GAP;
    }
    entry.first = !before || before.rank !== entry.rank || byTrace && before.source !== entry.source;
    entry.worded = entry.queue === "compute" || entry.first;
    entry.firstOfQueue = entry.first || byTrace || before.queue !== entry.queue;
    entry.top = top;
    top += ROW;
    before = entry;
  }
  lines = entries;
  linesHeight = top + 4;
  const height = Math.min(linesHeight + AXIS, Math.max(240, Math.round(0.62 * window.innerHeight)));
  scroller.style.height = `${height}px`;
  byId("rows-height").style.height = `${Math.max(0, linesHeight + AXIS - height)}px`;
  repaint();
};

const canvasHeight = () => scroller.clientHeight;

// Bars of the visible rows as a picture of one pixel's height a row, which is then drawn as high as
// bars are. A pixel has the colours of what covers it, by how much of it they cover.
const strips = document.createElement("canvas");
let cover = new Float32Array(0); // of a row: red, green, blue and coverage of every pixel
const SEAM = 0.7; // pixels of white between bars that are wide enough

const fillRow = (row, pixels, perUnit, ratio) => {
  const level = levelOf(row, 0.5 * ratio / perUnit);
  const { start, end, colour, count, density } = level;
  cover.fill(0);
  const add = (pixel, amount, hue) => {
    if (pixel < 0 || pixel >= pixels) return;
    const [red, green, blue] = HUES[hue];
    cover[4 * pixel] += amount * red;
    cover[4 * pixel + 1] += amount * green;
    cover[4 * pixel + 2] += amount * blue;
    cover[4 * pixel + 3] += amount;
  };
  for (let i = firstAbove(level.reach, view.start); i < count && start[i] < view.end; i++) {
    if (end[i] < view.start) continue;
    const from = Math.max((start[i] - view.start) * perUnit, -1);
    let to = Math.min((end[i] - view.start) * perUnit, pixels + 1);
    to = to - from > 3 * ratio ? to - SEAM * ratio : Math.max(to, from + 0.4);
    const first = Math.floor(from), last = Math.floor(to);
    const share = density ? density[i] : 1;
    if (first === last) {
      add(first, share * (to - from), colour[i]);
      continue;
    }
    add(first, share * (first + 1 - from), colour[i]);
    const [red, green, blue] = HUES[colour[i]];
    for (let p = 4 * Math.max(first + 1, 0); p < 4 * Math.min(last, pixels); p += 4) {
      cover[p] = share * red;
      cover[p + 1] = share * green;
      cover[p + 2] = share * blue;
      cover[p + 3] = share;
    }
    add(last, share * (to - last), colour[i]);
  }
  return level;
};

// Red, green and blue of the colours.
const HUES = data.colours.map((hue) => [1, 3, 5].map((i) => parseInt(hue.slice(i, i + 2), 16)));

const drawBars = (context, visible, offset) => {
  const ratio = window.devicePixelRatio || 1;
  const pixels = Math.round(plot.width * ratio);
  const perUnit = pixels / (view.end - view.start);
  if (!visible.length) return;
  if (cover.length !== 4 * pixels) cover = new Float32Array(4 * pixels);
  if (strips.width !== pixels || strips.height < visible.length) {
    strips.width = pixels;
    strips.height = Math.max(strips.height, visible.length);
  }
  const strip = strips.getContext("2d", { willReadFrequently: true });
  const image = strip.createImageData(pixels, visible.length);
  const levels = visible.map((line, position) => {
    const level = fillRow(line.row, pixels, perUnit, ratio);
    for (let p = 0, to = 4 * pixels * position; p < 4 * pixels; p += 4, to += 4) {
      const share = cover[p + 3];
      if (!share) continue;
      image.data[to] = cover[p] / share;
      image.data[to + 1] = cover[p + 1] / share;
      image.data[to + 2] = cover[p + 2] / share;
      image.data[to + 3] = 255 * share;
    }
    return level;
  });
  strip.putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  visible.forEach((line, position) => {
    const top = line.top - offset + 2;
    context.drawImage(strips, 0, position, pixels, 1, plot.left, top, plot.width, BAR);
    drawNames(context, line.row, levels[position], top);
  });
};

const drawNames = (context, row, level, top) => {
  const perUnit = plot.width / (view.end - view.start);
  const { start, end, colour, count } = level;
  for (let i = firstAbove(level.reach, view.start); i < count && start[i] < view.end; i++) {
    if ((end[i] - start[i]) * perUnit < 48) continue;
    const from = Math.max(start[i], view.start);
    const width = (Math.min(end[i], view.end) - from) * perUnit;
    const bar = level.single ? level.single[i] : i;
    if (width < 48 || bar < 0) continue;
    drawName(context, actors.name[row.actor[bar]], xOf(from), top, width, colour[i]);
  }
};

// Name inside a bar, where there is room for the end of it: that says most.
const drawName = (context, name, x, top, width, hue) => {
  const room = Math.floor((width - 8) / 5.6);
  const text = name.length > room ? `…${name.slice(name.length - room + 1)}` : name;
  if (room < 6) return;
  context.fillStyle = data.inks[hue];
  context.textAlign = "left";
  context.font = "10px system-ui, sans-serif";
  context.save();
  context.beginPath();
  context.rect(x, top, width - 2, BAR);
  context.clip();
  context.fillText(text, x + 4, top + BAR / 2 + 0.5);
  context.restore();
  context.font = FONT;
};

// Rank and queue stand once beside their rows; a stripe says which trace a row is of, and in the
// first queue of a rank a word too.
const drawLabel = (context, line, top) => {
  const middle = top + ROW / 2;
  const small = narrow.matches;
  const queueX = small ? 22 : 54;
  context.textAlign = "left";
  if (line.first) {
    context.fillStyle = theme.ink;
    context.fillText(small ? `${line.rank}` : `rank ${line.rank}`, 2, middle);
  }
  if (line.firstOfQueue) {
    context.fillStyle = theme.soft;
    context.fillText(fitted(context, line.queue, plot.left - queueX - (small ? 12 : 66)), queueX, middle);
  }
  context.fillStyle = line.source ? theme.measured : theme.predicted;
  context.fillRect(plot.left - 4, top + 1, 3, ROW - 2);
  if (!line.worded || small) return;
  context.textAlign = "right";
  context.fillText(NAMES[line.source], plot.left - 9, middle);
};

const placeOf = (source, firing) => {
  const rank = tracedRank(source, firing.rank, firing.stage);
  return rank === null
    ? undefined
    : placesOf(source, rank).get(firingKey(firing.actor, firing.firing));
};

// Bars of each row on a critical path: their starts and ends, in order.
const pathBars = new Map();
data.paths.forEach((path, source) => path.actor.forEach((actor, i) => {
  const place = placesOf(source, path.rank[i]).get(firingKey(actor, path.firing[i]));
  if (!place) return;
  if (!pathBars.has(place[0])) pathBars.set(place[0], []);
  pathBars.get(place[0]).push([place[0].start[place[1]], place[0].end[place[1]]]);
}));
for (const bars of pathBars.values()) bars.sort((a, b) => a[0] - b[0]);

const drawPath = (context, row, top) => {
  const bars = pathBars.get(row);
  if (!bars || !byId("paths")?.checked) return;
  context.fillStyle = theme.ink;
  let until = -Infinity; // pixels that are drawn
  for (const [start, end] of bars) {
    if (end < view.start || start > view.end) continue;
    const x = Math.max(xOf(start), until), to = Math.max(xOf(end), x);
    if (to - until < 0.5) continue;
    context.fillRect(x, top + BAR + 0.5, Math.max(to - x, 0.5), 2);
    until = to;
  }
};

const drawOutline = (context, firing, offset, colour, thickness) => {
  for (const line of lines) {
    if (line.rank !== firing.rank) continue;
    const place = placeOf(line.source, firing);
    if (!place || place[0] !== line.row) continue;
    const [row, i] = place;
    const x = xOf(row.start[i]), end = xOf(row.end[i]);
    if (end < plot.left - 3 || x > plot.left + plot.width) continue;
    context.strokeStyle = colour;
    context.lineWidth = thickness;
    const width = Math.max(end - x - 0.7, 2);
    context.strokeRect(x - 0.5, line.top - offset + 1.5, width + 1, BAR + 1);
    context.lineWidth = 1;
  }
};

const drawTimelines = () => {
  const height = canvasHeight();
  const context = fresh(timelines, height);
  const offset = scroller.scrollTop - AXIS;
  const width = plot.left + plot.width;
  const visible = lines.filter((line) => line.top - offset > -ROW && line.top - offset < height);
  for (const line of visible) {
    if (line.source) {
      context.fillStyle = theme.card;
      context.fillRect(plot.left, line.top - offset, width - plot.left, ROW);
    }
  }
  inPlot(context, height, () => {
    drawTimes(context, AXIS, height, null);
    drawBars(context, visible, offset);
    for (const line of visible) drawPath(context, line.row, line.top - offset + 2);
    data.timelines.forEach((timeline, source) => {
      const x = Math.round(xOf(timeline.duration)) + 0.5;
      drawLine(context, x, AXIS, height, source ? theme.measured : theme.predicted, [4, 3]);
    });
    if (hovered) drawOutline(context, hovered, offset, theme.ink, 1.5);
    if (marked) drawOutline(context, marked, offset, theme.mark, 2.5);
  });
  context.fillStyle = theme.paper;
  context.fillRect(0, AXIS, plot.left, height);
  for (const line of visible) drawLabel(context, line, line.top - offset);
  drawAxis(context, width);
  drawCursor(context, timelines, AXIS, height);
  byId("range").textContent = view.end - view.start < limits.end - limits.start
    ? `${timeText(view.start)} to ${timeText(view.end)}`
    : "";
};
painters.push(drawTimelines);

const drawAxis = (context, width) => {
  context.fillStyle = theme.paper;
  context.fillRect(0, 0, width, AXIS);
  inPlot(context, AXIS, () => drawTimes(context, AXIS - 5, AXIS, 9));
  drawLine(context, 0, AXIS - 0.5, AXIS - 0.5, theme.grid);
  context.strokeStyle = theme.grid;
  context.beginPath();
  context.moveTo(plot.left, AXIS - 0.5);
  context.lineTo(width, AXIS - 0.5);
  context.stroke();
};

// The pointer's time, on timelines and memory alike; its text stands on the timelines' axis.
const drawCursor = (context, canvas, top, height) => {
  if (cursor.time === null || cursor.time < view.start || cursor.time > view.end) return;
  const x = Math.round(xOf(cursor.time)) + 0.5;
  drawLine(context, x, top, height, theme.rule);
  if (canvas !== timelines) return;
  const text = timeText(cursor.time);
  const width = context.measureText(text).width + 10;
  const from = Math.min(Math.max(x - width / 2, plot.left), plot.left + plot.width - width);
  context.fillStyle = theme.soft;
  context.fillRect(from, 2, width, 15);
  context.fillStyle = theme.paper;
  context.textAlign = "center";
  context.fillText(text, from + width / 2, 10);
};

// Bar of a row at a time; of several the one that began last, else the nearest within `reach`.
const barAt = (row, time, reach) => {
  let best = -1, distance = Infinity;
  for (let i = firstAbove(row.reach, time - reach); i < row.count; i++) {
    if (row.start[i] > time + reach) break;
    const away = Math.max(row.start[i] - time, time - row.end[i], 0);
    if (away <= distance && away <= reach) [best, distance] = [i, away];
  }
  return best;
};

const firingAt = (x, y) => {
  const position = y - AXIS + scroller.scrollTop;
  const line = lines.find((row) => position >= row.top && position < row.top + ROW);
  if (!line || x < plot.left || y < AXIS) return null;
  const reach = 3 * (view.end - view.start) / plot.width;
  const i = barAt(line.row, timeAt(x), reach);
  return i < 0 ? null : {
    rank: line.rank, stage: line.stage, source: line.source,
    actor: line.row.actor[i], firing: line.row.firing[i],
  };
};

const timesOf = (firing) => [0, 1].map((source) => {
  const place = placeOf(source, firing);
  return place && { start: place[0].start[place[1]], length: place[0].end[place[1]] - place[0].start[place[1]], queue: place[0].queue };
});

// What is known of a firing, as lines of text: the first is its name.
const firingText = (firing) => {
  const times = timesOf(firing), number = firing.actor;
  const kind = actors.kinds[actors.kind[number]];
  const phase = actors.phases[actors.phase[number]].replaceAll("_", " ");
  const count = actors.firings[number];
  const where = [`rank ${firing.rank}`, (times[0] ?? times[1]).queue];
  if (count > 1) where.push(`microbatch ${firing.firing + 1} of ${count}`);
  const texts = [actors.name[number], `${kind} · ${phase}`, where.join(" · ")];
  times.forEach((time, source) => texts.push(time
    ? `${NAMES[source]} ${unitsText(time.length)}, from ${timeText(time.start)}`
    : `${NAMES[source]}: not in this step`));
  if (times[0] && times[1] && times[0].length && times[1].length) {
    texts.push(`measured ${percent(times[1].length / times[0].length)}, ` +
      `begins ${unitsText(Math.abs(times[1].start - times[0].start))} ` +
      `${times[1].start < times[0].start ? "earlier" : "later"}`);
  }
  return texts;
};

const showTip = (texts, x, y) => {
  tip.replaceChildren(...texts.map((text, i) => {
    const line = document.createElement("div");
    const piece = document.createElement(i ? "span" : "b");
    piece.textContent = text;
    line.append(piece);
    return line;
  }));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, x + 16 + box.width > window.innerWidth ? x - 16 - box.width : x + 16)}px`;
  tip.style.top = `${y + 18 + box.height > window.innerHeight ? y - 14 - box.height : y + 18}px`;
};
const hideTip = () => { tip.hidden = true; };

const markListeners = [];
const markFiring = (firing) => {
  marked = firing;
  byId("mark").textContent = firing ? firingText(firing).join(" · ") : "";
  for (const listener of markListeners) listener(firing);
  repaint();
};

// Brings a firing into sight, with as much time around it as lets it be seen.
const revealFiring = (firing) => {
  const times = timesOf(firing).filter(Boolean);
  if (!times.length) return;
  const start = Math.min(...times.map((time) => time.start));
  const end = Math.max(...times.map((time) => time.start + time.length));
  const span = view.end - view.start;
  if (start < view.start || end > view.end || (end - start) / span < 0.004) {
    const room = Math.max(4 * (end - start), 20);
    show(start - room, end + room);
  }
  const line = lines.find((row) => row.rank === firing.rank);
  if (line && (line.top < scroller.scrollTop || line.top > scroller.scrollTop + canvasHeight() - 3 * ROW - AXIS)) {
    scroller.scrollTop = line.top - ROW;
  }
};

// The firing before or after the marked one on its row, for those who use no pointer.
const stepMark = (by) => {
  if (!marked) {
    const line = lines[0];
    if (!line) return;
    const i = Math.min(firstAbove(line.row.reach, view.start), line.row.count - 1);
    if (i >= 0) markFiring({ rank: line.rank, stage: line.stage, source: line.source, actor: line.row.actor[i], firing: line.row.firing[i] });
    return;
  }
  const [row, i] = placeOf(marked.source, marked) ?? [];
  if (!row || i + by < 0 || i + by >= row.count) return;
  const next = { ...marked, actor: row.actor[i + by], firing: row.firing[i + by] };
  markFiring(next);
  revealFiring(next);
};

byId("order").addEventListener("change", layOut);
byId("reset").addEventListener("click", showAll);
byId("paths")?.addEventListener("change", repaint);
scroller.addEventListener("scroll", repaint);
