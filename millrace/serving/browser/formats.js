// Figures as text, three digits each, and small helpers for building the page.

export const threeDigits = (value) => {
  const size = Math.abs(value);
  return size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(2);
};

const scaled = (value, steps, last) => {
  for (const [unit, scale] of steps) {
    if (Math.abs(value) >= scale * 0.9995) return `${threeDigits(value / scale)} ${unit}`;
  }
  return last;
};

export const seconds = (value) => value === null || value === undefined ? "–" :
  scaled(value, [["s", 1], ["ms", 1e-3], ["µs", 1e-6]], value ? `${Math.round(value * 1e9)} ns` : "0 s");
export const bytes = (value) => value === null || value === undefined ? "–" :
  scaled(value, [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]], `${value} B`);
export const rate = (value, unit) => value === null || value === undefined ? "–" :
  scaled(value, [[`T${unit}/s`, 1e12], [`G${unit}/s`, 1e9], [`M${unit}/s`, 1e6], [`k${unit}/s`, 1e3]],
    `${threeDigits(value)} ${unit}/s`);
export const percent = (share) => share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)} %`;
export const dollars = (value) => value === null || value === undefined ? "no price" :
  `$${value >= 1 ? value.toFixed(2) : value.toPrecision(3)}`;
export const whole = (value) => value.toLocaleString("en");
export const change = (ratio) => {
  const amount = 100 * (ratio - 1);
  if (!Number.isFinite(amount)) return "–";
  if (Math.abs(amount) < 0.05) return "±0 %";
  return `${amount < 0 ? "−" : "+"}${Math.abs(amount).toFixed(1)} %`;
};

// Element with attributes and children; texts are never read as HTML.
export const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "colour") element.style.background = value;
    else if (name === "width") element.style.width = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
};

export const drawn = (tag, attributes = {}, ...children) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

export const byId = (id) => document.getElementById(id);

export const legend = (colours) => make("ul", { class: "legend" }, Object.entries(colours).map(
  ([name, colour]) => make("li", {}, make("i", { colour }), name.replaceAll("_", " "))));

// Colour of a text on a colour: whichever of black and white differs more.
export const inkOn = (colour) => {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16) / 255)
    .map((part) => (part <= 0.04 ? part / 12.9 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#111111" : "#ffffff";
};

const tip = byId("tip");
export const showTip = (lines, x, y) => {
  tip.replaceChildren(...lines.map((line, i) => make(i ? "div" : "b", {}, line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, x + 14 + box.width > innerWidth ? x - 14 - box.width : x + 14)}px`;
  tip.style.top = `${y + 16 + box.height > innerHeight ? y - 12 - box.height : y + 16}px`;
};
export const hideTip = () => { tip.hidden = true; };
