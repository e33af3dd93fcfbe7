// The page: one recording and one moment at a time, and all views of them.

class Page {
  constructor(data, number) {
    const r = data.recordings[number];
    this.r = r;
    this.categories = data.categories;
    this.moments = new Moments(r);
    this.owners = new Owners(r, data.categories);
    this.groupings = this.owners.groupings();
    this.lit = null;
    this.step = -1;
    // Parts of the flame graph inherit the colour of their parent.
    this.inherits = r.labelled || !r.stacked;
    this.profile = null; // of the program, instead of a moment
    // The profile of the program's peak, if no moment has it.
    this.forgotten = r.profiles[r.forgotten] ?? null;
    this.peakName = this.forgotten && r.moments > 0 ? "the history's peak" : "the peak";
    this.moment = r.peak;
    this.lanes = [{ name: "layers", parts: this.findLayers() }, { name: "marks", parts: r.marks.map(([name, from, to]) => ({ name, from, to })) }].filter((l) => l.parts.length > 0);
    this.group(0);
  }

  start() {
    this.header();
    this.figures();
    this.flame = new Flame(this);
    this.holders = new Holders(this);
    this.map = new MemoryMap(this);
    this.steps = new Steps(this);
    // Tables that don't change with the moment.
    this.tables = [this.steps, showLayers(this), showKept(this), showWhatIf(this)].filter(Boolean);
    showFragmentation(this);
    showOutOfMemory(this);
    this.timeline = new Timeline(this);
    this.controls();
    this.timeline.resize();
    this.legend();
    this.profile = this.r.moments === 0 ? (this.r.profiles[0] ?? null) : this.forgotten;
    this.select(this.moment, this.profile);
  }

  header() {
    const { r } = this, n = this.moments.last + 1;
    replace($("name"), r.name);
    replace($("about"), [this.part(), r.device !== r.name ? r.device : "", `options: ${r.conf || "default"}`, plural(n, "entry").replace("entrys", "entries"), plural(r.allocs, "allocation"), r.time && n > 0 ? duration(r.time[n - 1]) : "", r.startTime ? new Date(r.startTime).toISOString().slice(0, 19).replace("T", " ") + " UTC" : ""].filter(Boolean).join(" · "));
    $("notes-section").hidden = r.notes.length === 0;
    replace($("notes"), r.notes.map((n) => el("li", {}, n)));
    $("axes").hidden = !r.time;
  }

  // part returns the part of the run that the page shows, in words.
  part() {
    const { r } = this, n = r.steps.count, [first, last] = r.run, { step } = r.steps.columns;
    if (r.moments === 0) return "now, without a history";
    const earlier = n > 0 && last > 0 && first < step[0], run = earlier ? ` of the profiled steps ${count(first)} to ${count(last)}` : "";
    const steps = n === 0 ? "" : n === 1 ? `, step ${count(step[0])}${run}` : `, steps ${count(step[0])} to ${count(step[n - 1])}${run}`;
    return `${r.late || earlier ? "the end of the run" : "the whole run"}${steps}`;
  }

  figures() {
    const { r, moments } = this, last = moments.last;
    const [allocated, peak] = this.forgotten ? [this.forgotten.allocated, this.forgotten.reserved] : [r.peakBytes, moments.reservedAt(r.peak)];
    const now = r.profiles[0], program = r.profiles[1];
    // The bytes held by graphs at the peak.
    const graphs = this.forgotten ? this.forgotten.graphs : program?.allocated === r.peakBytes ? program.graphs : 0;
    const free = Math.max(0, peak - allocated - graphs);
    const grows = r.kept.filter((k) => k.grows).reduce((a, k) => a + k.bytes, 0);
    const list = [["Peak allocated", bytes(allocated)], ["Peak reserved", bytes(r.mostReserved)], ["Reserved and free at the peak", [bytes(free), " ", el("small", {}, percent(free, peak))]],
      ["Held at the end", bytes(moments.allocatedAt(last))]];
    if (now?.graphs > 0 || graphs > 0) list.push(["Held by graphs", [bytes(now.graphs), " ", el("small", {}, "at the peak ", bytes(graphs))]]);
    if (r.steps.count > 0) list.push(["Growth over steps", grows > 0 ? el("b", { class: "alarm" }, bytes(grows)) : "none"]);
    if (r.limit > 0) list.push(["Limit", bytes(r.limit)]);
    replace($("figures"), list.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
  }

  // group stacks the timeline by the i-th grouping.
  group(i) {
    this.grouping = this.groupings[i];
    this.groups = groupsOf(this.r, this.moments, this.grouping, 10);
    this.lit = null;
  }

  colours() { return this.groups.names.map((_, g) => colourOf(this.groups, this.grouping, g)); }

  // nameColour returns the colour of a name, the same in all views.
  nameColour(name) {
    if (Object.hasOwn(categoryHue, name)) return hue(categoryHue[name]);
    const size = sizeNames.indexOf(name);
    if (size >= 0) return hue([5, 0, 2, 4, 1, 3, 7][size]);
    const g = this.groups.names.indexOf(name);
    if (g >= 0) return colourOf(this.groups, this.grouping, g);
    let sum = 0;
    for (const c of name) sum = (sum * 31 + c.codePointAt(0)) >>> 0;
    return hue(sum % hues.light.length);
  }

  legend() {
    const colours = this.colours();
    const light = (g) => { this.lit = g; this.timeline.paint(); this.timeline.draw(); };
    replace($("legend"), this.groups.names.map((name, g) => el("li", { onpointerenter: () => light(g), onpointerleave: () => light(null) }, el("i", { class: "swatch", style: { background: colours[g] } }), shorten(name, 60))),
      el("li", {}, el("i", { class: "line" }), "reserved"), this.moments.nonReleasable ? el("li", {}, el("i", { class: "line dotted" }), "free, but not releasable") : null, this.timeline?.limit > 0 ? el("li", {}, el("i", { class: "line limit" }), "limit") : null, this.r.ooms.length > 0 ? el("li", { class: "alarm" }, "▼ out of memory") : null);
  }

  controls() {
    const grouping = $("grouping"), axis = $("axis");
    replace(grouping, this.groupings.map((g, i) => el("option", { value: i }, g.name)));
    grouping.onchange = () => {
      this.group(Number(grouping.value));
      this.timeline.refresh();
      this.legend();
      this.show();
    };
    axis.value = "entries";
    axis.onchange = () => {
      this.timeline.byTime = axis.value === "time";
      this.timeline.refresh();
    };
    $("zoom-in").onclick = () => this.timeline.zoom(0.5);
    $("zoom-out").onclick = () => this.timeline.zoom(2);
    $("zoom-all").onclick = () => this.timeline.zoomTo(-1, this.moments.last);
    $("map-end").onclick = () => this.select(this.moments.last);
    $("timeline").setAttribute("aria-valuemax", this.moments.last);
    const go = (name, title, f) => el("button", { type: "button", title, onclick: f }, name);
    replace($("moments"), go(this.peakName === "the peak" ? "Peak" : "Peak of the history", "the moment with the most allocated bytes (P)", () => this.select(this.r.peak)), go("End", "the last entry", () => this.select(this.moments.last)),
      this.r.steps.count > 0 ? go("Zoom to step", "show the moment's step and its neighbours", () => this.zoomToStep()) : null,
      this.r.profiles.map((p) => go(p.name, "the cache's own figures, complete even if its history is not", () => this.select(this.moment, p))));
  }

  zoomToStep() {
    const i = this.step >= 0 ? this.step : this.stepAt(this.moment), s = this.r.steps.columns;
    if (i < 0) return;
    const margin = Math.max(2, Math.round((s.to[i] - s.from[i]) / 5));
    this.timeline.zoomTo(s.from[i] - margin, s.to[i] + margin);
  }

  // stepAt returns the open step of a moment, the innermost if several are; -1: none.
  stepAt(m) {
    const { count: n, columns: s } = this.r.steps;
    let best = -1;
    for (let i = 0; i < n; i++) if (s.from[i] <= m && m < s.to[i] && (best < 0 || s.from[i] >= s.from[best])) best = i;
    return best;
  }

  // findLayers returns the stretches in which one module allocates.
  findLayers() {
    const { r } = this, list = [];
    if (!r.modules.some((m) => m)) return list;
    for (let i = 0; i < r.blocks; i++) {
      if (r.alloc[i] < 0) continue;
      const name = this.owners.module(r.owner[i]), last = list.at(-1);
      if (last) last.to = r.alloc[i];
      if (last?.name === name) continue;
      list.push({ name, from: r.alloc[i], to: r.moments });
    }
    return list.filter((l) => l.name);
  }

  momentName(m) {
    if (m < 0) return "the beginning";
    const step = this.stepAt(m);
    return `entry ${count(m)} of ${count(this.moments.last + 1)}${step >= 0 ? `, step ${count(this.r.steps.columns.step[step])}` : ""}${m === this.r.peak ? `, ${this.peakName}` : ""}${m === this.moments.last ? ", the end" : ""}`;
  }

  // select shows a moment, or a profile of the program.
  select(m, profile = null) {
    this.moment = Math.max(-1, Math.min(this.moments.last, m));
    this.profile = profile;
    this.step = this.stepAt(this.moment);
    this.show();
    this.timeline.show(this.moment);
    const slider = $("timeline");
    slider.setAttribute("aria-valuenow", this.moment);
    slider.setAttribute("aria-valuetext", `${this.momentName(this.moment)}: ${mib(this.moments.allocatedAt(this.moment))} allocated`);
  }

  selectStep(i) {
    this.select(this.r.steps.columns.peakAt[i]);
    this.step = i;
    this.steps.select(i);
    const { from, to } = this.timeline.view, s = this.r.steps.columns;
    if (((s.to[i] - s.from[i]) / (to - from + 1)) * this.timeline.plotWidth < 3) this.zoomToStep();
    this.timeline.draw();
  }

  nextStep(direction) {
    const n = this.r.steps.count;
    if (n === 0) return;
    const s = this.r.steps.columns;
    let i = this.stepAt(this.moment);
    if (i >= 0) i += direction;
    else i = direction > 0 ? s.from.findIndex((f) => f > this.moment) : s.to.findLastIndex((t) => t <= this.moment);
    if (i >= 0 && i < n) this.selectStep(i);
  }

  // holdings returns the holdings of the moment, by owner and size of block.
  holdings() {
    if (this.profile) return (this.profile.holdings || []).map(([owner, size, blocks, bytes]) => ({ owner, size, blocks, bytes }));
    const list = new Map(), { r } = this;
    this.moments.live(this.moment, (i) => {
      const key = `${r.owner[i]} ${r.size[i]}`;
      let h = list.get(key);
      if (!h) list.set(key, (h = { owner: r.owner[i], size: r.size[i], blocks: 0, bytes: 0 }));
      h.blocks++;
      h.bytes += r.size[i];
    });
    return [...list.values()];
  }

  show() {
    const list = this.holdings();
    this.all = list;
    this.allBytes = list.reduce((a, h) => a + h.bytes, 0);
    const reserved = this.profile ? this.profile.reserved : this.moments.reservedAt(this.moment);
    replace($("status"), this.profile ? `${this.profile.name}, from the cache` : `At ${this.momentName(this.moment)}`, ": ", el("b", { id: "held" }, bytes(this.allBytes)), " in ", plural(list.reduce((a, h) => a + h.blocks, 0), "block"),
      ", of ", bytes(reserved), " reserved", this.profile?.graphs > 0 ? [", ", bytes(this.profile.graphs), " of them held by graphs."] : ".");
    this.flame.set(list);
    this.steps.select(this.profile ? -1 : this.step);
    this.filter(true);
  }

  // filter restricts the views to the open part of the flame graph.
  filter(moved = false) {
    const path = this.flame.path, inside = (o, size) => { const p = this.owners.path(o, size); return path.every((name, i) => p[i] === name); };
    const known = new Map();
    this.inFilter = (i) => {
      if (path.length === 0) return true;
      const key = `${this.r.owner[i]} ${this.r.size[i]}`;
      if (!known.has(key)) known.set(key, inside(this.r.owner[i], this.r.size[i]));
      return known.get(key);
    };
    this.holders.set(path.length === 0 ? this.all : this.all.filter((h) => inside(h.owner, h.size)), this.allBytes, this.owners);
    if (moved) this.map.set();
    else this.map.draw();
  }

  redraw() {
    if ($("chart").clientWidth === 0) return; // the page is hidden
    this.timeline.resize();
    this.legend();
    this.flame.draw();
    this.filter();
    for (const table of this.tables) table.draw();
  }
}

let shown; // the present page

present(async () => {
  const data = await loadData();
  const open = (i) => {
    stopListening(); // of the previous recording
    shown = new Page(data, i);
    shown.start();
    window.report = { page: shown, data };
  };
  if (data.recordings.length > 1) {
    $("devices").hidden = false;
    replace($("device"), data.recordings.map((r, i) => el("option", { value: i }, r.name)));
    $("device").onchange = () => open(Number($("device").value));
  }
  open(0);
}, () => shown?.redraw());
