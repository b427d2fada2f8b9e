// What the job did until now, as `bivouac report` says it. The page of the report runs nothing, and has a frame of its own.

import { address, PLACE } from "./ask.js";
import { el, say } from "./dom.js";

export function report({ heading, body }) {
  heading.textContent = "Report";
  const page = address(`${PLACE}report.html`);
  const frame = el("iframe", { title: "The report", src: page, load: () => say("The report is there.") });
  const again = () => {
    say("Asking all nodes…");
    frame.src = page;
  };
  body.append(el("div", { class: "bar" }, el("button", { click: again }, "Make it again"),
    el("a", { href: page, target: "_blank", rel: "noreferrer" }, "Alone, in a new window"),
    el("a", { href: address(`${PLACE}report.json`), download: "report.json" }, "As JSON, for report --compare")), frame);
  say("Asking all nodes…");
}
