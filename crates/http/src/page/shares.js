// Links for others: each reads one file or directory until it ends, and needs no key besides.

import { ask, order } from "./ask.js";
import { agree, byId, complain, el, table, visible } from "./dom.js";
import { date } from "./units.js";

const PART = "shares.json";
const HOUR = 3600;
const TIMES = [["1 hour", HOUR], ["8 hours", 8 * HOUR], ["1 day", 24 * HOUR], ["7 days", 7 * 24 * HOUR], ["30 days", 30 * 24 * HOUR]];
const USUAL = 24 * HOUR;
// Entries that are shared at a time.
const TOGETHER_MAX = 16;
// Said where links have changed, for whoever shows them.
const CHANGED = "bivouac-links";

const linkOf = (made) => `${location.protocol}//link:${made.key}@${location.host}${made.href}`;

const isHere = () => /^(localhost|127\.|\[::1\])/.test(location.hostname);

// Where the browser gives no page the clipboard, the selected text is copied.
async function copy(input) {
  input.select();
  try {
    await navigator.clipboard.writeText(input.value);
    return true;
  } catch {
    return document.execCommand("copy");
  }
}

// A link with the button that copies it; `says` is where that is said.
function field(made, shown, says) {
  const input = el("input", { type: "text", readonly: true, value: linkOf(made), "aria-label": `Link to ${shown}`,
    focus: (event) => event.target.select() });
  const button = el("button", { type: "button", "aria-label": `Copy the link to ${shown}`, click: async () => {
    says.classList.remove("failed");
    says.textContent = (await copy(input)) ? `The link to ${shown} is copied.` : "Copy the selected link with the keyboard.";
  } }, "Copy");
  return el("div", { class: "bar" }, input, button);
}

async function end(made, shown) {
  if (!(await agree(`End the link to ${shown}? Whoever has it can open it no more.`, "End the link"))) return;
  try {
    await order("DELETE", PART, { id: made.id });
    complain("");
  } catch (error) {
    complain(error.message);
  }
  dispatchEvent(new Event(CHANGED));
}

// Makes links to entries, each with its address and the text that stands for it, and shows them.
export function share(items, key) {
  const some = items.slice(0, TOGETHER_MAX);
  const what = some.length > 1 ? `${some.length} entries` : some[0].shown;
  const says = el("p", { role: "status" });
  const place = el("div", {});
  const until = el("select", { id: "share-time" }, TIMES.map(([text, seconds]) =>
    el("option", { value: seconds, selected: seconds === USUAL }, text)));
  const make = el("button", { class: "main" }, some.length > 1 ? "Make links" : "Make a link");
  const close = el("button", { type: "button", click: () => dialog.close() }, "Cancel");
  const limits = key.expires ? ` Your own key ends on ${date(key.expires)}, and links with it.` : " It ends with your own key at the latest.";
  const form = el("form", { submit: (event) => { event.preventDefault(); submit(); } },
    el("p", {}, `Whoever has the link can read ${some.length > 1 ? "them" : "it"}, without a key, and change nothing.${limits}`),
    items.length > some.length ? el("p", {}, `The first ${TOGETHER_MAX} of ${items.length} are shared; share their directory to share all.`) : "",
    el("div", { class: "bar" }, el("label", { for: "share-time" }, "Good for"), until),
    el("div", { class: "bar" }, make, close));
  const submit = async () => {
    make.disabled = true;
    says.textContent = "";
    const failed = [];
    const made = [];
    for (const { href, shown } of some) {
      try {
        made.push([await order("PUT", PART, { path: href, seconds: until.value }), shown]);
      } catch (error) {
        failed.push(`${shown}: ${error.message}`);
      }
    }
    make.disabled = false;
    dispatchEvent(new Event(CHANGED));
    if (made.length) {
      form.remove();
      show(made);
    }
    says.classList.toggle("failed", failed.length > 0);
    if (failed.length) says.textContent = failed.join("; ");
  };
  const show = (made) => {
    place.append(...made.map(([one, shown]) => el("div", {}, made.length > 1 ? el("p", { class: "of" }, shown) : "", field(one, shown, says))),
      el("p", {}, `Good until ${date(made[0][0].expires)}. To end it before: Links that you have shared, above the files, or `,
        el("code", {}, `bivouac key revoke --name ${key.formation} ${made[0][0].id}`), made.length > 1 ? " and so on." : "."));
    if (isHere()) {
      place.append(el("p", { class: "warnings" }, `This address, ${location.host}, is known on this machine alone: open the page by an address that others reach, and share there.`));
    }
    place.append(el("div", { class: "bar" }, el("button", { class: "main", type: "button", click: () => dialog.close() }, "Done")));
    place.querySelector("input").focus();
  };
  const dialog = el("dialog", { class: "shares", "aria-labelledby": "share-what", close: () => dialog.remove() },
    el("h2", { id: "share-what" }, `Share ${what}`), form, place, says);
  document.body.append(dialog);
  dialog.showModal();
}

// The links of the viewer's key that have not ended, with what ends them.
export function links(key, signal) {
  const place = el("div", {});
  const says = byId("says");
  const count = el("span", {});
  const details = el("details", { hidden: true }, el("summary", {}, "Links that you have shared", count), place);
  const show = async () => {
    let shares;
    try {
      ({ shares } = await ask(PART, {}, signal));
    } catch (error) {
      if (!signal.aborted) complain(error.message);
      return;
    }
    details.hidden = shares.length === 0;
    count.textContent = ` (${shares.length})`;
    const rows = shares.map((one) => {
      const shown = visible(one.path);
      return [one.gone ? `${shown} (is not there any more)` : shown, el("time", {}, date(one.expires)), field(one, shown, says),
        el("div", { class: "bar" }, el("button", { class: "bad quiet", "aria-label": `End the link to ${shown}`, click: () => end(one, shown) }, "End"))];
    });
    place.replaceChildren(table("Links, by when they end", ["For", "Good until", "Link", ""], [], rows));
  };
  addEventListener(CHANGED, show, { signal });
  show();
  return details;
}
