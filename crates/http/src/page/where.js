// Where the bytes of a file are: its stripes, and the targets that hold them.

import { address, ask } from "./ask.js";
import { complain, el, table, visible } from "./dom.js";
import { readable } from "./files.js";
import { share } from "./overview.js";
import { size } from "./units.js";

// Stripes that are drawn; behind them it goes on in the same way.
const DRAWN = 240;

// Colours go round; the number is what tells targets apart.
function colour(element, column) {
  element.style.borderBottomColor = `hsl(${(column * 137) % 360} 60% 50%)`;
  return element;
}

function stripes(file) {
  const all = Math.ceil(file.size / file.stripe_bytes);
  const drawn = Math.min(all, DRAWN);
  const cells = Array.from({ length: drawn }, (_, stripe) => {
    const column = stripe % file.width;
    const target = file.targets[column];
    const item = el("li", { title: `stripe ${stripe}: target ${target.target}, node ${target.node} on ${target.host}` }, String(target.target));
    return colour(item, column);
  });
  const rest = all > drawn ? ` The first ${drawn} of ${all} stripes are drawn; it goes on in the same way.` : "";
  return el("section", {}, el("h2", {}, "Stripes, from the file's beginning on"),
    el("p", {}, `Each is ${size(file.stripe_bytes)} and has the number of the target that holds it; after ${file.width} it begins again.${rest}`),
    el("ol", { class: "stripes", "aria-label": `Targets of the first ${drawn} stripes` }, cells));
}

function targets(file) {
  const rows = file.targets.map((target, column) => [colour(el("span", { class: "swatch" }, String(target.target)), column),
    String(target.node), target.host, String(target.volume), size(target.data_bytes),
    share(target.data_bytes, target.full_bytes, `data of target ${target.target}`), visible(target.subfile ?? "-")]);
  return el("section", {}, table("Targets: data that is there, of what there would be without holes",
    ["Target", "Node", "Host", "Volume", "Data", "Of all", "Subfile"], [4], rows));
}

function facts(file) {
  const pairs = [["Kind", file.kind], ["Size", size(file.size)], ["Stripe", size(file.stripe_bytes)],
    ["Targets used", `${file.width} of ${file.targets_of_partition}`], ["Inode", file.inode], ["Home", `node ${file.home}`]];
  if (file.partition) pairs.push(["Partition", `${file.partition.id}, on nodes ${file.partition.nodes.join(", ")}`]);
  if (file.pinned) pairs.push(["Pinned", "stays however full the volumes are"]);
  return el("dl", { class: "facts" }, pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", { class: value.length > 12 ? "long" : undefined }, value))));
}

export async function where({ heading, body, argument, signal }) {
  heading.textContent = `Where ${readable(argument)} is`;
  const parent = argument.replace(/[^/]*\/?$/, "");
  const bar = el("div", { class: "bar" }, el("a", { href: `#files=${parent}` }, "Back to the directory"));
  body.append(bar);
  try {
    const file = await ask("explain.json", { path: argument }, signal);
    if (file.kind === "file") bar.append(el("a", { href: address(argument), download: true }, "Download"));
    body.append(facts(file));
    if (file.kind !== "file") {
      body.append(el("p", {}, file.kind === "directory"
        ? `New files in here get stripes of ${size(file.stripe_bytes)} over ${file.width} targets, unless told otherwise.`
        : "It has no content of its own."));
    } else if (file.size === 0) {
      body.append(el("p", {}, "It is empty: no target holds anything of it."));
    } else {
      body.append(stripes(file), targets(file));
    }
  } catch (error) {
    if (!signal.aborted) complain(`${readable(argument)}: ${error.message}`);
  }
}
