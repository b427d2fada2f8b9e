// Directories: what is in them, what is found below them, and the way to change them.

import { address, ask, entries } from "./ask.js";
import { changes, remove } from "./changes.js";
import { complain, el, say, table, visible } from "./dom.js";
import { links, share } from "./shares.js";
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

// What is said of entries that are neither files nor directories.
const KINDS = { link: "link", other: "neither file nor directory", unknown: "its node does not answer" };

// Ways to sort. Directories come first in all of them, and names decide between equals.
const SORTS = {
  Name: () => 0,
  Size: (a, b) => (a.size ?? 0) - (b.size ?? 0),
  Changed: (a, b) => (a.modified ?? 0) - (b.modified ?? 0),
};

function sorted(items, by, down) {
  const compare = (a, b) => (SORTS[by](a.entry, b.entry) || order.compare(a.shown, b.shown)) * (down ? -1 : 1);
  return [...items].sort((a, b) =>
    (b.entry.type === "directory") - (a.entry.type === "directory") || compare(a, b));
}

// An item is an entry with its address and the text that stands for it.
function row({ entry, href, shown }, key, chosen, done) {
  const isDir = entry.type === "directory";
  const kind = KINDS[entry.type] ? el("span", { class: "dim" }, ` (${KINDS[entry.type]})`) : undefined;
  // Nothing is known of an entry whose node does not answer, not even whether it is a directory.
  if (entry.type === "unknown") return [[shown, kind], "", "", ""];
  const link = isDir
    ? el("a", { href: `#files=${href}` }, `${shown}/`)
    : el("a", { href: address(href), download: true }, shown);
  const box = el("input", { type: "checkbox", "aria-label": `Select ${shown}`, change: () => chosen.set(href, box.checked) });
  box.checked = chosen.has(href);
  const where = el("a", { href: `#where=${href}`, "aria-label": `Where ${shown} is` }, "Where");
  const gone = key.read_only || href === key.href
    ? undefined
    : el("button", { class: "bad quiet", "aria-label": `Delete ${shown}`, click: () => remove([{ href, shown, isDir }], done) }, "Delete");
  const shared = key.shares && (isDir || entry.type === "file") && href !== key.href
    ? el("button", { class: "link", "aria-label": `Share ${shown}`, click: () => share([{ href, shown }], key) }, "Share")
    : undefined;
  return [[box, link, kind], entry.type === "file" ? size(entry.size) : "", el("time", {}, date(entry.modified)),
    el("div", { class: "bar" }, where, shared, gone)];
}

// The entries that are selected, and what can be done with all of them.
class Selection {
  constructor(items, key, done) {
    this.items = items.filter((item) => item.entry.type !== "unknown");
    this.hrefs = new Set();
    this.text = el("span", { "aria-live": "polite" });
    this.all = el("button", { click: () => this.selectAll() }, "Select all");
    this.fetch = el("button", { click: () => this.download() }, "Download");
    this.share = key.shares ? el("button", { click: () => share(this.shareable(), key) }, "Share") : undefined;
    this.remove = key.read_only ? undefined : el("button", { class: "bad", click: () => remove(this.chosen(), done) }, "Delete");
    this.element = el("div", { class: "bar" }, this.all, this.text, this.fetch, this.share, this.remove);
    this.tell();
  }

  has(href) {
    return this.hrefs.has(href);
  }

  set(href, isChosen) {
    if (isChosen) this.hrefs.add(href);
    else this.hrefs.delete(href);
    this.tell();
  }

  selectAll() {
    const every = this.hrefs.size === this.items.length;
    this.hrefs = new Set(every ? [] : this.items.map((item) => item.href));
    this.tell();
    this.redraw?.();
  }

  chosen() {
    return this.items.filter((item) => this.hrefs.has(item.href))
      .map(({ entry, href, shown }) => ({ href, shown, isDir: entry.type === "directory" }));
  }

  // Links that lead elsewhere are shared by what they lead to.
  shareable() {
    const own = this.items.filter(({ entry, href }) => this.hrefs.has(href) && ["file", "directory"].includes(entry.type));
    return own.map(({ href, shown }) => ({ href, shown }));
  }

  tell() {
    const chosen = this.chosen();
    const some = chosen.length > 0;
    this.text.textContent = some ? `${chosen.length} selected` : "";
    this.all.textContent = some && chosen.length === this.items.length ? "Select none" : "Select all";
    this.fetch.hidden = !some;
    if (this.share) this.share.hidden = this.shareable().length === 0;
    if (this.remove) this.remove.hidden = !some;
  }

  download() {
    for (const { href, isDir } of this.chosen()) {
      const link = el("a", { href: address(isDir ? `${href}?tar` : href), download: true });
      document.body.append(link);
      link.click();
      link.remove();
    }
  }
}

// Rows of a table that can be sorted and selected, and a button for those that are left.
function listed(caption, items, key, done) {
  const chosen = new Selection(items, key, done);
  const rows = el("div", {});
  let [by, down, count] = ["Name", false, SHOWN];
  const head = (name) => {
    const own = by === name;
    const turn = () => {
      [by, down] = [name, own ? !down : name !== "Name"];
      show();
      rows.querySelector(`[data-sort="${name}"]`).focus();
    };
    return { label: name, sort: own ? (down ? "descending" : "ascending") : "none",
      content: el("button", { class: "quiet", "data-sort": name, click: turn }, `${name}${own ? (down ? " ▾" : " ▴") : ""}`) };
  };
  const show = () => {
    const heads = [head("Name"), head("Size"), head("Changed"), ""];
    const shown = sorted(items, by, down).slice(0, count);
    rows.replaceChildren(table(caption, heads, [1], shown.map((item) => row(item, key, chosen, done))));
    if (items.length > count) {
      rows.append(el("button", { class: "more", click: () => { count += SHOWN; show(); } }, `Show more: ${count} of ${items.length} are here`));
    }
  };
  chosen.redraw = show;
  show();
  return el("div", {}, chosen.element, rows);
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
      const items = found.map((entry) => ({ entry, href: entry.href, shown: visible(entry.path.replace(/\/$/, "")) }));
      if (items.length) place.append(listed("Found", items, key, () => submit(event)));
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
    const items = found.map((entry) => ({
      entry, href: `${dir}${entry.href}${entry.type === "directory" ? "/" : ""}`, shown: visible(entry.name) }));
    place.replaceChildren(items.length ? listed("Entries", items, key, done) : el("p", {}, "Nothing is in here."));
    if (!complete) place.append(el("p", {}, `These are ${FETCHED_MAX} of more. Search finds the others.`));
    complain("");
  } catch (error) {
    if (!signal.aborted) complain(`${readable(dir)}: ${error.message}`);
  }
}

// A key for a file has nothing else.
function alone(key, body, signal) {
  const shown = readable(key.href);
  body.append(el("div", { class: "bar" }, el("a", { href: address(key.href), download: true }, `Download ${shown}`),
    el("a", { href: `#where=${key.href}` }, "Where it is"),
    key.shares ? el("button", { click: () => share([{ href: key.href, shown }], key) }, "Share") : ""));
  if (key.shares) body.append(links(key, signal));
}

export function files({ heading, body, argument, key, signal }) {
  heading.textContent = "Files";
  if (!key.href.endsWith("/")) {
    alone(key, body, signal);
    return;
  }
  const wanted = argument.startsWith(key.href) ? argument : key.href;
  const dir = wanted.endsWith("/") ? wanted : `${wanted}/`;
  const place = el("div", {}, el("p", { class: "dim" }, "…"));
  const done = () => show(dir, key, signal, place, done);
  const changing = key.read_only ? undefined : changes(dir, done, signal);
  const whole = el("a", { href: address(`${dir}?tar`), download: true }, "Download this directory (tar)");
  const shared = key.shares && dir !== "/"
    ? el("button", { class: "link", click: () => share([{ href: dir, shown: readable(dir) }], key) }, "Share this directory")
    : "";
  body.append(crumbs(key, dir), el("div", { class: "bar" }, whole, shared),
    search({ dir, key, signal, place, done }), changing ?? "", key.shares ? links(key, signal) : "", place);
  done();
}
