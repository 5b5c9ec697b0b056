// The plan itself: devices in their nodes, mesh axes, stages, and the SBP of one block.

import { bytes, drawn, hideTip, inkOn, make, percent, showTip, whole } from "./formats.js";

const STAGES = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#555555"];
const GAP = 2, NODE_GAP = 8, DEVICES_DRAWN = 1024;

export const stageColour = (stage) => STAGES[stage % STAGES.length];

const coordinates = (plan, rank) => {
  let left = rank % plan.meshDevices;
  return plan.axes.toReversed().map(({ name, size }) => {
    const at = left % size;
    left = Math.floor(left / size);
    return `${name} ${at}`;
  }).reverse();
};

// Devices as squares, node by node; beyond a thousand, one square a node.
const deviceMap = (plan) => {
  const { cluster } = plan, perNode = cluster.devices_per_node;
  const used = plan.stages.length * plan.meshDevices;
  const byNode = used > DEVICES_DRAWN;
  const CELL = used <= 16 ? 34 : used <= 64 ? 24 : 16;
  const inNode = byNode ? 1 : Math.min(perNode, used), count = byNode ? Math.ceil(used / perNode) : used;
  const columns = inNode > 32 ? 16 : inNode > 4 ? Math.ceil(inNode / 2) : inNode;
  const across = Math.min(inNode, columns), down = Math.ceil(inNode / across);
  const nodeWidth = across * (CELL + GAP) - GAP + 2 * GAP + 2, nodeHeight = down * (CELL + GAP) - GAP + 2 * GAP + 2;
  const nodes = Math.ceil(count / inNode);
  const wide = byNode ? 0 : NODE_GAP;
  const nodesAcross = Math.max(1, Math.min(nodes, Math.floor(620 / (nodeWidth + wide))));
  const width = nodesAcross * (nodeWidth + wide) - wide, height = Math.ceil(nodes / nodesAcross) * (nodeHeight + wide) - wide;
  const svg = drawn("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, role: "img", class: "devices",
    "aria-label": `${used} devices on ${Math.ceil(used / perNode)} nodes: ${plan.stages.map((stage) => `stage ${stage.stage} on ranks ${stage.first_rank} to ${stage.last_rank}`).join(", ")}`,
  });
  for (let node = 0; node < nodes; node++) {
    const left = node % nodesAcross * (nodeWidth + wide), top = Math.floor(node / nodesAcross) * (nodeHeight + wide);
    if (!byNode) svg.append(drawn("rect", { x: left + 0.5, y: top + 0.5, width: nodeWidth - 1, height: nodeHeight - 1, rx: 3, class: "node" }));
    for (let place = 0; place < inNode && node * inNode + place < count; place++) {
      const rank = byNode ? node * perNode : node * inNode + place;
      const stage = Math.floor(rank / plan.meshDevices), colour = stageColour(stage);
      const x = left + GAP + 1 + place % across * (CELL + GAP), y = top + GAP + 1 + Math.floor(place / across) * (CELL + GAP);
      const cell = drawn("rect", { x, y, width: CELL, height: CELL, rx: 2, fill: colour });
      const words = byNode
        ? [`node ${node}`, `ranks ${rank} to ${rank + perNode - 1}`, `stage ${stage}`]
        : [`rank ${rank}`, `node ${Math.floor(rank / perNode)}, stage ${stage}`, coordinates(plan, rank).join(", ")];
      cell.addEventListener("pointermove", (event) => showTip(words.filter(Boolean), event.clientX, event.clientY));
      cell.addEventListener("pointerleave", hideTip);
      const text = drawn("text", { x: x + CELL / 2, y: y + CELL / 2 + (CELL > 20 ? 4.5 : 3.5), "text-anchor": "middle", class: CELL > 20 ? "large" : "small", fill: inkOn(colour), "pointer-events": "none" });
      text.textContent = stage;
      svg.append(cell, text);
    }
  }
  return make("figure", {}, svg, make("figcaption", { class: "note" },
    `${whole(used)} ${cluster.device} on ${whole(Math.ceil(used / perNode))} ${used > perNode ? "nodes" : "node"}, ${byNode ? "one square a node" : "one square a device"}; the number is its stage. ${plan.idle}`));
};

const meshTable = (plan) => plan.axes.length === 0 ? make("p", { class: "note" }, "Each stage is one device.") :
  make("div", { class: "axes" }, plan.axes.map(({ name, size, roles }) => make("span", { class: "axis" },
    make("b", {}, `${name} ${size}`), roles.length && roles.join(" ") !== name ? ` ${roles.join(", ")}` : "")));

const stageTable = (plan, colours) => {
  const recomputes = plan.stages.some(({ recompute }) => recompute);
  const limit = plan.cluster.memory_bytes;
  const heads = ["stage", "ranks", "layers", recomputes ? "recompute" : null, "memory", "of the device", "busy"].filter(Boolean);
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Stages of ${plan.headline}` }, make("table", {},
    make("thead", {}, make("tr", {}, heads.map((head) => make("th", { scope: "col", class: ["memory", "busy"].includes(head) ? null : "left" }, head)))),
    make("tbody", {}, plan.stages.map((stage) => {
      const kinds = stage.memory_by_kind ?? {}, sum = Object.values(kinds).reduce((a, b) => a + b, 0);
      const bar = make("span", { class: "fill", role: "img", "aria-label": Object.entries(kinds).map(([kind, size]) => `${kind} ${bytes(size)}`).join(", ") },
        Object.entries(grouped(kinds, colours)).map(([kind, size]) => make("i", {
          colour: colours[kind], width: `${100 * size / limit}%`,
          onpointermove: (event) => showTip([kind, bytes(size)], event.clientX, event.clientY), onpointerleave: hideTip,
        })));
      return make("tr", {},
        make("th", { scope: "row", class: "left" }, make("i", { class: "dot", colour: stageColour(stage.stage) }), String(stage.stage)),
        make("td", { class: "left" }, stage.first_rank === stage.last_rank ? `${stage.first_rank}` : `${stage.first_rank}–${stage.last_rank}`),
        make("td", { class: "left layers" }, stage.layers), recomputes ? make("td", { class: "left" }, stage.recompute) : null,
        make("td", {}, sum ? bytes(sum) : "–"), make("td", { class: "left" }, bar), make("td", {}, percent(stage.busy)));
    }))));
};

// Bytes by the kinds that have a colour, in the order of these; what has none is the runtime's.
const grouped = (kinds, colours) => {
  const sums = Object.fromEntries(Object.keys(colours).map((kind) => [kind, 0]));
  for (const [kind, size] of Object.entries(kinds)) sums[kind in sums ? kind : "runtime"] += size;
  return Object.fromEntries(Object.entries(sums).filter(([, size]) => size > 0));
};

// `S(0)`, `(S(0), B)`: each part coloured by what it is.
const sbp = (text) => make("span", { class: "sbp" }, text.split(/([SBP](?:\([^()]*\))?)/).map((part) =>
  /^[SBP](\(|$)/.test(part) ? make("b", { class: part[0] }, part) : part));

const blockTable = (plan) => {
  const { block } = plan;
  const ops = [...block.ops.filter(({ kind }) => kind !== "variable"), ...block.ops.filter(({ kind }) => kind === "variable")];
  const over = block.axes.length ? ` over (${block.axes.join(", ")})` : "";
  return make("details", { class: "block", open: true },
    make("summary", {}, `SBP of one block (${block.template})${over}: ${block.ops.length} forward ops`),
    make("p", { class: "note" }, make("b", { class: "S sbp-key" }, "S(n)"), " split along dim n, ",
      make("b", { class: "B sbp-key" }, "B"), " a copy on each device, ", make("b", { class: "P sbp-key" }, "P"), " partial sums; one entry per mesh axis."),
    make("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": `SBP of one block of ${plan.headline}` }, make("table", {},
      make("thead", {}, make("tr", {}, ["op", "kind", "inputs", "outputs"].map((head) => make("th", { scope: "col", class: "left" }, head)))),
      make("tbody", {}, ops.map((op) => make("tr", {},
        make("th", { scope: "row", class: "left code" }, op.op), make("td", { class: "left" }, op.kind),
        make("td", { class: "left" }, op.inputs.map(sbp)), make("td", { class: "left" }, op.outputs.map(sbp))))))));
};

export const layoutOf = (plan, colours) => {
  plan.meshDevices = plan.axes.reduce((product, { size }) => product * size, 1);
  return make("div", {}, deviceMap(plan), meshTable(plan), stageTable(plan, colours), blockTable(plan));
};
