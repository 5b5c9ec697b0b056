// Memory of every rank over the view: the rank in front is drawn strongly, the others pale.

const memoryCanvas = byId("memory");
const MEMORY_HEIGHT = 190, MEMORY_TOP = 8, MEMORY_BOTTOM = 6;
const curves = data.memory.map((list) => list.map((curve) => ({
  rank: curve.rank,
  stage: curve.stage,
  time: running(curve.gap),
  kib: curve.kib,
})));
const memoryMost = Math.max(1, ...curves.flat().map((curve) => curve.kib.reduce((a, b) => Math.max(a, b), 0)));

// Value that lasts at a time, in KiB.
const memoryAt = (curve, time) => curve.kib[Math.max(firstAbove(curve.time, time) - 1, 0)];

const curveOf = (source, rank) => {
  const stage = (curves[1].find((curve) => curve.rank === rank) ?? curves[0].find((curve) => curve.rank === rank))?.stage;
  return curves[source].find((curve) => curve.rank === rank) ??
    curves[source].find((curve) => curve.stage === stage);
};

const memoryY = (kib) =>
  MEMORY_HEIGHT - MEMORY_BOTTOM - (MEMORY_HEIGHT - MEMORY_TOP - MEMORY_BOTTOM) * kib / (1.06 * memoryMost);

// A step curve; of all values in a pixel the largest is drawn.
const drawCurve = (context, curve, end) => {
  const { time, kib } = curve;
  const last = Math.min(view.end, end);
  let i = Math.max(firstAbove(time, view.start) - 1, 0);
  let x = xOf(memoryCanvas, Math.max(view.start, time[i])), most = kib[i];
  context.beginPath();
  context.moveTo(x, memoryY(most));
  for (i++; i < time.length && time[i] < last; i++) {
    const next = xOf(memoryCanvas, time[i]);
    if (next - x < 0.7) {
      most = Math.max(most, kib[i]);
      if (i + 1 < time.length) continue;
    }
    context.lineTo(x, memoryY(most));
    context.lineTo(next, memoryY(most));
    context.lineTo(next, memoryY(kib[i]));
    [x, most] = [next, kib[i]];
  }
  context.lineTo(xOf(memoryCanvas, last), memoryY(most));
  context.stroke();
};

const drawMemory = () => {
  const context = fresh(memoryCanvas, MEMORY_HEIGHT);
  context.textAlign = "right";
  const step = 2 ** Math.ceil(Math.log2(memoryMost / 5));
  for (let kib = 0; kib <= 1.06 * memoryMost; kib += step) {
    const y = Math.round(memoryY(kib)) + 0.5;
    context.strokeStyle = "#ececec";
    context.beginPath();
    context.moveTo(left(), y);
    context.lineTo(memoryCanvas.clientWidth, y);
    context.stroke();
    context.fillStyle = GREY;
    context.fillText(kib ? bytes(kib).replace(".00", "") : "0", left() - 6, y);
  }
  const front = Number(byId("memory-rank").value);
  const ends = data.timelines.map((timeline) => timeline.duration);
  inPlot(memoryCanvas, () => {
    drawTimes(context, memoryCanvas, 0, MEMORY_HEIGHT, null);
    for (const strong of [false, true]) {
      curves.forEach((list, source) => {
        context.strokeStyle = source ? MEASURED : PREDICTED;
        context.setLineDash(source ? [] : [5, 3]);
        context.globalAlpha = strong ? 1 : 0.16;
        context.lineWidth = strong ? 1.6 : 1;
        for (const curve of list) {
          if ((curve === curveOf(source, front)) === strong) drawCurve(context, curve, ends[source]);
        }
      });
    }
    context.globalAlpha = 1;
    context.lineWidth = 1;
    context.setLineDash([]);
  }, context, MEMORY_HEIGHT);
  drawCursor(context, memoryCanvas, 0, MEMORY_HEIGHT);
};

// Both values of the rank in front at a time, and that time.
const memoryText = (time) => {
  const front = Number(byId("memory-rank").value);
  const texts = [`rank ${front} at ${timeText(time)}`];
  [0, 1].forEach((source) => {
    const curve = curveOf(source, front);
    const there = curve && time >= 0 && time <= data.timelines[source].duration;
    texts.push(`${NAMES[source]} ${there ? bytes(memoryAt(curve, time)) : "–"}`);
  });
  return texts;
};

if (memoryCanvas) {
  painters.push(drawMemory);
  byId("memory-rank").addEventListener("change", repaint);
  const most = (curve) => curve.kib.reduce((a, b) => Math.max(a, b), 0);
  const fullest = (curves[1].length ? curves[1] : curves[0])
    .reduce((a, b) => (most(b) > most(a) ? b : a));
  byId("memory-rank").value = fullest.rank;
  markListeners.push((firing) => {
    if (firing && curveOf(1, firing.rank)) byId("memory-rank").value = firing.rank;
  });
}
