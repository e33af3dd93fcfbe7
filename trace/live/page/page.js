// The page: the state that it was made with, and then those of the events.

const data = JSON.parse($("data").textContent), recent = new Recent(), steps = new Map(), most = 20;
let state, heard, lost = 0, chart, times, chosen, tables, missed = 0, soon = 0;

const number = (n) => el("data", { value: n }, count(n));
const held = () => ({ allocated: state.allocated, reserved: state.reserved });
const clock = (time) => new Date(time).toLocaleTimeString("en-GB");
// now is the present time by the program's clock.
const now = () => lost || Date.parse(state.time) + performance.now() - heard;

function hear(s) {
  if (s.since !== data.state.since) return location.reload(); // another program
  [state, heard, lost] = [s, performance.now(), 0];
  recent.add(now(), held());
  document.title = $("name").textContent = s.title;
  const figures = { Allocated: bytes(s.allocated), "At the peak": bytes(s.peak), Reserved: bytes(s.reserved), "Held by graphs": s.graphs > 0 && bytes(s.graphs),
    Limit: s.limit > 0 && bytes(s.limit), Retries: number(s.retries), "Out of memory": el("span", { class: s.ooms > 0 && "alarm" }, number(s.ooms)) };
  replace($("figures"), Object.entries(figures).map(([name, v]) => v && el("div", {}, el("dt", {}, name), el("dd", {}, v))));
  tables.categories.set(s.categories);
  $("graphs-section").hidden = s.graphs === 0;
  tables.graphs.set(s.graph_shares);
  draw();
}

function step(e) {
  const id = Number(e.lastEventId), p = JSON.parse(e.data);
  recent.step(p);
  steps.set(id, { ...p, id, device: p.device_timed ? p.device_time_ns : -1 });
  if (steps.size > most) steps.delete(Math.min(...steps.keys()));
  soon ||= setTimeout(showSteps, 200); // steps in quick succession together
}

function showSteps() {
  soon = 0;
  tables.steps.set([...steps.values()]);
  $("count").textContent = `${count(Math.max(state.steps, ...[...steps.keys()].map((id) => id + 1)))} so far${missed ? `; ${count(missed)} not shown, because they came too fast` : ""}`;
  draw();
}

function draw() {
  const end = now(), points = recent.points(end, held()), last = points.length - 1;
  times = points.map((p, i) => (i < last ? p.time : "now"));
  if (points[0].time > end - 1e4) points.unshift({ time: end - 1e4 }), times.unshift("");
  chart.set({ x: points.map((p) => Math.min(0, (p.time - end) / 1000)), name: (i) => (times[i] > 0 ? clock(times[i]) : times[i]), limit: state.reserved * 2 >= state.limit ? state.limit : 0,
    series: Object.keys(lines).map((key, i) => ({ name: lines[key], hue: i, y: points.map((p) => p[key] ?? NaN) })),
    ticksOf: (...a) => ticks(...a).map((t) => ({ ...t, text: t.at ? `${t.text} s` : "now" })) });
  if (chosen) chart.select(times.indexOf(chosen));
}

function makeTables() {
  const column = (name, field, show, title) => ({ name, title, value: (r) => r[field], show: (r) => show(r[field]) }), time = (ns) => (ns < 0 ? "–" : duration(ns / 1000));
  const amounts = [column("bytes", "bytes", bytes), column("blocks", "blocks", number)], category = { ...column("category", "name", (c) => swatched(hue(categoryHue[c] ?? -1), c)), text: true };
  tables = {
    categories: new Table($("categories"), [category, ...amounts], { sort: 1, label: "in use" }),
    graphs: new Table($("graphs"), [{ ...column("graph", "graph", words), text: true }, category, ...amounts], { sort: 2, label: "held by graphs" }),
    steps: new Table($("steps"), [{ name: "step", value: (r) => r.id, show: (r) => [count(r.step), r.failed && el("b", { class: "alarm" }, " failed")] },
      column("peak", "allocated_peak", bytes, "the most allocated bytes during the step"), column("reserved", "reserved", bytes, "bytes held from the driver when the step ended"), column("at end", "allocated_end", bytes, "bytes allocated when the step ended"),
      column("graphs", "graph_bytes", bytes, "bytes held by graphs when the step ended; not part of the allocated bytes"), column("allocations", "allocations", number, "blocks allocated"), column("host time", "host_time_ns", time), column("device time", "device", time, "on the compute stream")],
    { label: "latest steps" }),
  };
}

function connect() {
  const events = new EventSource(`events?last=${most}`);
  const say = (text, bad) => $("connection").textContent === text || replace($("connection"), el("span", { class: bad && "alarm" }, text));
  events.addEventListener("state", (e) => (say("connected"), hear(JSON.parse(e.data))));
  events.addEventListener("step", step);
  events.addEventListener("missed", (e) => (missed += Number(e.data)));
  events.onerror = () => {
    if (!lost) recent.add((lost = now()) + slot, { gap: 1 });
    say(`not connected: the figures are from ${clock(lost)}`, true);
    // After a refusal, which a browser does not retry.
    if (events.readyState === EventSource.CLOSED) setTimeout(connect, 5000);
  };
}

const showLegend = () => legend($("legend"), ...Object.values(lines).map((name, i) => [hue(i), name]));

present(() => {
  makeTables();
  chart = new Chart($("chart"), { unit: "MiB", scale: MiB, format: mib, height: 190, label: "memory over the last five minutes", onChoose: (i) => (chosen = times[i]) });
  data.before.forEach((p) => recent.step(p));
  hear(data.state);
  showSteps();
  showLegend();
  connect();
  setInterval(draw, 1000);
  window.live = chart;
}, () => {
  showLegend();
  Object.values(tables).forEach((t) => t.draw());
  draw();
});
