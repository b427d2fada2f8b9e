// Requests to the server that this page is from. Paths come from names that anybody may have given, so every address is
// made of this place and a path, and leads nowhere else.

export const PLACE = "/.bivouac-page/";

export function address(path) {
  if (!path.startsWith("/")) throw new Error(`${path} is no path`);
  return location.origin + path;
}

export class Refused extends Error {
  constructor(status, text) {
    super(text.trim() || `the server answered with ${status}`);
    this.status = status;
  }
}

async function send(path, options) {
  let answer;
  try {
    answer = await fetch(address(path), { cache: "no-store", redirect: "error", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server does not answer; is the formation still up?");
  }
  if (!answer.ok) throw new Refused(answer.status, await answer.text());
  return answer;
}

export async function ask(part, parameters = {}, signal = undefined) {
  const query = new URLSearchParams(parameters).toString().replaceAll("+", "%20");
  const answer = await send(PLACE + part + (query ? `?${query}` : ""), { signal });
  return answer.json();
}

// As `ask`, of what changes something.
export async function order(method, part, parameters) {
  const query = new URLSearchParams(parameters).toString().replaceAll("+", "%20");
  const answer = await send(`${PLACE}${part}?${query}`, { method });
  return answer.json();
}

export const change = (method, path) => send(path, { method });

// Entries of a directory, an object a line, until there are `most`. One of a million names is not fetched whole.
export async function entries(path, most, signal) {
  const cut = new AbortController();
  signal?.addEventListener("abort", () => cut.abort());
  const answer = await send(`${path}?json`, { signal: cut.signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  const found = [];
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    rest += value ?? "";
    const lines = rest.split("\n");
    rest = done ? "" : lines.pop();
    for (const line of lines) {
      if (!line.startsWith("{")) continue;
      if (found.length === most) {
        cut.abort();
        return { found, complete: false };
      }
      found.push(JSON.parse(line.replace(/,$/, "")));
    }
    if (done) return { found, complete: true };
  }
}

// Puts a file, and says how far it is. `onto` is whether one that is there may be replaced.
export function put(path, file, onto, progress, signal) {
  return new Promise((done, failed) => {
    const request = new XMLHttpRequest();
    request.open("PUT", address(path));
    if (!onto) request.setRequestHeader("If-None-Match", "*");
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.upload.onprogress = (event) => progress(event.loaded);
    request.onload = () =>
      request.status < 300 ? done() : failed(new Refused(request.status, request.responseText));
    request.onerror = () => failed(new Error("the connection broke off; nothing was changed"));
    request.onabort = () => failed(new DOMException("given up", "AbortError"));
    signal.addEventListener("abort", () => request.abort());
    request.send(file);
  });
}
