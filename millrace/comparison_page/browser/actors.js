// Table of all actors: sorted by a column, filtered by words, some rows at a time.

const PAGE_ROWS = 40, MORE_ROWS = 500;
const table = byId("actors"), filter = byId("filter"), more = byId("more");
const phaseText = (number) => actors.phases[actors.phase[number]].replaceAll("_", " ");
const kindText = (number) => actors.kinds[actors.kind[number]];
const ratioOf = (number) => {
  const predicted = actors.predicted_median_ns[number];
  const measured = actors.measured_median_ns[number];
  return predicted && measured ? predicted / measured : null;
};
const cells = {
  name: [(number) => actors.name[number], String],
  kind: [kindText, String],
  phase: [phaseText, String],
  firings: [(number) => actors.firings[number], String],
  predicted_median: [(number) => actors.predicted_median_ns[number], nsText],
  measured_median: [(number) => actors.measured_median_ns[number], nsText],
  ratio: [ratioOf, (ratio) => (ratio === null ? "–" : ratio < 0.01 ? "< 0.01" : ratio.toFixed(2))],
  predicted: [(number) => actors.predicted_ns[number], nsText],
  measured: [(number) => actors.measured_ns[number], nsText],
  difference: [
    (number) => (actors.predicted_ns[number] ?? 0) - (actors.measured_ns[number] ?? 0),
    (ns) => signed(ns, nsText),
  ],
};
const texts = actors.name.map((name, number) => `${name} ${kindText(number)} ${phaseText(number)}`.toLowerCase());
let sorting = { key: "difference", descending: true };
let matching = actors.name.map((_, number) => number);
let shownRows = PAGE_ROWS;

// Differences are sorted by their size; what is not there comes last.
const compareBy = (key, descending) => {
  const valueOf = key === "difference" ? (number) => Math.abs(cells.difference[0](number)) : cells[key][0];
  const sign = descending ? -1 : 1;
  return (a, b) => {
    const [x, y] = [valueOf(a), valueOf(b)];
    if (x === null || y === null) return (x === null) - (y === null) || a - b;
    return sign * (typeof x === "string" ? x.localeCompare(y) : x - y) || a - b;
  };
};

const rowElement = (number) => {
  const row = document.createElement("tr");
  row.dataset.actor = number;
  row.classList.toggle("marked", marked !== null && marked.actor === number);
  for (const [key, [valueOf, text]] of Object.entries(cells)) {
    const cell = document.createElement("td");
    if (key === "name") {
      const code = document.createElement("code");
      code.textContent = actors.name[number];
      cell.append(code);
    } else {
      cell.textContent = text(valueOf(number));
      if (key === "kind" || key === "phase") cell.className = "left";
    }
    row.append(cell);
  }
  return row;
};

const fillTable = () => {
  table.tBodies[0].replaceChildren(...matching.slice(0, shownRows).map(rowElement));
  const rest = matching.length - shownRows;
  more.parentElement.hidden = rest <= 0;
  more.textContent = `show ${Math.min(rest, MORE_ROWS).toLocaleString("en")} more of ${rest.toLocaleString("en")}`;
  byId("matches").textContent = matching.length === actors.name.length
    ? ""
    : `${matching.length.toLocaleString("en")} of ${actors.name.length.toLocaleString("en")}`;
};

// A word is part of a name, a kind or a phase; `kind:matmul` asks for one kind alone.
const matches = (number, word) => (word.startsWith("kind:")
  ? kindText(number).toLowerCase() === word.slice("kind:".length)
  : texts[number].includes(word));

const applyFilter = () => {
  const text = filter.value.trim().toLowerCase();
  const words = text.split(/\s+/).filter(Boolean);
  const exact = actors.name.indexOf(filter.value.trim());
  matching = [];
  for (let number = 0; number < texts.length; number++) {
    if (exact >= 0 ? number === exact : words.every((word) => matches(number, word))) matching.push(number);
  }
  shownActors = words.length ? new Set(matching) : null;
  matching.sort(compareBy(sorting.key, sorting.descending));
  shownRows = PAGE_ROWS;
  fillTable();
  layerStale = true;
  repaintScatter();
};
const setFilter = (text) => {
  filter.value = text;
  applyFilter();
};

for (const head of table.tHead.rows[0].cells) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = head.textContent;
  head.replaceChildren(button);
  button.addEventListener("click", () => {
    const key = head.dataset.key;
    const text = key === "name" || key === "kind" || key === "phase";
    sorting = { key, descending: sorting.key === key ? !sorting.descending : !text };
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", sorting.descending ? "descending" : "ascending");
    applyFilter();
  });
}

// A name in the table leads to its first firing in the timelines.
table.tBodies[0].addEventListener("click", (event) => {
  const number = Number(event.target.closest("code")?.closest("tr")?.dataset.actor ?? NaN);
  if (Number.isNaN(number)) return;
  for (const line of lines) {
    const firing = { rank: line.rank, stage: line.stage, source: line.source, actor: number, firing: 0 };
    if (!placeOf(line.source, firing)) continue;
    markFiring(firing);
    revealFiring(firing);
    scroller.scrollIntoView({ block: "nearest" });
    return;
  }
});
markListeners.push((firing) => {
  for (const row of table.tBodies[0].rows) {
    row.classList.toggle("marked", firing !== null && Number(row.dataset.actor) === firing.actor);
  }
});

let typing = 0;
filter.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(applyFilter, 60);
});
more.addEventListener("click", () => {
  shownRows += MORE_ROWS;
  fillTable();
});

for (const element of document.querySelectorAll(".interactive")) element.hidden = false;
table.tHead.querySelector('[data-key="difference"]').setAttribute("aria-sort", "descending");
layOut();
applyFilter();
window.addEventListener("resize", () => {
  layOut();
  layerStale = true;
  repaintScatter();
});
