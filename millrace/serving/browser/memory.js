// Memory of one device over a step, stacked by kind, with the limit; it shares the schedule's time.

import { bytes, hideTip, make, showTip } from "./formats.js";
import { axisText, colourOf, LEFT, TimeCanvas } from "./timeview.js";

const HEIGHT = 190, TOP = 14, BOTTOM = 8;

export class MemoryChart {
  constructor(view, colours, name) {
    this.view = view;
    this.colours = colours;
    this.canvas = make("canvas", {
      class: "chart", tabindex: "0", role: "img",
      "aria-label": `Memory of ${name} over a step, by kind; arrow keys pan, + and − zoom`,
    });
    this.select = make("select", { "aria-label": `Stage of ${name} whose memory is drawn`, onchange: () => view.repaint() });
    this.chart = new TimeCanvas(view, this.canvas);
    this.stages = [];
    this.canvas.addEventListener("hover", ({ detail }) => this.hover(detail));
    this.canvas.addEventListener("pointerleave", hideTip);
    this.paint = () => this.draw();
    view.painters.add(this.paint);
  }

  end() {
    this.view.painters.delete(this.paint);
  }

  set(step, roomBytes) {
    this.duration = step.step_time_ns;
    this.room = roomBytes;
    this.stages = step.memory.map((stage) => {
      const rows = Object.entries(stage.bytes_by_kind);
      const totals = stage.times_ns.map((_, i) => rows.reduce((sum, [, row]) => sum + row[i], 0));
      return { ...stage, rows, totals, peak: Math.max(...totals) };
    });
    const before = this.select.value;
    const fullest = this.stages.reduce((a, b) => (b.peak > a.peak ? b : a));
    this.select.replaceChildren(...this.stages.map((stage, i) =>
      make("option", { value: i }, `stage ${stage.stage}, up to ${bytes(stage.peak)}`)));
    this.select.value = before && Number(before) < this.stages.length ? before : this.stages.indexOf(fullest);
    this.view.repaint();
  }

  get shown() {
    return this.stages[Number(this.select.value)];
  }

  draw() {
    if (!this.stages.length || !this.canvas.clientWidth) return;
    const { chart, shown } = this;
    const context = chart.fresh(HEIGHT);
    const limit = shown.limit_bytes;
    const most = Math.max(...this.stages.map(({ peak }) => peak));
    const scale = 1.08 * (most >= 0.3 * limit ? Math.max(limit, most) : 1.15 * most);
    const y = (size) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * size / scale;
    const mark = 2 ** Math.ceil(Math.log2(scale / 5));
    context.textAlign = "right";
    for (let size = 0; size <= scale; size += mark) {
      context.strokeStyle = colourOf("line");
      context.beginPath();
      context.moveTo(LEFT, Math.round(y(size)) + 0.5);
      context.lineTo(LEFT + chart.width, Math.round(y(size)) + 0.5);
      context.stroke();
      context.fillStyle = colourOf("muted");
      context.fillText(size ? bytes(size).replace(/\.0+ /, " ") : "0", LEFT - 8, y(size));
    }
    chart.inPlot(context, HEIGHT, () => {
      chart.drawTimes(context, TOP, HEIGHT - BOTTOM, null);
      this.drawAreas(context, y);
      this.drawLimit(context, y, limit, scale, "device", colourOf("bad"));
      if (this.room < 0.995 * limit) this.drawLimit(context, y, this.room, scale, "may be used", colourOf("text"));
    });
  }

  drawAreas(context, y) {
    const { shown, chart } = this;
    const times = shown.times_ns, xs = [...times.map((ns) => chart.x(ns)), chart.x(this.duration)];
    let base = times.map(() => 0);
    for (const [kind, row] of shown.rows) {
      const upper = base.map((size, i) => size + row[i]);
      context.fillStyle = this.colours[kind];
      context.beginPath();
      for (let i = 0; i < times.length; i++) {
        context.lineTo(xs[i], y(upper[i]));
        context.lineTo(xs[i + 1], y(upper[i]));
      }
      for (let i = times.length - 1; i >= 0; i--) {
        context.lineTo(xs[i + 1], y(base[i]));
        context.lineTo(xs[i], y(base[i]));
      }
      context.fill();
      base = upper;
    }
  }

  drawLimit(context, y, size, scale, word, colour) {
    if (size > scale) return;
    const at = Math.round(y(size)) + 0.5;
    context.strokeStyle = colour;
    context.setLineDash([5, 3]);
    context.beginPath();
    context.moveTo(LEFT, at);
    context.lineTo(LEFT + this.chart.width, at);
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = colour;
    context.textAlign = "right";
    context.fillText(`${word} ${bytes(size)}`, LEFT + this.chart.width - 4, at - 7);
  }

  hover({ x, event }) {
    const time = this.chart.time(x);
    if (x < LEFT || time > this.duration || !this.stages.length) return hideTip();
    const { shown } = this;
    let i = shown.times_ns.findIndex((ns) => ns > time);
    i = (i < 0 ? shown.times_ns.length : i) - 1;
    if (i < 0) return hideTip();
    const step = 10 ** Math.floor(Math.log10(Math.max((this.view.end - this.view.start) / 1000, 1)));
    const lines = [`${bytes(shown.totals[i])} at ${axisText(time, step, this.view.end)}`];
    for (const [kind, row] of [...shown.rows].reverse()) if (row[i]) lines.push(`${kind} ${bytes(row[i])}`);
    showTip(lines, event.clientX, event.clientY);
  }
}
