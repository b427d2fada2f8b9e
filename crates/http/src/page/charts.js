// Pictures of what happened over time. Each has the same figures as a table below it.

import { el, svg, table } from "./dom.js";
import { clock } from "./units.js";

// How far back they reach at most, and at least, in milliseconds.
export const WINDOW = 5 * 60 * 1000;
const WINDOW_MIN = 30 * 1000;
const ROWS_IN_TABLE = 60;

// Axes of bytes, whatever they are counted per.
export const BYTES = { base: 1024, floor: 1024 };

function reach(intervals) {
  const [first, last] = [intervals[0], intervals.at(-1)];
  const known = last ? last.unix_ms - first.unix_ms + first.seconds * 1000 : 0;
  return Math.min(WINDOW, Math.max(WINDOW_MIN, known));
}

const ago = (ms) => (ms >= 60_000 ? `${+(ms / 60_000).toFixed(1)} min ago` : `${Math.round(ms / 1000)} s ago`);

// The end of an axis: the next round number, of units that are counted by 1000, or by 1024 as bytes are.
function axisEnd(most, base) {
  if (!(most > 0)) return 1;
  let unit = 1;
  while (most / unit >= base) unit *= base;
  while (base === 1000 && most / unit < 1) unit /= 10;
  const step = [1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 800].find((step) => most <= step * unit);
  return (step ?? base) * unit;
}

// Intervals that follow each other without a gap.
const GAP_MS = 1500;
function stretches(intervals) {
  const parts = [];
  let end;
  for (const at of intervals) {
    const start = at.unix_ms - at.seconds * 1000;
    if (end === undefined || start - end > GAP_MS) parts.push([]);
    parts.at(-1).push(at);
    end = at.unix_ms;
  }
  return parts;
}

// The points of a line: a level for each interval, which begins where the one before ended. Where there is no value the line
// is broken.
function points(part, value, x, y) {
  const lines = [];
  let end;
  for (const at of part) {
    const level = value(at);
    if (level === undefined) {
      end = undefined;
      continue;
    }
    if (end === undefined) lines.push([]);
    // Ends are rounded, so that intervals may overlap by some milliseconds: the line never goes back.
    const start = end ?? at.unix_ms - at.seconds * 1000;
    lines.at(-1).push(`${x(start)},${y(level)}`, `${x(at.unix_ms)},${y(level)}`);
    end = at.unix_ms;
  }
  return lines.map((line) => line.join(" "));
}

// Lines over time. A series has a name, a class for its colour, and a value of each interval, or none. `unit` says what the
// axis counts; bytes have an axis of powers of two. The axis reaches at least to `floor`, so that what is hardly anything
// looks like that.
export function lines(title, intervals, series, format, unit, { base = 1000, floor = 1 } = {}) {
  const now = intervals.at(-1)?.unix_ms ?? Date.now();
  const width = reach(intervals);
  const most = Math.max(...intervals.flatMap((at) => series.map((one) => one.value(at) ?? 0)), 0);
  const end = Math.max(axisEnd(most, base), floor);
  const x = (ms) => (1000 * Math.max(0, 1 - (now - ms) / width)).toFixed(1);
  const y = (value) => (98 - (value / end) * 96).toFixed(1);
  const shown = (value) => (value === undefined ? "-" : format(value));
  const last = intervals.at(-1);
  const said = series.map((one) => `${one.name} ${last ? shown(one.value(last)) : "-"}`).join(", ");
  const rows = intervals.slice(-ROWS_IN_TABLE).reverse().map((at) =>
    [clock(at.unix_ms), ...series.map((one) => shown(one.value(at)))]);
  const parts = stretches(intervals);
  return el(
    "section",
    {},
    el("h2", {}, title, " ", el("span", { class: "dim" }, unit)),
    el("p", {}, series.map((one) => [
      el("span", { class: `key ${one.kind}` }), `${one.name} `,
      el("strong", {}, last ? shown(one.value(last)) : "-"), " "])),
    el("div", { class: "plot" },
      el("div", { class: "axis", "aria-hidden": "true" }, [end, end / 2, 0].map((value) => el("span", {}, format(value)))),
      svg(
        "svg",
        { class: "line", viewBox: "0 0 1000 100", preserveAspectRatio: "none", role: "img",
          "aria-label": `${title}, ${unit}: now ${said}; at most ${format(most)} since ${ago(width)}` },
        [2, 50, 98].map((at) => svg("line", { class: "grid-line", x1: 0, x2: 1000, y1: at, y2: at })),
        series.map((one) => parts.flatMap((part) => points(part, one.value, x, y))
          .map((line) => svg("polyline", { class: one.kind, points: line })))
      ),
      el("div", { class: "ends" }, el("span", {}, ago(width)), el("span", {}, ago(width / 2)), el("span", {}, "now"))),
    el("details", {}, el("summary", {}, "As a table"),
      table(title, ["Time", ...series.map((one) => one.name)], series.map((_, index) => index + 1), rows)),
  );
}

const COLUMNS = 100;
const LABEL = 60;

// Colours of the heat map begin at these loads, whatever the other cells are: an idle formation stays pale.
const STEPS = [0.05, 0.25, 1, 4, 16];
const opacity = (load) => (0.04 + (0.96 * STEPS.filter((step) => load >= step).length) / STEPS.length).toFixed(3);

function legend() {
  const swatch = (load) => {
    const cell = el("span", { class: "heat-key" });
    cell.style.background = `rgb(var(--heat) / ${opacity(load)})`;
    return cell;
  };
  const item = (load, text) => [el("span", {}, swatch(load), text), " "];
  return el("div", { class: "legend" }, "Load: ", item(0, `below ${STEPS[0]}`),
    STEPS.map((step) => item(step, `${step} and more`)));
}

// Nodes × time, darker where more was worked on. The map has a cursor that arrow keys move, and says what is under it.
export class HeatMap {
  constructor(signal) {
    this.cursor = undefined;
    this.canvas = el("canvas", {
      tabindex: "0", role: "img", "aria-describedby": "heat-says",
      keydown: (event) => this.key(event),
      pointermove: (event) => this.point(event),
      pointerleave: () => this.leave(),
      blur: () => this.leave(),
    });
    this.says = el("p", { id: "heat-says", class: "dim", "aria-live": "polite" });
    this.even = el("p", {});
    this.rows = el("details", {}, el("summary", {}, "As a table"));
    this.element = el("section", {},
      el("h2", {}, "Load of nodes"), this.even, this.canvas,
      el("div", { class: "ends" }, this.from = el("span", {}), el("span", {}, "now")),
      legend(), this.says, this.rows);
    this.hint = "Load is how many requests a node works on at the same time. Arrow keys, or pointing, show one cell.";
    this.says.textContent = this.hint;
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw(), { signal });
  }

  show(intervals) {
    this.now = intervals.at(-1)?.unix_ms ?? Date.now();
    this.nodes = (intervals.at(-1)?.nodes ?? []).map((node) => ({ id: node.id, host: node.host }));
    const index = new Map(this.nodes.map((node, at) => [node.id, at]));
    // Each cell is the mean over its time, of the intervals that are in it.
    this.width = reach(intervals);
    this.from.textContent = ago(this.width);
    const step = this.width / COLUMNS;
    this.cells = this.nodes.map(() => new Array(COLUMNS).fill(undefined));
    const lengths = this.nodes.map(() => new Array(COLUMNS).fill(0));
    for (const interval of intervals) {
      const from = interval.unix_ms - interval.seconds * 1000;
      const first = Math.max(0, Math.floor(COLUMNS - (this.now - from) / step));
      const last = Math.min(COLUMNS - 1, Math.ceil(COLUMNS - (this.now - interval.unix_ms) / step) - 1);
      for (const node of interval.nodes) {
        const row = index.get(node.id);
        if (row === undefined) continue;
        for (let column = first; column <= last; column += 1) {
          const start = this.now - (COLUMNS - column) * step;
          const part = Math.min(start + step, interval.unix_ms) - Math.max(start, from);
          if (part <= 0) continue;
          const before = lengths[row][column];
          this.cells[row][column] = ((this.cells[row][column] ?? 0) * before + node.load * part) / (before + part);
          lengths[row][column] = before + part;
        }
      }
    }
    this.tell();
    this.draw();
  }

  tell() {
    const known = this.cells.map((row) => row.filter((value) => value !== undefined));
    const means = known.map((row) => (row.length ? row.reduce((sum, value) => sum + value, 0) / row.length : 0));
    const mean = means.reduce((sum, value) => sum + value, 0) / Math.max(means.length, 1);
    const top = means.indexOf(Math.max(...means));
    const latest = this.cells.map((row) => row.at(-1) ?? 0);
    const busy = mean >= 0.005 || Math.max(...latest) >= STEPS[0];
    this.even.textContent = busy && means.length > 1
      ? `Node ${this.nodes[top].id} is the busiest: ${(means[top] / mean).toFixed(1)} times the mean of all.`
      : busy ? `Load ${mean.toFixed(2)} on average.` : "The nodes are idle.";
    this.canvas.setAttribute("aria-label", `Load of ${this.nodes.length} nodes since ${ago(this.width)}. ${this.even.textContent}`);
    const rows = this.nodes.map((node, row) => [String(node.id), node.host, means[row].toFixed(2),
      Math.max(...known[row], 0).toFixed(2), busy ? (means[row] / mean).toFixed(1) : "-"]);
    const open = this.rows.open;
    this.rows.replaceChildren(el("summary", {}, "As a table"),
      table("Load of nodes", ["Node", "Host", "Mean", "Most", "Times the mean"], [2, 3, 4], rows));
    this.rows.open = open;
    if (this.cursor) this.saysCell();
  }

  draw() {
    if (!this.cells?.length) return;
    const width = this.canvas.clientWidth;
    if (!width) return;
    const row = Math.max(2, Math.min(22, Math.floor(480 / this.nodes.length)));
    const scale = devicePixelRatio || 1;
    const height = row * this.nodes.length;
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(document.documentElement);
    const heat = style.getPropertyValue("--heat").trim();
    const cell = (width - LABEL) / COLUMNS;
    const gap = row > 5 ? 1 : 0;
    this.cells.forEach((values, at) => values.forEach((value, column) => {
      if (value === undefined) return;
      pen.fillStyle = `rgb(${heat} / ${opacity(value)})`;
      pen.fillRect(LABEL + column * cell, at * row, Math.ceil(cell), row - gap);
    }));
    pen.fillStyle = style.getPropertyValue("--ink");
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const every = Math.max(1, Math.ceil(14 / row));
    this.nodes.forEach((node, at) => at % every === 0 && pen.fillText(`node ${node.id}`, 2, (at + 0.5) * row, LABEL - 6));
    if (this.cursor) {
      pen.strokeStyle = style.getPropertyValue("--ink");
      pen.lineWidth = 2;
      pen.strokeRect(LABEL + this.cursor.column * cell - 1, this.cursor.row * row, Math.ceil(cell) + 2, row - gap);
    }
  }

  key(event) {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Escape") return this.leave();
    if (!move || !this.cells?.length) return;
    event.preventDefault();
    const from = this.cursor ?? { row: 0, column: COLUMNS };
    this.go(from.row + (this.cursor ? move[0] : 0), from.column + (this.cursor ? move[1] : -1));
  }

  point(event) {
    if (!this.cells?.length) return;
    const place = this.canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - place.left - LABEL) / (place.width - LABEL)) * COLUMNS);
    this.go(Math.floor(((event.clientY - place.top) / place.height) * this.nodes.length), column);
  }

  go(row, column) {
    const within = (value, end) => Math.max(0, Math.min(end - 1, value));
    this.cursor = { row: within(row, this.nodes.length), column: within(column, COLUMNS) };
    this.saysCell();
    this.draw();
  }

  leave() {
    this.cursor = undefined;
    this.says.textContent = this.hint;
    this.draw();
  }

  saysCell() {
    const node = this.nodes[this.cursor.row];
    if (!node) return;
    const value = this.cells[this.cursor.row][this.cursor.column];
    const before = ago(((COLUMNS - this.cursor.column) * this.width) / COLUMNS);
    this.says.textContent = `Node ${node.id} on ${node.host}, ${before}: ${
      value === undefined ? "no figures" : `load ${value.toFixed(2)}`}`;
  }
}
