// The stretch of time that all charts of the page show together, and how they are panned and zoomed.

export const LEFT = 76; // pixels for the names of rows

export class TimeView {
  constructor() {
    this.limit = 1;
    this.start = 0;
    this.end = 1;
    this.painters = new Set();
    this.pending = 0;
  }

  // The longest step of all charts; a view of all of it stays one.
  extend(limits) {
    const all = this.start === 0 && this.end === this.limit;
    this.limit = Math.max(1, ...limits);
    if (all || this.end > this.limit) this.show(0, this.limit);
    this.repaint();
  }

  show(start, end) {
    const span = Math.min(Math.max(end - start, Math.min(1000, this.limit)), this.limit);
    const middle = (start + end) / 2;
    this.start = Math.min(Math.max(middle - span / 2, 0), this.limit - span);
    this.end = this.start + span;
    this.repaint();
  }

  zoom(factor, time = (this.start + this.end) / 2) {
    this.show(time - (time - this.start) * factor, time + (this.end - time) * factor);
  }

  pan(share) {
    const span = this.end - this.start;
    const shift = Math.min(Math.max(share * span, -this.start), this.limit - this.end);
    this.show(this.start + shift, this.end + shift);
  }

  showAll() {
    this.show(0, this.limit);
  }

  repaint() {
    if (!this.pending) this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      for (const paint of this.painters) paint();
    });
  }
}

const roundStep = (least) => {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= least);
};

export const axisText = (ns, step, largest) => {
  const [unit, scale] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]]
    .find(([, size]) => largest >= size) ?? ["ns", 1];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / scale) - 1e-9));
  return `${(ns / scale).toFixed(digits)} ${unit}`;
};

export const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// A canvas that shows a stretch of time: cleared, sharp, with pale lines at round times.
export class TimeCanvas {
  constructor(view, canvas) {
    this.view = view;
    this.canvas = canvas;
    gestures(view, canvas, this);
  }

  get width() {
    return Math.max(this.canvas.clientWidth - LEFT, 10);
  }

  x(ns) {
    return LEFT + (ns - this.view.start) / (this.view.end - this.view.start) * this.width;
  }

  time(x) {
    return this.view.start + (x - LEFT) / this.width * (this.view.end - this.view.start);
  }

  fresh(height) {
    const { canvas } = this, ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    return context;
  }

  drawTimes(context, top, bottom, textY) {
    const { view } = this;
    const step = roundStep((view.end - view.start) / Math.max(2, Math.floor(this.width / 90)));
    context.textAlign = "center";
    for (let mark = Math.ceil(view.start / step); mark * step <= view.end; mark++) {
      const x = Math.round(this.x(mark * step)) + 0.5;
      context.strokeStyle = colourOf("line");
      context.beginPath();
      context.moveTo(x, top);
      context.lineTo(x, bottom);
      context.stroke();
      if (textY === null) continue;
      context.fillStyle = colourOf("muted");
      const text = axisText(mark * step, step, view.end);
      const half = context.measureText(text).width / 2;
      context.fillText(text, Math.min(Math.max(x, LEFT + half), LEFT + this.width - half), textY);
    }
  }

  inPlot(context, height, action) {
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, this.width, height);
    context.clip();
    action();
    context.restore();
  }
}

const gestures = (view, canvas, chart) => {
  const pointers = new Map();
  let pinch = null;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const pinchOf = () => {
    const [a, b] = [...pointers.values()];
    return { distance: Math.max(Math.abs(a[0] - b[0]), 10), middle: (a[0] + b[0]) / 2 };
  };
  canvas.addEventListener("wheel", (event) => {
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.ctrlKey || event.metaKey) {
      view.zoom(Math.exp(Math.min(Math.max(event.deltaY, -100), 100) * 0.006), chart.time(place(event)[0]));
    } else if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) view.pan(sideways / chart.width);
    else return; // the page scrolls
    event.preventDefault();
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, place(event));
    pinch = pointers.size === 2 ? pinchOf() : null;
  });
  canvas.addEventListener("pointermove", (event) => {
    const last = pointers.get(event.pointerId), now = place(event);
    if (!last) {
      canvas.dispatchEvent(new CustomEvent("hover", { detail: { x: now[0], y: now[1], event } }));
      return;
    }
    pointers.set(event.pointerId, now);
    if (pinch && pointers.size === 2) {
      const next = pinchOf();
      view.zoom(pinch.distance / next.distance, chart.time(next.middle));
      pinch = next;
    } else view.pan((last[0] - now[0]) / chart.width);
  });
  const release = (event) => {
    pointers.delete(event.pointerId);
    pinch = null;
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("dblclick", () => view.showAll());
  const keys = {
    ArrowLeft: () => view.pan(-0.15), ArrowRight: () => view.pan(0.15),
    "+": () => view.zoom(1 / 1.5), "=": () => view.zoom(1 / 1.5), "-": () => view.zoom(1.5),
    0: () => view.showAll(), Home: () => view.showAll(),
  };
  canvas.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
};
