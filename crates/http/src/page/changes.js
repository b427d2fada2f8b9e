// Uploads, new directories, deletions. Nothing is replaced or deleted unless somebody says so.

import { change, put } from "./ask.js";
import { agree, complain, el, say, visible } from "./dom.js";
import { percent, size } from "./units.js";

const RESERVED = ".bivouac-";

// Why a name cannot be one, if it cannot.
function wrong(name) {
  if (!name.trim()) return "a name is missing";
  if (name === "." || name === ".." || name.includes("/") || name.includes("\0")) return `${name} is no name`;
  if (name.startsWith(RESERVED)) return `names that begin with ${RESERVED} are the server's own`;
  return undefined;
}

// Runs what may fail, and says why it did.
async function tried(work) {
  complain("");
  try {
    return await work();
  } catch (error) {
    if (error.name !== "AbortError") complain(error.message);
    return false;
  }
}

// Removes files, links and empty directories, each with its address and the text that stands for it.
export async function remove(items, done) {
  const [{ shown, isDir }] = items;
  const what = items.length > 1
    ? `${items.length} entries; directories only if they are empty`
    : isDir ? `the directory ${shown}, if it is empty` : shown;
  if (!(await agree(`Delete ${what}? It cannot be undone.`, "Delete"))) return;
  const failed = [];
  complain("");
  for (const item of items) {
    try {
      // A slash at the end would delete the directory with everything in it.
      await change("DELETE", item.href.replace(/\/$/, ""));
    } catch (error) {
      failed.push(`${item.shown}: ${error.message}`);
    }
  }
  const deleted = items.length - failed.length;
  if (deleted) say(items.length > 1 ? `${deleted} of ${items.length} entries are deleted.` : `${shown} is deleted.`);
  await done();
  if (failed.length) complain(failed.join("; "));
}

async function upload(dir, file, place) {
  const why = wrong(file.name);
  if (why) throw new Error(why);
  const stop = new AbortController();
  const shown = visible(file.name);
  const bar = el("progress", { max: Math.max(file.size, 1), value: 0, "aria-label": `Upload of ${shown}` });
  const text = el("span", {}, shown);
  const going = el("div", { class: "going" }, text,
    el("button", { click: () => stop.abort(), "aria-label": `Give the upload of ${shown} up` }, "Give up"), bar);
  place.append(going);
  const progress = (sent) => {
    bar.value = sent;
    text.textContent = `${shown}: ${size(sent)} of ${size(file.size)}, ${percent(file.size ? sent / file.size : 1)}`;
  };
  const path = dir + encodeURIComponent(file.name);
  try {
    try {
      await put(path, file, false, progress, stop.signal);
    } catch (error) {
      if (error.status !== 412) throw error;
      if (!(await agree(`${shown} is there already. Replace it?`, "Replace"))) return;
      await put(path, file, true, progress, stop.signal);
    }
    say(`${shown} is uploaded.`);
  } finally {
    going.remove();
  }
}

export function changes(dir, done, signal) {
  const place = el("div", {});
  const send = async (list) => {
    // Each is a file of its own: one that fails keeps no other back.
    const failed = [];
    complain("");
    for (const file of list) {
      if (signal.aborted) return;
      try {
        await upload(dir, file, place);
      } catch (error) {
        if (error.name !== "AbortError") failed.push(`${visible(file.name)}: ${error.message}`);
      }
      if (!signal.aborted) await done();
    }
    if (failed.length) complain(failed.join("; "));
  };
  const input = el("input", { type: "file", multiple: true, id: "uploaded", change: async () => {
    const list = [...input.files];
    await send(list);
    input.value = "";
  } });
  const drop = el("div", {
    class: "drop",
    dragover: (event) => { event.preventDefault(); drop.classList.add("over"); },
    dragleave: () => drop.classList.remove("over"),
    drop: (event) => { event.preventDefault(); drop.classList.remove("over"); send([...event.dataTransfer.files]); },
  }, el("p", {}, el("label", { for: "uploaded" }, "Upload files, or drop them here")), input, place);
  const name = el("input", { type: "text", "aria-label": "Name of a new directory", placeholder: "Name of a new directory", autocomplete: "off" });
  const make = async (event) => {
    event.preventDefault();
    const why = wrong(name.value);
    if (why) return complain(why);
    const text = name.value;
    const made = await tried(async () => {
      await change("MKCOL", `${dir}${encodeURIComponent(text)}`);
      return true;
    });
    if (!made) return undefined;
    name.value = "";
    await done();
    return say(`${text} is made.`);
  };
  return el("details", {}, el("summary", {}, "Upload files, make a directory"), drop,
    el("form", { class: "bar", submit: make }, name, el("button", {}, "Make directory")));
}
