// What the formation does now: rates, load by node, times of operations, how full volumes are.

import { ask } from "./ask.js";
import { BYTES, HeatMap, lines, WINDOW } from "./charts.js";
import { byId, complain, el, replace, table, visible } from "./dom.js";
import { bandwidth, clock, micros, percent, rate, size, span } from "./units.js";

const STATUS_EVERY = 10_000;
// Who wants less to move sees it move less often.
const CALM_EVERY = 5000;

// Intervals since the page was opened, also those in which another view was shown.
let intervals = [];

// Asks for what is new, again and again, while somebody looks.
export function follow(signal, every, turn) {
  let timer;
  let failed = false;
  let busy = false;
  const go = async () => {
    clearTimeout(timer);
    if (signal.aborted || document.hidden || busy) return;
    busy = true;
    try {
      await turn();
      if (failed) complain("");
      failed = false;
    } catch (error) {
      if (signal.aborted) return;
      failed = true;
      complain(`${error.message}. What is shown is from before; the page tries again.`);
    } finally {
      busy = false;
    }
    if (!signal.aborted) timer = setTimeout(go, every());
  };
  document.addEventListener("visibilitychange", go, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  go();
}

export function pace() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches ? CALM_EVERY : 1000;
}

export async function latest(signal) {
  const told = await ask("top.json", { since: intervals.at(-1)?.unix_ms ?? 0 }, signal);
  intervals.push(...told.rates);
  const now = intervals.at(-1)?.unix_ms ?? 0;
  intervals = intervals.filter((at) => at.unix_ms > now - WINDOW);
  const last = intervals.at(-1);
  if (last) byId("state").textContent = `· ${last.state}, ${last.nodes.length} ${last.nodes.length === 1 ? "node" : "nodes"}`;
  return intervals;
}

function facts(last) {
  const { total } = last;
  const unflushed = last.unflushed_bytes === null ? [] : [["Not flushed", size(last.unflushed_bytes)]];
  const pairs = [["Age", span(last.unix_ms - last.created_unix_ms)],
    ["Requests", `${rate(total.requests)}/s`], ["Under way", String(total.under_way)],
    ["Files", String(last.files)], ["Open", String(last.open_files)],
    ["Used", [size(total.used_bytes), " ", el("span", { class: "dim" }, `of ${size(total.capacity_bytes)}`)]], ...unflushed];
  return el("dl", { class: "facts" }, pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

// The state of a node, a host or a job: a word, and a colour for those who see it.
const GOOD = ["ready", "up", "done"];
const UNDER_WAY = ["starting", "running", "waiting", "leaving"];
export function state(text, kind = undefined) {
  const found = kind ?? (GOOD.includes(text) ? "good" : UNDER_WAY.includes(text) ? "busy" : "bad");
  return el("span", { class: `state ${found}` }, text);
}

// How much of something there is. From `high` on it is too much.
export function share(part, whole, label, high = undefined) {
  if (!whole) return "-";
  const text = percent(part / whole);
  return el("div", { class: "share" },
    el("meter", { min: 0, max: whole, value: part, high, "aria-label": `${label}: ${text}` }), text);
}

const fullness = (used, capacity, what) => share(used, capacity, `${what} is full`, capacity * 0.9);

function warnings(last) {
  if (!last.warnings.length) return undefined;
  return el("div", { class: "warnings" }, el("h2", {}, "Warnings"), el("ul", {}, last.warnings.map((text) => el("li", {}, visible(text)))));
}

// Each host with what its nodes do together, where there are several.
function hosts(last) {
  const sums = new Map();
  for (const node of last.nodes) {
    const sum = sums.get(node.host) ?? { nodes: 0, ready: 0, requests: 0, written: 0, read: 0, load: 0, used: 0, capacity: 0 };
    sum.nodes += 1;
    sum.ready += node.state === "ready" ? 1 : 0;
    sum.requests += node.requests;
    sum.written += node.written;
    sum.read += node.read;
    sum.load += node.load;
    sum.used += node.used_bytes;
    sum.capacity += node.capacity_bytes;
    sums.set(node.host, sum);
  }
  if (sums.size < 2) return undefined;
  const rows = [...sums].map(([host, sum]) => [visible(host),
    state(sum.ready ? `${sum.ready} of ${sum.nodes} nodes ready` : "does not answer", sum.ready === sum.nodes ? "good" : "bad"),
    rate(sum.requests), bandwidth(sum.written),
    bandwidth(sum.read), sum.load.toFixed(2), fullness(sum.used, sum.capacity, `host ${host}`)]);
  return el("section", {}, table("Hosts", ["Host", "State", "Requests/s", "Written", "Read", "Load", "Full"], [2, 3, 4, 5], rows));
}

function nodes(last) {
  return el("section", {}, table("Nodes",
    ["Node", "Host", "State", "Requests/s", "Written", "Read", "Load", "Under way", "Full"], [3, 4, 5, 6, 7],
    last.nodes.map((node) => [String(node.id), node.host, state(node.state), rate(node.requests), bandwidth(node.written),
      bandwidth(node.read), node.load.toFixed(2), String(node.under_way),
      fullness(node.used_bytes, node.capacity_bytes, `node ${node.id}`)])));
}

function operations(last) {
  const rows = last.operations.map((one) => [one.name, rate(one.client), rate(one.peer), one.load.toFixed(2),
    micros(one.p50_us), micros(one.p99_us)]);
  const caption = "Operations of programs: rates, and how long clients waited for nodes";
  return el("section", {}, rows.length
    ? table(caption, ["Operation", "Clients/s", "Peers/s", "Load", "Half within", "99 of 100 within"], [1, 2, 3, 4, 5], rows)
    : el("p", {}, "Programs ask for nothing."));
}

function volumes(status) {
  const rows = status.nodes.flatMap((node) => node.volumes.map((volume) => {
    const used = (volume.used_bytes ?? 0) + (volume.records_bytes ?? 0);
    return [visible(volume.path), String(node.id), volume.kind, size(used), size(volume.capacity_bytes),
      fullness(used, volume.capacity_bytes, volume.path)];
  }));
  return el("section", {}, table("Volumes", ["Volume", "Node", "Kind", "Used", "Of", "Full"], [1, 3, 4], rows));
}

export function overview({ heading, body, signal }) {
  heading.textContent = "Overview";
  let paused = false;
  const heat = new HeatMap(signal);
  const when = el("span", { class: "dim" }, "The first figures come in a second.");
  const top = el("div", {});
  const rest = el("div", {});
  const charts = el("div", { class: "grid" });
  const space = el("div", {});
  const button = el("button", { "aria-pressed": "false", click: () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "Go on" : "Pause";
  } }, "Pause");
  body.append(el("div", { class: "bar" }, button, when), top, charts, heat.element, rest, space);
  const draw = (all) => {
    const last = all.at(-1);
    if (!last) return;
    when.textContent = `As of ${clock(last.unix_ms)}, over ${last.seconds.toFixed(1)} s`;
    replace(top, warnings(last), facts(last));
    replace(charts,
      lines("Data", all, [{ name: "read", kind: "read", value: (at) => at.total.read },
        { name: "written", kind: "written", value: (at) => at.total.written }], bandwidth, "bytes per second", BYTES),
      lines("Requests", all, [{ name: "requests", kind: "read", value: (at) => at.total.requests }], rate, "per second", { floor: 10 }),
      lines("Load", all, [{ name: "load", kind: "read", value: (at) => at.total.load }], (value) => value.toFixed(2),
        "requests in progress", { floor: 0.2 }),
      // Requests in progress divided by requests per second (Little's law).
      lines("Latency", all, [{ name: "mean", kind: "read",
        value: (at) => (at.total.requests ? (at.total.load * 1e6) / at.total.requests : undefined) }],
      (us) => micros(Math.round(us)), "per request, at its node", { floor: 100 }));
    heat.show(all);
    replace(rest, hosts(last), nodes(last), operations(last));
  };
  draw(intervals);
  follow(signal, pace, async () => {
    const all = await latest(signal);
    if (!paused && !signal.aborted) draw(all);
  });
  follow(signal, () => STATUS_EVERY, async () => {
    const status = await ask("status.json", {}, signal);
    if (!paused && !signal.aborted) replace(space, volumes(status));
  });
}
