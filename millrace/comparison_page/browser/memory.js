// Memory of every rank over the view: the rank in front is drawn strongly, the others pale.

const memoryCanvas = byId("memory");
const MEMORY_HEIGHT = 190, MEMORY_TOP = 8, MEMORY_BOTTOM = 6;
const memoryMost = Math.max(1, ...data.memory.flat().map((curve) => curve.kib.reduce((a, b) => Math.max(a, b), 0)));
const memoryY = (kib) =>
  MEMORY_HEIGHT - MEMORY_BOTTOM - (MEMORY_HEIGHT - MEMORY_TOP - MEMORY_BOTTOM) * kib / (1.06 * memoryMost);
const curves = data.memory.map((list) => list.map((curve) => ({
  rank: curve.rank,
  stage: curve.stage,
  time: running(curve.gap),
  kib: curve.kib,
  y: Float32Array.from(curve.kib, (kib) => memoryY(kib)),
})));

// Value that lasts at a time, in KiB.
const memoryAt = (curve, time) => curve.kib[Math.max(firstAbove(curve.time, time) - 1, 0)];

const curveOf = (source, rank) => {
  const stage = (curves[1].find((curve) => curve.rank === rank) ?? curves[0].find((curve) => curve.rank === rank))?.stage;
  return curves[source].find((curve) => curve.rank === rank) ??
    curves[source].find((curve) => curve.stage === stage);
};

// A step curve; of all values in a pixel the largest is drawn.
const drawCurve = (context, curve, end) => {
  const { time, kib } = curve;
  const last = Math.min(view.end, end);
  let i = Math.max(firstAbove(time, view.start) - 1, 0);
  let x = xOf(Math.max(view.start, time[i])), most = kib[i];
  context.beginPath();
  context.moveTo(x, memoryY(most));
  for (i++; i < time.length && time[i] < last; i++) {
    const next = xOf(time[i]);
    if (next - x < 0.7) {
      most = Math.max(most, kib[i]);
      if (i + 1 < time.length) continue;
    }
    context.lineTo(x, memoryY(most));
    context.lineTo(next, memoryY(most));
    context.lineTo(next, memoryY(kib[i]));
    [x, most] = [next, kib[i]];
  }
  context.lineTo(xOf(last), memoryY(most));
  context.stroke();
};

// Curves of the ranks behind, as pixels: in every column the stretch between a curve's least and
// its largest value there. Strokes of a hundred curves would take longer than a frame.
const behind = document.createElement("canvas");

const drawBehind = (context, front) => {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.round(plot.width * ratio), height = Math.round(MEMORY_HEIGHT * ratio);
  const perUnit = width / (view.end - view.start);
  if (behind.width !== width || behind.height !== height) [behind.width, behind.height] = [width, height];
  const plane = behind.getContext("2d", { willReadFrequently: true });
  const image = plane.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  curves.forEach((list, source) => {
    const ink = source ? 0x40000000 : 0x60b27200; // alpha, blue, green, red
    const end = Math.min(view.end, data.timelines[source].duration);
    for (const curve of list) {
      if (curve === curveOf(source, front)) continue;
      const { time, y } = curve;
      let i = Math.max(firstAbove(time, view.start) - 1, 0);
      let before = Math.round(y[i] * ratio);
      const last = Math.min(Math.floor((end - view.start) * perUnit), width);
      for (let x = Math.max(0, Math.floor((time[0] - view.start) * perUnit)); x < last; x++) {
        let low = before, high = before;
        const until = view.start + (x + 1) / perUnit;
        while (i + 1 < time.length && time[i + 1] < until) {
          before = Math.round(y[++i] * ratio);
          low = Math.min(low, before);
          high = Math.max(high, before);
        }
        for (let row = Math.max(low, 0); row <= Math.min(high, height - 1); row++) pixels[row * width + x] = ink;
      }
    }
  });
  plane.putImageData(image, 0, 0);
  context.drawImage(behind, plot.left, 0, plot.width, MEMORY_HEIGHT);
};

const drawMemory = () => {
  const context = fresh(memoryCanvas, MEMORY_HEIGHT);
  context.textAlign = "right";
  const step = 2 ** Math.ceil(Math.log2(memoryMost / 5));
  for (let kib = 0; kib <= 1.06 * memoryMost; kib += step) {
    const y = Math.round(memoryY(kib)) + 0.5;
    context.strokeStyle = theme.grid;
    context.beginPath();
    context.moveTo(plot.left, y);
    context.lineTo(plot.left + plot.width, y);
    context.stroke();
    context.fillStyle = theme.soft;
    context.fillText(kib ? bytes(kib).replace(".00", "") : "0", plot.left - 6, y);
  }
  const front = Number(byId("memory-rank").value);
  const ends = data.timelines.map((timeline) => timeline.duration);
  inPlot(context, MEMORY_HEIGHT, () => {
    drawTimes(context, 0, MEMORY_HEIGHT, null);
    drawBehind(context, front);
    context.lineWidth = 1.6;
    [0, 1].forEach((source) => {
      const curve = curveOf(source, front);
      context.strokeStyle = source ? theme.measured : theme.predicted;
      context.setLineDash(source ? [] : [5, 3]);
      if (curve) drawCurve(context, curve, ends[source]);
    });
    context.lineWidth = 1;
    context.setLineDash([]);
  });
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
