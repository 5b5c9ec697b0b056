// Wheel, pointer and keys on timelines and memory: both move the one view.

const DRAG = 4; // pixels within which a press is a click

const gesturesOn = (canvas) => {
  const pointers = new Map();
  let pressed = null, moved = false, pinch = null;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  const hover = (event) => {
    const [x, y] = place(event);
    const inside = x >= plot.left && x <= plot.left + plot.width;
    cursor.time = inside ? timeAt(x) : null;
    hovered = canvas === timelines ? firingAt(x, y) : null;
    canvas.style.cursor = hovered ? "pointer" : "default";
    if (hovered) showTip(firingText(hovered), event.clientX, event.clientY);
    else if (canvas === memoryCanvas && inside) showTip(memoryText(cursor.time), event.clientX, event.clientY);
    else hideTip();
    repaint();
  };

  const pinchOf = () => {
    const [a, b] = [...pointers.values()];
    return { distance: Math.max(Math.abs(a[0] - b[0]), 10), middle: (a[0] + b[0]) / 2 };
  };

  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 16 : 1;
    const [dx, dy] = [event.deltaX * lines, event.deltaY * lines];
    if (event.shiftKey && canvas === timelines) scroller.scrollTop += dy || dx;
    else if (Math.abs(dx) > Math.abs(dy)) pan(dx / plot.width * (view.end - view.start));
    else zoom(Math.exp(Math.min(Math.max(dy, -200), 200) * (event.ctrlKey ? 0.01 : 0.002)), timeAt(place(event)[0]));
    hover(event);
  }, { passive: false });

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, place(event));
    pinch = pointers.size === 2 ? pinchOf() : null;
    pressed = place(event);
    moved = pointers.size > 1;
  });

  canvas.addEventListener("pointermove", (event) => {
    const last = pointers.get(event.pointerId);
    if (!last) {
      hover(event);
      return;
    }
    const now = place(event);
    pointers.set(event.pointerId, now);
    const perPixel = (view.end - view.start) / plot.width;
    if (pinch && pointers.size === 2) {
      const next = pinchOf();
      pan((pinch.middle - next.middle) * perPixel);
      zoom(pinch.distance / next.distance, timeAt(next.middle));
      pinch = next;
      return;
    }
    moved = moved || Math.hypot(now[0] - pressed[0], now[1] - pressed[1]) > DRAG;
    if (!moved) return;
    hideTip();
    canvas.classList.add("panning");
    pan((last[0] - now[0]) * perPixel);
    if (canvas === timelines && event.pointerType === "mouse") scroller.scrollTop += last[1] - now[1];
  });

  const release = (event) => {
    pointers.delete(event.pointerId);
    pinch = null;
    canvas.classList.remove("panning");
  };
  canvas.addEventListener("pointerup", (event) => {
    const clicked = pointers.has(event.pointerId) && !moved;
    release(event);
    if (clicked && canvas === timelines) {
      const [x, y] = place(event);
      markFiring(firingAt(x, y));
    }
    if (event.pointerType !== "mouse") hover(event);
  });
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => {
    cursor.time = hovered = null;
    hideTip();
    repaint();
  });
  canvas.addEventListener("dblclick", showAll);

  const span = () => view.end - view.start;
  const keys = {
    ArrowLeft: () => pan(-0.15 * span()),
    ArrowRight: () => pan(0.15 * span()),
    ArrowUp: () => { scroller.scrollTop -= 3 * ROW; },
    ArrowDown: () => { scroller.scrollTop += 3 * ROW; },
    "+": () => zoom(1 / 1.5),
    "=": () => zoom(1 / 1.5),
    "-": () => zoom(1.5),
    "0": showAll,
    Home: showAll,
    "[": () => stepMark(-1),
    "]": () => stepMark(1),
    Escape: () => markFiring(null),
  };
  canvas.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
};

gesturesOn(timelines);
if (memoryCanvas) gesturesOn(memoryCanvas);
