// Elements out of text. Names are hostile: everything that is not an element becomes a text node.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

export const el = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);

export const svg = (name, attributes, ...children) =>
  fill(document.createElementNS(SVG, name), attributes, children);

// What is not seen, or turns what is behind it round, is shown by its number: no two names look the same that are not.
export const visible = (text) =>
  text.replace(/[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
    (letter) => `⟨U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

export const byId = (id) => document.getElementById(id);

export function say(text) {
  byId("says").textContent = text;
}

export function complain(text) {
  const place = byId("trouble");
  if (place.textContent !== text) place.textContent = text;
}

// A table whose cells are texts or elements; the first of a row is its head. A head is a text, or a label with the
// element that shows it and how the column is sorted. `right` are columns of numbers. On small
// screens each row is a card, in which cells have the names of their columns.
export function table(caption, heads, right, rows) {
  const head = heads.map((one) => one.label ?? one);
  const side = (column) => (right.includes(column) ? "n" : undefined);
  const cell = (content, column) =>
    column === 0
      ? el("th", { scope: "row", class: side(column), "data-label": head[0] === "Name" ? undefined : head[0] }, content)
      : el("td", { class: side(column) ?? (head[column] ? undefined : "all"), "data-label": head[column] || undefined }, content);
  return el(
    "div",
    { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    el(
      "table",
      { class: "cards" },
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, heads.map((one, column) =>
        one ? el("th", { scope: "col", class: side(column), "aria-sort": one.sort }, one.content ?? one) : el("td", {})))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell)))),
    ),
  );
}

// Puts others in the place of what is there, unless somebody is using it just now, or it has been opened.
export function replace(place, ...children) {
  const open = [...place.querySelectorAll("details")].map((details) => details.open);
  const focused = place.contains(document.activeElement) ? document.activeElement : undefined;
  const marks = focused && [focused.tagName, [...place.querySelectorAll(focused.tagName)].indexOf(focused)];
  const left = [...place.querySelectorAll(".wide")].map((wide) => wide.scrollLeft);
  place.replaceChildren(...children.flat(Infinity).filter(Boolean));
  place.querySelectorAll("details").forEach((details, index) => (details.open = open[index] ?? details.open));
  place.querySelectorAll(".wide").forEach((wide, index) => (wide.scrollLeft = left[index] ?? 0));
  if (marks) place.querySelectorAll(marks[0])[marks[1]]?.focus({ preventScroll: true });
}

// Asks before something is done that cannot be undone.
export function agree(question, action) {
  return new Promise((done) => {
    const dialog = el(
      "dialog",
      { "aria-labelledby": "question", close: () => { done(dialog.returnValue === "yes"); dialog.remove(); } },
      el("p", { id: "question" }, question),
      el("div", { class: "bar" },
        el("button", { autofocus: true, click: () => dialog.close("no") }, "Leave it"),
        el("button", { class: "bad", click: () => dialog.close("yes") }, action)),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}
