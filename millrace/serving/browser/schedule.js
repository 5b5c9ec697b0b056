// The schedule of one step as a Gantt chart: what a rank of each stage computes and moves.

import { byId, hideTip, inkOn, make, seconds, showTip } from "./formats.js";
import { axisText, colourOf, LEFT, TimeCanvas } from "./timeview.js";

const AXIS = 22, GAP = 6;
const BAR = { computes: 20, moves: 9 };

export class ScheduleChart {
  constructor(view, colours, name) {
    this.colours = colours;
    this.view = view;
    this.canvas = make("canvas", {
      class: "chart", tabindex: "0", role: "img",
      "aria-label": `Schedule of ${name} as a Gantt chart; arrow keys pan, + and − zoom, 0 shows all, [ and ] step through the bars`,
    });
    this.chart = new TimeCanvas(view, this.canvas);
    this.lines = [];
    this.marked = null;
    this.canvas.addEventListener("hover", ({ detail }) => this.hover(detail));
    this.canvas.addEventListener("pointerleave", hideTip);
    this.canvas.addEventListener("keydown", (event) => {
      if (event.key === "[" || event.key === "]") this.step(event.key === "]" ? 1 : -1);
    });
    this.paint = () => this.draw();
    view.painters.add(this.paint);
  }

  end() {
    this.view.painters.delete(this.paint);
  }

  set(step) {
    const { rows, bars, names, kinds } = step.schedule;
    this.names = names;
    this.kinds = kinds;
    this.duration = step.step_time_ns;
    const scale = Math.min(1, 420 / (step.memory.length * (BAR.computes + BAR.moves + GAP)));
    let top = AXIS + 4;
    this.lines = rows.map((row) => {
      const moves = row.queue.endsWith("moves");
      const height = Math.max(4, Math.round(scale * (moves ? BAR.moves : BAR.computes)));
      if (!moves && top > AXIS + 4) top += Math.max(2, Math.round(GAP * scale));
      const line = { row, moves, top, height, bars: [] };
      top += height + 1;
      return line;
    });
    this.height = top + 6;
    for (let i = 0; i < bars.row.length; i++) {
      this.lines[bars.row[i]].bars.push({
        start: bars.start_ns[i], end: bars.end_ns[i], name: bars.name[i], kind: bars.kind[i], microbatch: bars.microbatch[i],
      });
    }
    this.marked = null;
    this.view.repaint();
  }

  draw() {
    if (!this.lines.length || !this.canvas.clientWidth) return;
    const { chart, view } = this;
    const context = chart.fresh(this.height);
    chart.drawTimes(context, AXIS - 4, this.height, 9);
    context.textAlign = "right";
    let last = null;
    for (const line of this.lines) {
      if (line.row.stage !== last && line.height >= 8) {
        context.fillStyle = colourOf("text");
        context.fillText(`stage ${line.row.stage}`, LEFT - 8, line.top + line.height / 2);
      }
      last = line.row.stage;
    }
    chart.inPlot(context, this.height, () => {
      for (const line of this.lines) {
        context.fillStyle = colourOf("idle");
        const limit = chart.x(Math.min(this.duration, view.end)) - LEFT;
        if (!line.moves) context.fillRect(LEFT, line.top, limit, line.height);
        this.drawBars(context, line);
      }
      const x = Math.round(chart.x(this.duration)) - 0.5;
      context.strokeStyle = colourOf("text");
      context.setLineDash([3, 3]);
      context.beginPath();
      context.moveTo(x, AXIS - 4);
      context.lineTo(x, this.height);
      context.stroke();
      context.setLineDash([]);
    });
  }

  drawBars(context, line) {
    const { chart, view } = this;
    let reached = -1;
    context.textAlign = "center";
    for (const bar of line.bars) {
      if (bar.end < view.start || bar.start > view.end) continue;
      const from = Math.max(chart.x(bar.start), LEFT - 2), to = Math.min(chart.x(bar.end), LEFT + chart.width + 2);
      if (to - from < 0.3 && to < reached + 0.3) continue;
      reached = to;
      const colour = this.colours[this.kinds[bar.kind]];
      context.fillStyle = colour;
      context.fillRect(from, line.top, Math.max(to - from - (to - from > 4 ? 0.8 : 0), 0.6), line.height);
      if (this.marked === bar) {
        context.strokeStyle = colourOf("text");
        context.lineWidth = 2;
        context.strokeRect(from, line.top, Math.max(to - from, 2), line.height);
        context.lineWidth = 1;
      }
      const text = bar.microbatch >= 0 ? String(bar.microbatch + 1) : this.names[bar.name].replace(/^.*: /, "");
      if (line.height >= 12 && to - from > context.measureText(text).width + 4) {
        context.fillStyle = inkOn(colour);
        context.fillText(text, (from + to) / 2, line.top + line.height / 2 + 0.5);
      }
    }
  }

  // Name, place and times of a bar, as lines of text.
  words(line, bar) {
    const step = Math.max((this.view.end - this.view.start) / 1000, 1);
    const where = bar.microbatch >= 0 ? `microbatch ${bar.microbatch + 1}` : "once a step";
    return [
      this.names[bar.name],
      `${this.kinds[bar.kind].replaceAll("_", " ")} · ${where} · rank ${line.row.rank}`,
      `${seconds((bar.end - bar.start) / 1e9)}, from ${axisText(bar.start, 10 ** Math.floor(Math.log10(step)), this.view.end)}`,
    ];
  }

  hover({ x, y, event }) {
    const line = this.lines.find(({ top, height }) => y >= top - 1 && y <= top + height);
    const time = this.chart.time(x), reach = 2 * (this.view.end - this.view.start) / this.chart.width;
    const bar = line && x >= LEFT && line.bars.find(({ start, end }) => start - reach <= time && time <= end + reach);
    if (bar) showTip(this.words(line, bar), event.clientX, event.clientY);
    else hideTip();
  }

  // Marks the bar before or after the marked one, brings it into sight and has it read out.
  step(by) {
    const all = this.lines.flatMap((line) => line.bars.map((bar) => ({ line, bar })));
    if (!all.length) return;
    const now = all.findIndex(({ bar }) => bar === this.marked);
    const { line, bar } = all[Math.min(Math.max(now < 0 ? 0 : now + by, 0), all.length - 1)];
    this.marked = bar;
    if (bar.start < this.view.start || bar.end > this.view.end) {
      const span = Math.max(this.view.end - this.view.start, 2 * (bar.end - bar.start));
      this.view.show((bar.start + bar.end - span) / 2, (bar.start + bar.end + span) / 2);
    }
    byId("spoken").textContent = this.words(line, bar).join(", ");
    this.view.repaint();
  }
}
