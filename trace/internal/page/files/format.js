// Bytes are shown in MiB; the exact number is each element's title and value.

const MiB = 1048576;
const whole = new Intl.NumberFormat("en");
const two = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

const count = (n) => whole.format(n);
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
const exactly = (n) => plural(n, "byte");

function mib(n) {
  const v = n / MiB;
  if (n !== 0 && Math.abs(v) < 0.01) return `${v.toPrecision(1)} MiB`;
  return `${two.format(v)} MiB`;
}

// bytes returns an amount of memory as an element.
const bytes = (n) => el("data", { value: n, title: exactly(n) }, mib(n));

const percent = (part, all) => (all > 0 ? `${((100 * part) / all).toFixed(part === all ? 0 : 1)} %` : "–");

// duration formats a time in µs, in a unit that fits the rounded value.
function duration(us) {
  if (us < 999.5) return `${us.toFixed(0)} µs`;
  if (us < 999500) return `${(us / 1000).toPrecision(3)} ms`;
  if (us < 59.95e6) return `${(us / 1e6).toPrecision(3)} s`;
  const s = Math.round(us / 1e6);
  return `${Math.floor(s / 60)} min ${s % 60} s`;
}

// niceStep returns a distance between marks, 1, 2 or 5 times a power of ten, of which at most n fit
// into range.
function niceStep(range, n) {
  const rough = Math.max(range / n, 1e-9), unit = 10 ** Math.floor(Math.log10(rough));
  for (const f of [1, 2, 5, 10]) if (f * unit >= rough) return f * unit;
  return rough;
}

// ticks returns at most n round numbers between two numbers, at least least apart, with distinct
// texts.
function ticks(from, to, n, { suffix = "", least = 0 } = {}) {
  const step = Math.max(niceStep(to - from, n), least), digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const format = new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const list = [];
  for (let i = Math.ceil(from / step - 1e-9) + 0; i * step <= to * (1 + 1e-12); i++) list.push({ at: i * step, text: format.format(i * step) + suffix });
  return list;
}

// timeTicks returns ticks of microseconds, in one unit.
function timeTicks(from, to, n) {
  const [unit, suffix] = to < 1e3 ? [1, " µs"] : to < 1e6 ? [1e3, " ms"] : [1e6, " s"];
  return ticks(from / unit, to / unit, n, { suffix }).map((t) => ({ ...t, at: t.at * unit }));
}

// stepTicks returns ticks of whole numbers.
const stepTicks = (from, to, n) => ticks(from, to, n, { least: 1 });

const shorten = (text, n) => (text.length > n ? `${text.slice(0, n - 1)}…` : text);

// words shows a text from a recording, which may have any length.
const words = (text) => (text.length > 96 ? el("span", { title: text.slice(0, 4000) }, shorten(text, 96)) : text);
