// Steps: charts of their peaks and times, the table of those that stand out, and the table of all.

// fewSteps is the most steps of which the table shows all at once.
const fewSteps = 20;

class Steps {
  constructor(page) {
    const { r } = page, s = r.steps, c = s.columns;
    Object.assign(this, { page, c });
    $("steps-section").hidden = s.count === 0;
    if (s.count === 0) return;
    this.rows = Array.from({ length: s.count }, (_, i) => ({ i }));
    this.peaks = Float64Array.from(c.peak);
    const [caption, timeOf] = this.clock();
    $("step-times").previousElementSibling.textContent = caption;
    this.times = this.rows.map(({ i }) => timeOf(i));
    this.outliers = outliersOf(c, this.peaks, this.times);
    this.most = this.peaks.reduce((a, v) => Math.max(a, v), 1);
    this.table = new Table($("steps"), this.columns(), { sort: 0, descending: false, most: 200, label: "steps", onSelect: (x) => page.selectStep(x.i) });
    this.all = s.count <= fewSteps;
    $("steps-all").onclick = () => { this.all = !this.all; this.list(); };
    const input = $("step-number");
    input.onchange = () => {
      const i = c.step.indexOf(Number(input.value));
      input.setCustomValidity(i < 0 ? `There is no step ${input.value}: the steps are ${count(c.step[0])} to ${count(c.step.at(-1))}.` : "");
      if (input.reportValidity()) page.selectStep(i);
    };
    this.charts();
    this.list();
  }

  // clock is the clock that has the times of all steps: the device's, or else the host's, or else
  // the entries'.
  clock() {
    const { c } = this, known = (t) => t && t.every((ns) => ns >= 0);
    return known(c.deviceTime) ? ["time on the device", (i) => c.deviceTime[i] / 1000] : known(c.hostTime) ? ["time on the host", (i) => c.hostTime[i] / 1000] : ["time between entries", (i) => this.took(i)];
  }

  // took returns the time in µs between a step's first entry and its last.
  took(i) {
    const { c: { from, to }, page: { r } } = this;
    return r.time && to[i] > from[i] ? r.time[Math.min(to[i], r.time.length) - 1] - r.time[from[i]] : NaN;
  }

  charts() {
    const { page, c } = this, rises = c.step.every((n, i) => i === 0 || n > c.step[i - 1]), x = rises ? c.step : c.step.map((_, i) => i);
    const chart = (id, what, options, y) => {
      const known = y.some((v) => !Number.isNaN(v)), canvas = $(id);
      canvas.parentElement.hidden = !known;
      if (!known) return null;
      const drawn = new Chart(canvas, { label: `${what} of steps`, onChoose: (i) => page.selectStep(i), ...options });
      drawn.set({ x, name: (i) => `step ${count(c.step[i])}`, ticksOf: stepTicks, series: [{ name: what, hue: options.hue, y }],
        marks: [...this.outliers].filter(([, why]) => why.some((w) => w.startsWith(what) || !/^(peak|time) /.test(w))).map(([i]) => i) });
      return drawn;
    };
    const longest = this.times.reduce((a, v) => Math.max(a, v || 0), 0), [scale, unit] = longest < 1e3 ? [1, "µs"] : longest < 1e6 ? [1e3, "ms"] : [1e6, "s"];
    this.drawn = [chart("step-peaks", "peak", { unit: "MiB", scale: MiB, format: mib, hue: 0 }, this.peaks), chart("step-times", "time", { unit, scale, format: duration, hue: 1 }, this.times)].filter(Boolean);
  }

  // list shows all steps, or those that stand out and the chosen one.
  list() {
    const n = this.rows.length, out = this.outliers.size;
    replace($("steps-about"), out === 0 ? `None of ${plural(n, "step")} stands out` : `${count(out)} of ${plural(n, "step")} ${out === 1 ? "stands" : "stand"} out`,
      ". A step stands out if it failed, ran out of memory, or has a peak or a time above Tukey’s outer fence and more than 5 % above the median.");
    $("steps-all").hidden = n <= fewSteps;
    $("steps-all").textContent = this.all ? "Only those that stand out" : `All ${plural(n, "step")}`;
    const rows = this.all ? this.rows : this.rows.filter((x) => this.outliers.has(x.i) || x === this.table.selected);
    if (rows.length === this.table.rows.length && rows.every((x, i) => x === this.table.rows[i])) return;
    const focused = $("steps").contains(document.activeElement) && document.activeElement.closest("tbody");
    this.table.set(rows);
    if (focused) this.table.lines.find((l) => l.tabIndex === 0)?.focus();
  }

  columns() {
    const { c, page: { r } } = this;
    const amount = (name, title, column) => ({ name, title, value: (x) => c[column][x.i], show: (x) => (c[column][x.i] < 0 ? "–" : bytes(c[column][x.i])) });
    const number = (name, title, column) => ({ name, title, value: (x) => c[column][x.i], show: (x) => count(c[column][x.i]) });
    const time = (name, title, column) => ({ name, title, value: (x) => c[column][x.i], show: (x) => (c[column][x.i] < 0 ? "–" : duration(c[column][x.i] / 1000)) });
    return [
      { name: "step", ascending: true, value: (x) => c.step[x.i], show: (x) => [count(c.step[x.i]), r.steps.names[x.i] ? [" ", words(r.steps.names[x.i])] : ""] },
      amount("peak", "the most allocated bytes during the step", "peak"),
      (this.outliers.size > 0 || c.late) && { name: "stands out", text: true, value: (x) => (this.outliers.get(x.i) || ["~"]).join(), show: (x) => [el("b", { class: "alarm" }, (this.outliers.get(x.i) || []).join(", ")),
        c.late?.[x.i] ? el("small", { title: "The history no longer has the beginning of this step. Its figures are the profiler's; figures that the profiler does not have are left out." }, " began before the history") : null] },
      r.labelled && { name: "at the peak", text: true, title: "holders at the step's peak, by category", value: (x) => c.peak[x.i], show: (x) => shareBar(this.shares(x.i), this.most) },
      amount("reserved", "bytes held from the driver at that moment", "reserved"), amount("at start", "bytes allocated when the step started", "start"), amount("at end", "bytes allocated when the step ended", "end"),
      amount("left", "bytes of the step's own blocks that are still held at its end", "left"), number("allocations", "blocks allocated", "allocs"),
      c.graphs && amount("graphs", "bytes held by graphs at the step's end; not part of the allocated bytes", "graphs"),
      c.h2d && amount("to device", "bytes copied to the device", "h2d"), c.d2h && amount("to host", "bytes copied to the host", "d2h"),
      c.hostTime ? time("host time", "from the step's start to its end", "hostTime")
        : r.time && { name: "time", title: "from its first entry to its last", value: (x) => this.took(x.i) || 0, show: (x) => duration(this.took(x.i) || 0) },
      c.deviceTime && time("device time", "on the compute stream", "deviceTime"),
    ].filter(Boolean);
  }

  shares(i) {
    const { page } = this;
    return page.r.steps.shares[i].map((b, c) => ({ bytes: b, name: page.categories[c] || "not labelled" })).filter((p) => p.bytes > 0).map((p) => ({ ...p, colour: page.nameColour(p.name) }));
  }

  select(i) {
    if (!this.table) return;
    this.table.select(i < 0 ? null : this.rows[i]);
    if (!this.all) this.list();
    for (const chart of this.drawn) chart.select(i);
  }

  draw() {
    this.table?.draw();
    for (const chart of this.drawn || []) chart.draw();
  }
}
