// Data of the page, as typed arrays, and the bars of a row at any level of detail.

const data = JSON.parse(document.getElementById("comparison-data").textContent);
const actors = data.actors;
const unitNs = data.unit_ns;

const running = (gaps) => {
  const sums = new Float64Array(gaps.length);
  let sum = 0;
  for (let i = 0; i < gaps.length; i++) sums[i] = sum += gaps[i];
  return sums;
};

// Bars in the order of their starts. `reach[i]` is the latest end of the bars up to i: it never
// falls, so the first bar that is still there at a time can be searched for.
const rowOf = (source, position, columns) => {
  const count = columns.gap.length;
  const row = {
    source,
    rank: data.timelines[source].rank[position],
    stage: data.timelines[source].stage[position],
    queue: data.timelines[source].queue[position],
    count,
    start: new Float64Array(count),
    end: new Float64Array(count),
    reach: new Float64Array(count),
    actor: new Int32Array(count),
    firing: Int32Array.from(columns.firing),
    colour: new Uint8Array(count),
    single: null, // of a level: the bar that a joined bar is, or -1 where it is several
    density: null, // of a level: the share of a joined bar's length in which something runs
    levels: new Map(),
  };
  let time = 0, number = 0, reach = -Infinity;
  for (let i = 0; i < count; i++) {
    row.start[i] = time += columns.gap[i];
    row.end[i] = time += columns.duration[i];
    row.reach[i] = reach = Math.max(reach, time);
    row.actor[i] = number += columns.actor[i];
    row.colour[i] = actors.colour[number];
  }
  return row;
};

// First index from which `sorted` exceeds `value`.
const firstAbove = (sorted, value) => {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
};

// Bars of a row without those that are shorter than about `least` units: these are joined to bars of
// at most twice this length, in the colour that most of their time has, and as dense as their time
// is of the length. Bars of one colour without a gap are one, however long they are. Levels are
// powers of two, so that panning changes none.
const levelOf = (row, least) => {
  const power = Math.floor(Math.log2(least));
  if (power < 1 || row.count < 64) return row;
  if (!row.levels.has(power)) row.levels.set(power, joinedBars(row, 2 ** power));
  return row.levels.get(power);
};

const joinedBars = (row, least) => {
  const start = [], end = [], colour = [], single = [], busy = [], weights = new Float64Array(data.colours.length);
  let tiny = false, last = -1;
  for (let i = 0; i < row.count; i++) {
    const from = row.start[i], to = row.end[i], hue = row.colour[i], short = to - from < least;
    const gap = last < 0 ? Infinity : from - end[last];
    const joins = gap < least && (short && tiny && to - start[last] < 2 * least ||
      hue === colour[last] && (short || tiny) && gap < least / 16);
    if (joins) {
      end[last] = Math.max(end[last], to);
      busy[last] += to - from;
      weights[hue] += to - from;
      if (weights[hue] > weights[colour[last]]) colour[last] = hue;
      tiny = tiny && short;
      single[last] = -1;
      continue;
    }
    last = start.length;
    start.push(from);
    end.push(to);
    colour.push(hue);
    single.push(i);
    busy.push(to - from);
    weights.fill(0);
    weights[hue] = to - from;
    tiny = short;
  }
  let reach = -Infinity;
  return {
    start: Float64Array.from(start),
    end: Float64Array.from(end),
    reach: Float64Array.from(end, (time) => (reach = Math.max(reach, time))),
    colour: Uint8Array.from(colour),
    single: Int32Array.from(single),
    density: Float32Array.from(busy, (time, i) => Math.min(time / Math.max(end[i] - start[i], 1), 1)),
    count: start.length,
  };
};

const rows = data.timelines.map((timeline, source) =>
  timeline.bars.map((columns, position) => rowOf(source, position, columns)));

// Number of a firing among all of a rank's, and where its bar is, made when it is first asked for.
const stride = Math.max(1, ...new Set(actors.firings));
const firingKey = (actor, firing) => actor * stride + firing;
const places = [new Map(), new Map()];

const placesOf = (source, rank) => {
  if (!places[source].has(rank)) {
    const byFiring = new Map();
    for (const row of rows[source]) {
      if (row.rank !== rank) continue;
      for (let i = 0; i < row.count; i++) {
        byFiring.set(firingKey(row.actor[i], row.firing[i]), [row, i]);
      }
    }
    places[source].set(rank, byFiring);
  }
  return places[source].get(rank);
};

// Rank of a trace that stands for a rank: itself, or the first of its stage that was traced.
const tracedRank = (source, rank, stage) => {
  const { rank: ranks, stage: stages } = data.timelines[source];
  if (ranks.includes(rank)) return rank;
  const position = stages.indexOf(stage);
  return position < 0 ? null : ranks[position];
};
