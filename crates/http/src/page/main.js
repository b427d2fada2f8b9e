// Which view is shown, by what is behind the # of the address.

import { ask } from "./ask.js";
import { byId, complain, el, say } from "./dom.js";
import { activity } from "./activity.js";
import { files } from "./files.js";
import { overview } from "./overview.js";
import { report } from "./report.js";
import { where } from "./where.js";
import { date } from "./units.js";

const VIEWS = { overview, files, where, activity, report };
const OF_ALL = ["overview", "activity", "report"];

let key;
// What ends the view that is shown: its requests, and its turns.
let shown = new AbortController();

function route() {
  const [name, argument] = [location.hash.slice(1).split("=")[0], location.hash.split("=").slice(1).join("=")];
  const allowed = VIEWS[name] && (key.whole || !OF_ALL.includes(name));
  return { name: allowed ? name : key.whole ? "overview" : "files", argument };
}

function show(isFirst) {
  if (location.hash === "#main") return;
  shown.abort();
  shown = new AbortController();
  const { name, argument } = route();
  for (const link of document.querySelectorAll("header nav a")) {
    const own = link.hash.slice(1) === (name === "where" ? "files" : name);
    if (own) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  complain("");
  say("");
  const heading = el("h1", { tabindex: "-1" });
  const body = el("div", {});
  byId("main").replaceChildren(heading, body);
  VIEWS[name]({ heading, body, argument, key, signal: shown.signal });
  document.title = `${heading.textContent} · ${key.formation} · Bivouac`;
  // Who moved here with the keyboard goes on from the new heading.
  if (!isFirst) heading.focus();
}

async function begin() {
  try {
    key = await ask("key.json");
  } catch (error) {
    complain(error.message);
    return;
  }
  byId("formation").textContent = key.formation;
  if (!key.whole) document.querySelectorAll(".of-all").forEach((item) => item.remove());
  const what = key.read_only ? "reads" : "reads and changes";
  const end = key.expires ? `, until ${date(key.expires)}` : "";
  byId("key").textContent = `Your key ${what} ${key.path}${end}.`;
  addEventListener("hashchange", () => show(false));
  show(true);
}

begin();
