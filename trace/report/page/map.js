// The map of memory at a moment: each segment as a bar, all on one scale, line after line. Blocks
// have the colour of their group, holes are empty.

// Pixels. line and bar are larger if there are few lines.
const mapGeometry = { line: 20, bar: 14, gap: 3 };

class MemoryMap {
  constructor(page) {
    this.page = page;
    this.canvas = $("map");
    this.chosen = -1;
    listen(this.canvas, "pointermove", (e) => this.hover(e));
    listen(this.canvas, "pointerleave", () => tip.hide());
    listen(this.canvas, "click", (e) => { const i = this.pieceAt(e); if (i >= 0) this.choose(i); });
    listen(this.canvas, "keydown", (e) => this.key(e));
  }

  // set computes the layout of the moment's segments and blocks.
  set() {
    Object.assign(this, layout(this.page.r, this.page.moment), { chosen: -1 });
    replace($("map-what"));
    this.about();
    this.draw();
  }

  about() {
    const { page } = this, holes = this.pieces.filter((p) => p.block < 0), reserved = this.segments.reduce((a, s) => a + s.size, 0);
    const free = holes.reduce((a, p) => a + p.size, 0), whole = holes.filter((p) => p.size === p.segment.size), largest = holes.reduce((a, p) => Math.max(a, p.size), 0);
    const waiting = this.pieces.reduce((a, p) => a + (p.block >= 0 && page.r.free[p.block] <= page.moment ? p.size : 0), 0);
    replace($("map-about"), plural(this.segments.length, "segment"), ", ", bytes(reserved), " reserved at ", page.momentName(page.moment), ": ", bytes(reserved - free - waiting), " in ",
      plural(this.pieces.length - holes.length, "block"), waiting > 0 ? [", ", bytes(waiting), " waiting for streams"] : null, ", ", bytes(free), " free in ", plural(holes.length, "hole"),
      holes.length > 0 ? [", the largest ", bytes(largest)] : null, whole.length > 0 ? [`; ${plural(whole.length, "segment")} entirely free`] : null, ".");
  }

  draw() {
    const { page } = this, width = this.canvas.parentElement.clientWidth, g = mapGeometry;
    const reserved = this.segments.reduce((a, s) => a + s.size, 0);
    const lines = Math.max(1, Math.min(24, Math.ceil(reserved / (64 * MiB)), Math.ceil(this.segments.length / 4) + 3));
    g.bar = lines > 6 ? 14 : 26;
    g.line = g.bar + 6;
    const perPixel = Math.max(1, reserved / Math.max(1, width * lines - this.segments.length * (g.gap + 1)));
    // The beginning of each segment, in pixels along the lines.
    let at = 0;
    for (const s of this.segments) {
      const w = Math.max(3, s.size / perPixel);
      if (at % width > 0 && (at % width) + Math.min(w, 6) > width) at = Math.ceil(at / width) * width;
      s.x = at;
      s.w = w;
      at += w + g.gap;
    }
    this.width = width;
    const height = (Math.floor(Math.max(0, at - g.gap - 1) / width) + 1) * g.line + 2;
    const c = canvasFor(this.canvas, width, height), colours = page.colours(), hole = css("--hole"), waits = css("--faint");
    for (const s of this.segments) this.fill(c, s.x, s.w, hole);
    this.pieces.forEach((p) => {
      const k = p.segment.w / p.segment.size;
      p.x = p.segment.x + (p.addr - p.segment.addr) * k;
      p.w = p.size * k;
      if (p.block < 0) return;
      c.globalAlpha = page.inFilter(p.block) ? 1 : 0.2;
      this.fill(c, p.x, p.w, page.r.free[p.block] <= page.moment ? waits : colours[page.groups.of[p.block]]);
    });
    c.globalAlpha = 1;
    c.fillStyle = css("--paper");
    for (const p of this.pieces) if (p.w > 4 && p.addr > p.segment.addr) this.fill(c, p.x - 0.25, 0.75, css("--paper"));
    for (const s of this.segments) this.frame(c, s, css("--edge"), 1);
    if (this.chosen >= 0) this.frame(c, this.pieces[this.chosen], css("--ink"), 2.5);
    if (this.segments.length === 0) {
      c.fillStyle = css("--faint");
      c.font = `13px ${css("--font")}`;
      c.textBaseline = "middle";
      c.fillText("No memory is reserved, or the recording lacks the segments.", 2, 11);
    }
  }

  // parts calls f with the rectangles of a stretch, one for each line that it covers.
  parts(x, w, f) {
    const end = x + w;
    while (x < end - 1e-9) {
      const line = Math.floor(x / this.width + 1e-9), to = Math.min(end, (line + 1) * this.width);
      f(x - line * this.width, line * mapGeometry.line + 3, to - x, mapGeometry.bar);
      x = to;
    }
  }

  fill(c, x, w, colour) {
    c.fillStyle = colour;
    this.parts(x, w, (x, y, w, h) => c.fillRect(x, y, w, h));
  }

  frame(c, p, colour, thick) {
    c.strokeStyle = colour;
    c.lineWidth = thick;
    this.parts(p.x, Math.max(p.w, thick), (x, y, w, h) => c.strokeRect(x + 0.5, y - 0.5, Math.max(1, w - 1), h + 1));
  }

  pieceAt(e) {
    const box = this.canvas.getBoundingClientRect();
    const x = Math.floor((e.clientY - box.top) / mapGeometry.line) * this.width + e.clientX - box.left;
    let lo = 0, hi = this.pieces.length;
    while (lo < hi) {
      const mid = (lo + hi) >> 1;
      if (this.pieces[mid].x + this.pieces[mid].w <= x) lo = mid + 1;
      else hi = mid;
    }
    return lo < this.pieces.length && this.pieces[lo].x <= x ? lo : -1;
  }

  // lines returns the description of a piece.
  lines(p) {
    const { r, owners, moment } = this.page, s = p.segment;
    const where = `segment ${s.number} of ${mib(s.size)}${r.streams.length > 1 ? `, stream ${r.streams[s.stream]}` : ""}`;
    const address = r.base ? `0x${(BigInt(r.base) + BigInt(p.addr)).toString(16)}` : `+0x${(p.addr - s.addr).toString(16)}`;
    if (p.block < 0) return { head: "hole", list: [["free", exactly(p.size)], ["where", where], ["address", address]] };
    const i = p.block, list = [["size", exactly(r.size[i])], ["requested", exactly(r.requested[i])], ["where", where], ["address", address]];
    list.push(["allocated", r.alloc[i] < 0 ? "before the recording" : `entry ${count(r.alloc[i])}${r.step[i] ? `, step ${count(r.step[i])}` : ""}`]);
    list.push(["freed", r.free[i] > this.page.moments.last ? "never" : r.free[i] < 0 ? "before the recording" : `entry ${count(r.free[i])}`]);
    if (r.free[i] <= moment) list.push(["state", "waits for a stream"]);
    return { head: shorten(owners.name(r.owner[i]), 300), list };
  }

  hover(e) {
    const i = this.pieceAt(e);
    if (i < 0) return tip.hide();
    const { head, list } = this.lines(this.pieces[i]);
    tip.show(e.clientX, e.clientY, el("div", { class: "tip-head" }, head), list.map(([a, b]) => row(a, b)));
  }

  choose(i) {
    this.chosen = Math.max(0, Math.min(this.pieces.length - 1, i));
    const p = this.pieces[this.chosen];
    if (!p) return;
    const { head, list } = this.lines(p);
    replace($("map-what"), el("b", {}, head), ": ", list.map(([a, b]) => `${a} ${b}`).join(" · "));
    this.draw();
  }

  key(e) {
    const p = this.pieces[this.chosen];
    const go = { ArrowRight: () => this.chosen + 1, ArrowLeft: () => this.chosen - 1, Home: () => 0, End: () => this.pieces.length - 1,
      ArrowDown: () => this.pieces.findIndex((q) => !p || q.segment.number > p.segment.number), ArrowUp: () => this.pieces.findIndex((q) => p && q.segment.number >= p.segment.number - 1) }[e.key];
    if (go) this.choose(go());
    else if (e.key === "Enter" && p && p.block >= 0) this.page.select(this.page.r.alloc[p.block]);
    else if (e.key === "Escape") (this.chosen = -1), replace($("map-what")), this.draw();
    else return;
    e.preventDefault();
  }
}

// layout returns the segments of a moment, and their pieces by address: blocks, and holes, whose
// block is -1.
function layout(r, m) {
  const ranges = [];
  for (let i = 0; i < r.rangeSize.length; i++) {
    if (r.rangeFrom[i] <= m && m < r.rangeTo[i]) ranges.push({ addr: r.rangeAddr[i], size: r.rangeSize[i], stream: r.rangeStream[i], mapped: r.rangeMapped[i] });
  }
  ranges.sort((a, b) => a.addr - b.addr);
  const segments = [];
  for (const s of ranges) {
    const last = segments.at(-1);
    if (last && last.mapped && s.mapped && last.stream === s.stream && last.addr + last.size === s.addr) last.size += s.size;
    else segments.push({ ...s, number: segments.length + 1 });
  }
  const blocks = [];
  for (let i = 0; i < r.blocks; i++) if (r.alloc[i] <= m && m < r.done[i]) blocks.push(i);
  blocks.sort((a, b) => r.addr[a] - r.addr[b]);
  const pieces = [];
  let b = 0;
  for (const s of segments) {
    let at = s.addr;
    while (b < blocks.length && r.addr[blocks[b]] < s.addr) b++;
    for (; b < blocks.length && r.addr[blocks[b]] < s.addr + s.size; b++) {
      const i = blocks[b];
      if (r.addr[i] > at) pieces.push({ segment: s, addr: at, size: r.addr[i] - at, block: -1 });
      pieces.push({ segment: s, addr: r.addr[i], size: r.size[i], block: i });
      at = r.addr[i] + r.size[i];
    }
    if (at < s.addr + s.size) pieces.push({ segment: s, addr: at, size: s.addr + s.size - at, block: -1 });
  }
  return { segments, pieces };
}
