// What is copied from and to site storage: stages, and what is still to be flushed.

import { ask } from "./ask.js";
import { BYTES, lines } from "./charts.js";
import { el, replace, table, visible } from "./dom.js";
import { follow, latest, pace, state } from "./overview.js";
import { percent, size, span } from "./units.js";

const JOBS_EVERY = 2000;

function done(job) {
  const share = job.bytes_found ? job.bytes / job.bytes_found : job.files_found ? job.files / job.files_found : 0;
  const what = `job ${job.job}: ${percent(share)} of what was found is copied`;
  return el("div", { class: "share" }, el("progress", { max: 1, value: share, "aria-label": what }), percent(share));
}

function jobs(all) {
  const silent = all.filter((one) => one.silent);
  const list = all.filter((one) => !one.silent);
  const missing = silent.length
    ? el("div", { class: "warnings" }, el("p", {}, "What is staged on these hosts is not known:"),
      el("ul", {}, silent.map((one) => el("li", {}, visible(`${one.host}: ${one.silent}`)))))
    : "";
  if (!list.length && missing) return el("section", {}, el("h2", {}, "Staging"), missing);
  if (!list.length) return el("section", {}, el("h2", {}, "Staging"), el("p", {}, "No stage was started."));
  const named = list.some((job) => job.host);
  const rows = list.map((job) => [String(job.job), ...(named ? [visible(job.host)] : []), job.way, state(job.state), done(job), `${job.files} of ${job.files_found}`,
    `${size(job.bytes)} of ${size(job.bytes_found)}`, span(Date.now() - job.begun_unix_s * 1000),
    job.transfers.map((one) => el("div", {}, visible(`${one.src} → ${one.dst}`)))]);
  const head = ["Job", ...(named ? ["Host"] : []), "Way", "State", "Copied", "Files", "Bytes", "Since", "What"];
  const numbers = [4, 5, 6].map((column) => column + (named ? 1 : 0));
  return el("section", {}, el("h2", {}, "Staging"), missing, table("Stages", head, numbers, rows));
}

function flushing(status) {
  const left = status.unflushed;
  const place = [el("h2", {}, "Flushing")];
  if (!left) return el("section", {}, place, el("p", {}, "No partition has a source: nothing is to be flushed."));
  const count = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;
  const texts = [];
  if (left.files) texts.push(`${count(left.files, "name")} and about ${size(left.bytes)} of content are not at their sources yet.`);
  if (left.deletions) texts.push(`${count(left.deletions, "deleted name")} are still at their sources.`);
  const text = texts.join(" ") || "Everything is at its source.";
  if (left.failing.length) {
    place.push(el("div", { class: "warnings" }, el("p", {}, "The last time this could not be flushed:"),
      el("ul", {}, left.failing.map((why) => el("li", {}, visible(why))))));
  }
  return el("section", {}, place, el("p", {}, text));
}

export function activity({ heading, body, signal }) {
  heading.textContent = "Activity";
  const [staging, flushes, chart] = [el("div", {}), el("div", {}), el("div", {})];
  body.append(staging, flushes, chart);
  follow(signal, () => JOBS_EVERY, async () => {
    const list = await ask("stage.json", {}, signal);
    replace(staging, jobs(list));
  });
  follow(signal, () => Math.max(JOBS_EVERY, pace()), async () => {
    const all = await latest(signal);
    replace(flushes, flushing(await ask("status.json", {}, signal)));
    const known = all.filter((at) => at.unflushed_bytes !== null);
    const queues = [{ name: "not sent by mounts", kind: "written", value: (at) => at.unsent_bytes }];
    if (known.length) queues.unshift({ name: "not flushed", kind: "read", value: (at) => at.unflushed_bytes ?? 0 });
    replace(chart, lines("Data not written yet", all, queues, size, "bytes", BYTES));
  });
}
