// Where the bytes of a file are: its stripes, and the seats that hold them.

import { address, ask } from "./ask.js";
import { complain, el, table, visible } from "./dom.js";
import { readable } from "./files.js";
import { share } from "./overview.js";
import { size } from "./units.js";

// Stripes that are drawn; behind them it goes on in the same way.
const DRAWN = 240;

// Colours go round; the number is what tells seats apart.
function colour(element, column) {
  element.style.borderBottomColor = `hsl(${(column * 137) % 360} 60% 50%)`;
  return element;
}

function stripes(file) {
  const all = Math.ceil(file.size / file.stripe_bytes);
  const drawn = Math.min(all, DRAWN);
  const cells = Array.from({ length: drawn }, (_, stripe) => {
    const column = stripe % file.width;
    const seat = file.seats[column];
    const item = el("li", { title: `stripe ${stripe}: seat ${seat.seat}, node ${seat.node} on ${seat.host}` }, String(seat.seat));
    return colour(item, column);
  });
  const rest = all > drawn ? ` The first ${drawn} of ${all} stripes are drawn; it goes on in the same way.` : "";
  return el("section", {}, el("h2", {}, "Stripes, from the file's beginning on"),
    el("p", {}, `Each is ${size(file.stripe_bytes)} and has the number of the seat that holds it; after ${file.width} it begins again.${rest}`),
    el("ol", { class: "stripes", "aria-label": `Seats of the first ${drawn} stripes` }, cells));
}

function seats(file) {
  const rows = file.seats.map((seat, column) => [colour(el("span", { class: "swatch" }, String(seat.seat)), column),
    String(seat.node), seat.host, String(seat.volume), size(seat.data_bytes),
    share(seat.data_bytes, seat.full_bytes, `data of seat ${seat.seat}`), visible(seat.subfile ?? "-")]);
  return el("section", {}, table("Seats: data that is there, of what there would be without holes",
    ["Seat", "Node", "Host", "Volume", "Data", "Of all", "Subfile"], [4], rows));
}

function facts(file) {
  const pairs = [["Kind", file.kind], ["Size", size(file.size)], ["Stripe", size(file.stripe_bytes)],
    ["Seats used", `${file.width} of ${file.seats_of_partition}`], ["Inode", file.inode], ["Home", `node ${file.home}`]];
  if (file.partition) pairs.push(["Partition", `${file.partition.id}, on nodes ${file.partition.nodes.join(", ")}`]);
  if (file.pinned) pairs.push(["Pinned", "stays however full the volumes are"]);
  return el("dl", { class: "facts" }, pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
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
        ? `New files in here get stripes of ${size(file.stripe_bytes)} over ${file.width} seats, unless told otherwise.`
        : "It has no content of its own."));
    } else if (file.size === 0) {
      body.append(el("p", {}, "It is empty: no seat holds anything of it."));
    } else {
      body.append(stripes(file), seats(file));
    }
  } catch (error) {
    if (!signal.aborted) complain(`${readable(argument)}: ${error.message}`);
  }
}
