// Numbers as people read them; units as the commands write them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

export function size(bytes) {
  let value = Math.max(bytes ?? 0, 0);
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

export const bandwidth = (bytes) => `${size(bytes)}/s`;

export function rate(value) {
  if (value < 0.05) return "0";
  if (value < 9.95) return value.toFixed(1);
  if (value < 9999.5) return value.toFixed(0);
  return value < 9999500 ? `${(value / 1e3).toFixed(0)}k` : `${(value / 1e6).toFixed(0)}M`;
}

export function micros(us) {
  if (us === null || us === undefined) return "-";
  if (us < 1000) return `${us} µs`;
  return us < 1e6 ? `${(us / 1e3).toFixed(us < 1e4 ? 1 : 0)} ms` : `${(us / 1e6).toFixed(1)} s`;
}

export const percent = (share) => `${Math.round(share * 100)} %`;

export const clock = (unixMs) => new Date(unixMs).toLocaleTimeString();

export const date = (unixS) => new Date(unixS * 1000).toLocaleString();

export function span(ms) {
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  const hours = Math.floor(seconds / 3600);
  return hours < 48 ? `${hours} h ${Math.floor((seconds % 3600) / 60)} min` : `${Math.floor(hours / 24)} days`;
}
