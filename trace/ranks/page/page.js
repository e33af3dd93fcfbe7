// The page of ranks: the straggler, the ranks' waits for each other, and the memory of each.

const took = (ns) => el("data", { value: ns, title: `${count(ns)} ns` }, duration(ns / 1000));
const probability = (p) => el("data", { value: p }, p > 0 && p < 0.001 ? p.toExponential(1) : p.toPrecision(2));
// mostNumbers is the most ranks for which the matrix has numbers.
const mostNumbers = 32;

let tables = [], matrix = () => {};

function show(r) {
  replace($("about"), [plural(r.ranks.reduce((a, x) => a + x.steps, 0), "step"), ` of ${plural(r.world_size, "rank")}`, ` · ${plural(r.matched, "operation")} that all ranks recorded`,
    r.unmatched > 0 ? `, ${count(r.unmatched)} missing on some ranks` : ""]);
  replace($("headline"), r.headline[0].toUpperCase(), r.headline.slice(1), ".");
  const sum = (name) => r.ranks.reduce((a, x) => a + x[name], 0), most = r.ranks.reduce((a, x) => Math.max(a, x.allocated_peak), 0);
  replace($("figures"), [["Straggler", r.straggler < 0 ? "none" : el("b", { class: "alarm" }, `rank ${r.straggler}`)], ["Waited, all ranks", took(sum("waited_ns"))],
    ["Share of the time in collectives", percent(sum("waited_ns"), sum("collective_time_ns"))], ["Largest peak", bytes(most)]].map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
  const rows = r.ranks.map((x, rank) => ({ rank, ...x }));
  tables = [ranks(r, rows), memory(rows, most), waits(r)].filter(Boolean);
  matrix = () => drawMatrix(r);
  matrix();
  $("notes-section").hidden = !r.notes?.length;
  replace($("notes"), (r.notes || []).map((n) => el("li", {}, n)));
}

const rankColumn = (r) => ({ name: "rank", ascending: true, value: (x) => x.rank, show: (x) => (x.rank === r?.straggler ? el("b", { class: "alarm" }, x.rank) : x.rank) });

function ranks(r, rows) {
  const number = (name, key, title) => ({ name, title, value: (x) => x[key], show: (x) => count(x[key]) });
  const time = (name, key, title) => ({ name, title, value: (x) => x[key], show: (x) => took(x[key]) });
  const amount = (name, key, title) => ({ name, title, value: (x) => x[key], show: (x) => bytes(x[key]) });
  const replayed = rows.some((x) => x.replayed > 0);
  const table = new Table($("ranks"), [rankColumn(r), number("steps", "steps"), time("host time", "host_time_ns"), time("device time", "device_time_ns"),
    number("collectives", "collectives"), amount("collective bytes", "bytes"),
    ...(replayed ? [number("replayed", "replayed", "operations of replayed graphs, without times"), amount("replayed bytes", "replayed_bytes")] : []),
    time("in collectives", "collective_time_ns"), time("waited", "waited_ns", "for the last rank, over all operations"), { name: "waited share", title: "of the time in collectives", value: (x) => x.waited_ns / (x.collective_time_ns || 1), show: (x) => percent(x.waited_ns, x.collective_time_ns) },
    time("held others up", "held_up_ns", "where this rank came last: the time between the second to last rank and this one"), number("last in operations", "last"), number("last in steps", "last_steps", `of ${count(r.steps)}`),
    { name: "p", title: r.test, value: (x) => x.p, show: (x) => probability(x.p) }, time("waited for by others", "waited_for_ns")], { sort: 0, descending: false, most: 64, label: "ranks" });
  table.set(rows);
  return table;
}

function memory(rows, most) {
  const categories = [...new Set(rows.flatMap((x) => (x.categories || []).map((c) => c.name)))], colour = (name) => hue(categoryHue[name] ?? -1);
  legend($("legend"), ...categories.map((name) => [colour(name), name]));
  const table = new Table($("memory"), [rankColumn(), { name: "allocated peak", value: (x) => x.allocated_peak, show: (x) => bytes(x.allocated_peak) }, { name: "in step", value: (x) => x.peak_step, show: (x) => count(x.peak_step) },
    { name: "reserved peak", value: (x) => x.reserved_peak, show: (x) => bytes(x.reserved_peak) },
    { name: "by category", text: true, value: (x) => x.allocated_peak, show: (x) => shareBar((x.categories || []).map((c) => ({ name: c.name, bytes: c.bytes, colour: colour(c.name) })), most) }], { sort: 0, descending: false, most: 64, label: "memory" });
  table.set(rows);
  return table;
}

function waits(r) {
  $("waits-section").hidden = !r.waits?.length;
  if (!r.waits?.length) return null;
  const traced = r.waits.some((w) => w.trace_id);
  const table = new Table($("waits"), [{ name: "step", ascending: true, value: (w) => w.step, show: (w) => count(w.step) }, { name: "waited by all", value: (w) => w.waited_ns, show: (w) => took(w.waited_ns) },
    { name: "last rank", value: (w) => w.last, show: (w) => (w.last < 0 ? "–" : w.last) }, { name: "held others up", value: (w) => w.held_up_ns, show: (w) => (w.last < 0 ? "–" : took(w.held_up_ns)) },
    traced && { name: "trace", text: true, value: (w) => w.trace_id || "", show: (w) => (w.trace_url ? el("a", { href: w.trace_url, rel: "noreferrer" }, w.trace_id) : el("code", {}, w.trace_id)) }].filter(Boolean), { sort: 1, label: "steps with the most waiting" });
  table.set(r.waits);
  return table;
}

// drawMatrix shows how long the rank of a row waited for the rank of a column.
function drawMatrix(r) {
  const n = r.world_size, longest = Object.values(r.waited_ns).flat().reduce((a, v) => Math.max(a, v), 0);
  const heat = (ns) => (longest > 0 ? ns / longest : 0), colour = (h) => mix(css("--alarm"), css("--paper"), 0.5 * h);
  replace($("matrix-about"), `How long the rank of a row waited for the rank of a column, which came last, in ${plural(r.matched, "operation")}.`);
  legend($("heat"), ...[0, 0.5, 1].map((h) => [colour(h), h === 0 ? "none" : duration((h * longest) / 1000)]));
  const waited = (row, column) => r.waited_ns[column]?.[row] ?? 0, of = Array.from({ length: n }, (_, i) => i);
  if (n <= mostNumbers) {
    replace($("matrix"), el("table", { "aria-label": "waits" }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "rank"), of.map((c) => el("th", { scope: "col" }, c)))),
      el("tbody", {}, of.map((row) => el("tr", {}, el("th", { scope: "row" }, row), of.map((c) => {
        const ns = waited(row, c), background = colour(heat(ns));
        return el("td", { style: { background, color: inkOn(background) } }, ns > 0 ? took(ns) : "");
      }))))));
    return;
  }
  const canvas = el("canvas", { role: "img", "aria-label": `waits of ${n} ranks` }), size = Math.max(1, Math.floor(Math.min(960, $("matrix").clientWidth) / n));
  replace($("matrix"), canvas);
  Object.assign(canvas, { width: n * size, height: n * size });
  const c = canvas.getContext("2d");
  for (const [column, list] of Object.entries(r.waited_ns)) list.forEach((ns, row) => { if (ns > 0) (c.fillStyle = colour(heat(ns))), c.fillRect(column * size, row * size, size, size); });
  canvas.onpointermove = (e) => {
    const column = Math.floor(e.offsetX / size), line = Math.floor(e.offsetY / size);
    if (column < n && line < n) tip.show(e.clientX, e.clientY, row(`rank ${line} waited for rank ${column}`, took(waited(line, column))));
  };
  canvas.onpointerleave = () => tip.hide();
}

present(() => show(JSON.parse($("data").textContent)), () => {
  for (const table of tables) table.draw();
  matrix();
});
