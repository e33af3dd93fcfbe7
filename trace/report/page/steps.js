// The table of steps. A step that is chosen moves the moment to its peak.

class Steps {
  constructor(page) {
    const { r } = page, s = r.steps, c = s.columns;
    $("steps-section").hidden = s.count === 0;
    this.rows = Array.from({ length: s.count }, (_, i) => i).map((i) => ({ i }));
    if (s.count === 0) return;
    const amount = (name, title, column) => ({ name, title, value: (x) => c[column][x.i], show: (x) => (c[column][x.i] < 0 ? "–" : bytes(c[column][x.i])) });
    const number = (name, title, column) => ({ name, title, value: (x) => c[column][x.i], show: (x) => count(c[column][x.i]) });
    const time = (name, title, column) => ({ name, title, value: (x) => c[column][x.i], show: (x) => (c[column][x.i] < 0 ? "–" : duration(c[column][x.i] / 1000)) });
    const columns = [{ name: "step", ascending: true, value: (x) => c.step[x.i], show: (x) => [count(c.step[x.i]), s.names[x.i] ? [" ", words(s.names[x.i])] : "", c.failed?.[x.i] ? el("b", { class: "alarm" }, " failed") : null,
      c.late?.[x.i] ? el("small", { title: "The history has forgotten the beginning of this step: its figures are the profiler's, and what that does not know is left out." }, " begun before the history") : null] }];
    columns.push(amount("peak", "the most that was allocated while the step was open", "peak"));
    if (r.labelled) columns.push({ name: "at the peak", text: true, title: "who held it, by category", value: (x) => c.peak[x.i], show: (x) => shareBar(this.shares(page, x.i), this.most) });
    columns.push(amount("reserved", "the driver's memory at that moment", "reserved"), amount("at start", "allocated before the step", "start"), amount("at end", "allocated after the step", "end"),
      amount("left", "of the blocks that the step allocated, what is still held at its end", "left"), number("allocations", "blocks handed out", "allocs"), number("frees", "blocks freed", "frees"),
      amount("allocated", "bytes of all blocks handed out", "bytes"));
    if (c.graphs) columns.push(amount("graphs", "held by graphs at the step's end, and no part of what is allocated", "graphs"));
    if (c.ooms) columns.push(number("out of memory", "requests that failed", "ooms"));
    if (c.h2d) columns.push(amount("to device", "bytes copied to the device", "h2d"));
    if (c.d2h) columns.push(amount("to host", "bytes copied to the host", "d2h"));
    if (c.hostTime) columns.push(time("host time", "from the step's start to its end", "hostTime"));
    else if (r.time) columns.push({ name: "time", title: "from its first entry to its last", value: (x) => this.took(r, x.i), show: (x) => duration(this.took(r, x.i)) });
    if (c.deviceTime) columns.push(time("device time", "on the compute stream", "deviceTime"));
    this.most = c.peak.reduce((a, v) => Math.max(a, v), 1);
    this.table = new Table($("steps"), columns, { sort: 0, descending: false, most: 200, label: "steps", onSelect: (x) => page.selectStep(x.i) });
    this.table.set(this.rows);
    const input = $("step-number");
    input.onchange = () => {
      const i = c.step.indexOf(Number(input.value));
      input.setCustomValidity(i < 0 ? `There is no step ${input.value}: they are ${count(c.step[0])} to ${count(c.step.at(-1))}.` : "");
      if (!input.reportValidity()) return;
      page.selectStep(i);
    };
  }

  took(r, i) {
    const { from, to } = r.steps.columns;
    return to[i] > from[i] ? r.time[Math.min(to[i], r.time.length) - 1] - r.time[from[i]] : 0;
  }

  shares(page, i) {
    return page.r.steps.shares[i].map((b, c) => ({ bytes: b, name: page.categories[c] || "not labelled" })).filter((p) => p.bytes > 0).map((p) => ({ ...p, colour: page.nameColour(p.name) }));
  }

  select(i) { this.table?.select(i < 0 ? null : this.rows[i]); }
}
