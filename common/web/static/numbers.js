// Numbers and times in words, with their units.
// Knows nothing of what they count.

const STAMP = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" };
const minus = (text) => text.replace("-", "−");

export const whole = (value) => Math.round(value).toLocaleString("en-GB");
export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
export const signed = (value, digits = 4) => minus((value < 0 ? "" : "+") + value.toFixed(digits));
export const signedPercent = (share) => minus(`${share < 0 ? "" : "+"}${(100 * share).toFixed(0)} %`);
export const points = (share, sign = true) => minus(`${sign && share >= 0 ? "+" : ""}${(100 * share).toFixed(1)}`);
export const count = (value, one, many = `${one}s`) => `${whole(value)} ${value === 1 ? one : many}`;
export const short = (hash) => hash.slice(0, 12);

export function plain(value) {
  // As few digits as tell it.
  return minus(String(Number(value.toPrecision(3))));
}

export function milliseconds(value) {
  return `${value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : whole(value)} ms`;
}

export function moment(seconds) {
  const options = { day: "numeric", month: "long", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" };
  return new Date(1000 * seconds).toLocaleString("en-GB", options);
}

export function size(bytes) {
  return bytes < 1e3 ? `${bytes} B` : bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

export const when = (iso) => moment(Date.parse(iso) / 1000);

export const stamp = (iso) => new Date(iso).toLocaleString("sv-SE", { ...STAMP, timeZoneName: "short" }); // in the order of time

export function duration(seconds) {
  if (seconds < 60) return `${plain(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function clock(seconds) {
  return new Date(1000 * seconds).toLocaleTimeString("en-GB");
}
