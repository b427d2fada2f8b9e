// Directories: what is in them, what is found below them, and the way to change them.

import { address, ask, entries } from "./ask.js";
import { changes, remove } from "./changes.js";
import { complain, el, say, table, visible } from "./dom.js";
import { date, size } from "./units.js";

// Entries that are fetched, and shown at once.
const FETCHED_MAX = 5000;
const SHOWN = 500;

const order = new Intl.Collator(undefined, { numeric: true });

// As people read it. What is no UTF-8 stays as it is written.
export function readable(path) {
  return path.split("/").map((name) => {
    try {
      return visible(decodeURIComponent(name));
    } catch {
      return name;
    }
  }).join("/");
}

function crumbs(key, dir) {
  const names = dir.slice(key.href.length).split("/").filter(Boolean);
  const steps = [[key.whole ? "All files" : readable(key.href), key.href]];
  names.forEach((name, at) => steps.push([readable(name), `${key.href}${names.slice(0, at + 1).join("/")}/`]));
  return el("nav", { class: "crumbs", "aria-label": "Directories" }, el("ol", {}, steps.map(([name, href], at) =>
    el("li", {}, at === steps.length - 1
      ? el("span", { "aria-current": "location" }, name)
      : el("a", { href: `#files=${href}` }, name)))));
}

const KINDS = { directory: "directory", link: "link", other: "other" };

function row(entry, href, shown, key, done) {
  const isDir = entry.type === "directory";
  const link = isDir
    ? el("a", { href: `#files=${href}` }, `${shown}/`)
    : el("a", { href: address(href), download: true }, shown);
  const where = el("a", { href: `#where=${href}`, "aria-label": `Where ${shown} is` }, "Where");
  const gone = key.read_only || href === key.href
    ? undefined
    : el("button", { class: "bad", "aria-label": `Delete ${shown}`, click: () => remove(href, shown, isDir, done) }, "Delete");
  return [link, KINDS[entry.type] ?? "", entry.type === "file" ? size(entry.size) : "", date(entry.modified),
    el("div", { class: "bar" }, where, gone)];
}

// Rows of a table, and a button for those that are left.
function listed(caption, rows) {
  const place = el("div", {});
  const show = (count) => {
    place.replaceChildren(table(caption, ["Name", "Kind", "Size", "Changed", ""], [2], rows.slice(0, count).map((make) => make())));
    if (rows.length > count) {
      place.append(el("button", { click: () => show(count + SHOWN) }, `Show more: ${count} of ${rows.length} are here`));
    }
  };
  show(SHOWN);
  return place;
}

function search({ dir, key, signal, place, done }) {
  const input = el("input", { type: "search", name: "words", "aria-label": "Words in names, in this directory and below", placeholder: "Words in names, here and below" });
  const submit = async (event) => {
    event.preventDefault();
    if (!input.value.trim()) return done();
    say("Searching…");
    try {
      const { found, looked, complete } = await ask("find.json", { dir, words: input.value }, signal);
      const text = `${found.length} found, ${looked} looked at${complete ? "" : "; there may be more: search in a directory further down, or with more words"}`;
      place.replaceChildren(el("p", {}, text, " ", el("button", { click: () => { input.value = ""; done(); } }, "Show the directory")));
      if (found.length) place.append(listed("Found", found.map((entry) => () => row(entry, entry.href, visible(entry.path.replace(/\/$/, "")), key, () => submit(event)))));
      say(text);
      complain("");
    } catch (error) {
      if (!signal.aborted) complain(error.message);
    }
  };
  return el("form", { class: "bar", role: "search", submit }, input, el("button", {}, "Search"));
}

async function show(dir, key, signal, place, done) {
  try {
    const { found, complete } = await entries(dir, FETCHED_MAX, signal);
    found.sort((a, b) => (b.type === "directory") - (a.type === "directory") || order.compare(a.name, b.name));
    const rows = found.map((entry) => () =>
      row(entry, `${dir}${entry.href}${entry.type === "directory" ? "/" : ""}`, visible(entry.name), key, done));
    place.replaceChildren(rows.length ? listed("Entries", rows) : el("p", {}, "Nothing is in here."));
    if (!complete) place.append(el("p", {}, `These are ${FETCHED_MAX} of more. Search finds the others.`));
    complain("");
  } catch (error) {
    if (!signal.aborted) complain(`${readable(dir)}: ${error.message}`);
  }
}

// A key for a file has nothing else.
function alone(key, body) {
  const shown = readable(key.href);
  body.append(el("div", { class: "bar" }, el("a", { href: address(key.href), download: true }, `Download ${shown}`),
    el("a", { href: `#where=${key.href}` }, "Where it is")));
}

export function files({ heading, body, argument, key, signal }) {
  heading.textContent = "Files";
  if (!key.href.endsWith("/")) {
    alone(key, body);
    return;
  }
  const wanted = argument.startsWith(key.href) ? argument : key.href;
  const dir = wanted.endsWith("/") ? wanted : `${wanted}/`;
  const place = el("div", {}, el("p", { class: "dim" }, "…"));
  const done = () => show(dir, key, signal, place, done);
  const changing = key.read_only ? undefined : changes(dir, done, signal);
  body.append(crumbs(key, dir), search({ dir, key, signal, place, done }), changing ?? "", place);
  done();
}
