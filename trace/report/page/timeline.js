// Memory over time, stacked by group, with the driver's memory as a line above, and the steps and
// modules in lanes below. Each column of pixels shows its moment with the most held bytes.

const edges = { left: 70, right: 14, top: 26, bottom: 22, lane: 18 };

class Timeline {
  constructor(page) {
    this.page = page;
    this.canvas = $("timeline");
    this.view = { from: -1, to: page.moments.last };
    this.byTime = false;
    this.hover = null;
    const on = (type, f) => listen(this.canvas, type, f);
    on("pointerdown", (e) => this.press(e));
    on("pointermove", (e) => this.move(e));
    on("pointerup", (e) => this.release(e));
    on("pointercancel", () => (this.drag = null));
    on("pointerleave", () => { this.hover = null; tip.hide(); this.draw(); });
    on("dblclick", () => this.zoomTo(-1, this.page.moments.last));
    on("wheel", (e) => this.wheel(e));
    on("keydown", (e) => this.key(e));
  }

  // Positions along the axis are the numbers of entries or their times.
  position(m) { return this.byTime ? (m < 0 ? 0 : this.page.r.time[Math.min(m, this.page.moments.last)]) : m; }

  momentAt(position) {
    if (!this.byTime) return Math.max(-1, Math.min(this.page.moments.last, Math.floor(position)));
    const time = this.page.r.time;
    let lo = -1, hi = time.length - 1;
    while (lo < hi) {
      const mid = (lo + hi + 1) >> 1;
      if (time[mid] <= position) lo = mid;
      else hi = mid - 1;
    }
    return lo;
  }

  span() {
    const from = this.position(this.view.from), to = this.position(this.view.to) + (this.byTime ? 0 : 1);
    return [from, Math.max(to, from + 1)];
  }

  x(m, middle = 0) {
    const [from, to] = this.span();
    return edges.left + ((this.position(m) + (this.byTime ? 0 : middle) - from) / (to - from)) * this.plotWidth;
  }

  at(x) {
    const [from, to] = this.span(), part = Math.max(0, Math.min(0.999999, (x - edges.left) / this.plotWidth));
    return Math.max(this.view.from, Math.min(this.view.to, this.momentAt(from + part * (to - from))));
  }

  resize() {
    this.width = this.canvas.parentElement.clientWidth;
    this.plotHeight = this.width < 600 ? 220 : Math.min(380, Math.max(260, this.width / 4));
    const c = this.canvas.getContext("2d"), { mostReserved, peakBytes, limit } = this.page.r;
    c.font = `12px ${css("--font")}`;
    edges.left = Math.max(leftOf(c, Math.max(mostReserved, peakBytes, limit) / MiB, this.plotHeight), this.width < 600 ? 46 : 70);
    this.plotWidth = Math.max(50, this.width - edges.left - edges.right);
    this.lanes = (this.page.r.steps.count > 0 ? 1 : 0) + this.page.lanes.length;
    this.height = edges.top + this.plotHeight + edges.bottom + this.lanes * edges.lane + 4;
    this.refresh();
  }

  // refresh computes the columns, after a change of view, size or grouping.
  refresh() {
    const n = Math.max(1, Math.round(this.plotWidth)), [from, to] = this.span();
    const edge = new Int32Array(n + 1);
    for (let x = 0; x <= n; x++) {
      const p = from + ((to - from) * x) / n;
      edge[x] = this.byTime ? this.momentAt(p) + 1 : Math.ceil(p - 1e-9);
    }
    edge[0] = this.view.from;
    edge[n] = this.view.to + 1;
    this.columns = this.page.moments.columns(edge, this.page.groups.of, this.page.groups.names.length);
    this.top = 1;
    for (let x = 0; x < n; x++) this.top = Math.max(this.top, this.columns.total[x], this.columns.reserved[x]);
    // If a request has failed, the device's memory is a limit, too. A limit far above the curve is
    // not drawn, because it would flatten the rest.
    const { limit, total, ooms } = this.page.r;
    this.limit = ooms.length > 0 ? limit || total : limit < 2 * this.top ? limit : 0;
    this.top = 1.04 * Math.max(this.top, this.limit);
    this.paint();
    this.draw();
  }

  y(v) { return edges.top + this.plotHeight * (1 - v / this.top); }

  // paint draws everything that does not depend on the moment, into a picture.
  paint() {
    this.picture ||= document.createElement("canvas");
    const c = canvasFor(this.picture, this.width, this.height);
    const ink = css("--ink"), faint = css("--faint"), line = css("--line");
    c.font = `12px ${css("--font")}`;
    this.axes(c);
    const { out, total, reserved, nonReleasable } = this.columns, n = total.length, g = this.page.groups.names.length;
    const base = new Float64Array(n), colours = this.page.colours();
    for (let k = 0; k < g; k++) {
      c.fillStyle = colours[k];
      c.globalAlpha = this.page.lit === null || this.page.lit === k ? 1 : 0.25;
      c.beginPath();
      c.moveTo(edges.left, this.y(base[0]));
      for (let x = 0; x < n; x++) {
        const y = this.y(base[x] + out[x * g + k]);
        c.lineTo(edges.left + x, y);
        c.lineTo(edges.left + x + 1, y);
      }
      for (let x = n - 1; x >= 0; x--) {
        c.lineTo(edges.left + x + 1, this.y(base[x]));
        c.lineTo(edges.left + x, this.y(base[x]));
        base[x] += out[x * g + k];
      }
      c.fill();
    }
    c.globalAlpha = 1;
    if (this.page.moments.nonReleasable) {
      this.line(c, nonReleasable, css("--paper"), 3); // visible on any colour
      c.setLineDash([2, 2]);
      this.line(c, nonReleasable, ink, 1.5);
      c.setLineDash([]);
    }
    this.line(c, reserved, ink, 1.25);
    if (this.limit > 0) drawLimit(c, edges.left, this.plotWidth, this.y(this.limit), this.width);
    this.ooms(c);
    this.peakMark(c, ink);
    this.stepLane(c, ink, faint, line);
    this.page.lanes.forEach((lane, i) => this.partsLane(c, lane, i, ink, faint, line));
  }

  // line draws a line at the height of each column.
  line(c, heights, colour, width) {
    c.strokeStyle = colour;
    c.lineWidth = width;
    c.beginPath();
    heights.forEach((v, x) => {
      c.lineTo(edges.left + x, this.y(v));
      c.lineTo(edges.left + x + 1, this.y(v));
    });
    c.stroke();
  }

  axes(c) {
    const [from, to] = this.span(), n = this.plotWidth / (this.byTime ? 110 : 90);
    drawAxes(c, { left: edges.left, plot: this.plotWidth, top: edges.top, height: this.plotHeight, width: this.width, unit: "MiB", most: this.top / MiB,
      xTicks: (this.byTime ? timeTicks : stepTicks)(Math.max(0, from), to, n), at: (p) => edges.left + ((p - from) / (to - from)) * this.plotWidth });
  }

  // ooms marks the failed requests.
  ooms(c) {
    c.fillStyle = css("--alarm");
    for (const [m] of this.page.r.ooms) {
      if (m < this.view.from || m > this.view.to) continue;
      const x = this.x(m, 0.5);
      c.beginPath();
      c.moveTo(x, edges.top - 1);
      c.lineTo(x - 5, edges.top - 10);
      c.lineTo(x + 5, edges.top - 10);
      c.fill();
    }
  }

  peakMark(c, ink) {
    const m = this.page.r.peak;
    if (m < this.view.from || m > this.view.to || this.page.r.peakBytes === 0) return;
    const x = this.x(m, 0.5), y = this.y(this.page.r.peakBytes), text = this.page.peakName.replace("the peak", "peak");
    c.fillStyle = ink;
    c.beginPath();
    c.arc(x, y, 3.5, 0, 7);
    c.fill();
    c.strokeStyle = css("--paper");
    c.lineWidth = 1.5;
    c.stroke();
    c.textBaseline = "middle";
    const w = c.measureText(text).width, right = x + 10 + w < edges.left + this.plotWidth;
    c.textAlign = "left";
    c.lineWidth = 3;
    const at = right ? x + 9 : x - 9 - w;
    c.strokeText(text, at, y - 9);
    c.fillText(text, at, y - 9);
  }

  stepLane(c, ink, faint, line) {
    const { count: n, columns: s } = this.page.r.steps;
    if (n === 0) return;
    const y = edges.top + this.plotHeight + edges.bottom, right = edges.left + this.plotWidth;
    c.textBaseline = "middle";
    c.textAlign = "center";
    c.lineWidth = 1;
    let last = -Infinity, drawn = -1;
    for (let i = 0; i < n; i++) {
      if (s.to[i] <= this.view.from || s.from[i] > this.view.to) continue;
      const a = Math.max(edges.left, this.x(s.from[i])), b = Math.min(right, this.x(s.to[i]));
      if (b - last < 0.7) continue; // finer than a pixel
      last = b;
      c.fillStyle = ++drawn % 2 === 0 ? line : css("--band");
      c.fillRect(a, y, Math.max(0.5, b - a), edges.lane - 4);
      const text = whole.format(s.step[i]), room = c.measureText(text).width + 8;
      if (b - a > room) {
        c.fillStyle = ink;
        c.fillText(text, (a + b) / 2, y + edges.lane / 2 - 2);
      }
      if (b - a > 36 && b < right) {
        c.strokeStyle = line;
        c.beginPath();
        c.moveTo(Math.round(b) + 0.5, edges.top);
        c.lineTo(Math.round(b) + 0.5, y);
        c.stroke();
      }
    }
    this.laneName(c, faint, "steps", y);
  }

  laneName(c, faint, text, y) {
    c.fillStyle = faint;
    c.textAlign = "right";
    c.textBaseline = "middle";
    c.fillText(this.width < 600 ? shorten(text, 6) : text, edges.left - 8, y + edges.lane / 2 - 2);
  }

  // partsLane shows parts of the program: stretches of the same module, or the recording's own
  // marks.
  partsLane(c, lane, i, ink, faint, line) {
    const y = edges.top + this.plotHeight + edges.bottom + (this.lanes - this.page.lanes.length + i) * edges.lane, right = edges.left + this.plotWidth;
    c.textBaseline = "middle";
    c.textAlign = "left";
    let last = -Infinity, drawn = 0;
    for (const l of lane.parts) {
      if (l.to <= this.view.from || l.from > this.view.to) continue;
      const a = Math.max(edges.left, this.x(l.from)), b = Math.min(right, this.x(l.to));
      drawn++;
      if (b - last < 1.5) continue;
      last = b;
      c.fillStyle = drawn % 2 === 0 ? css("--band") : line;
      c.fillRect(a, y, Math.max(0.5, b - a - 0.5), edges.lane - 4);
      // The name, or its last part, if it fits.
      const room = b - a - 8, name = [l.name, l.name.slice(l.name.lastIndexOf(".") + 1)].find((t) => t.length * 4 < room && c.measureText(t).width <= room);
      if (name) {
        c.fillStyle = ink;
        c.fillText(name, a + 4, y + edges.lane / 2 - 2);
      }
    }
    this.laneName(c, faint, lane.name, y);
  }

  // draw draws the picture, and the moment and the pointer over it.
  draw() {
    const c = canvasFor(this.canvas, this.width, this.height);
    c.drawImage(this.picture, 0, 0, this.width, this.height);
    const bottom = edges.top + this.plotHeight;
    const s = this.page.step;
    if (s >= 0) {
      const steps = this.page.r.steps.columns, a = Math.max(edges.left, this.x(steps.from[s])), b = Math.min(edges.left + this.plotWidth, this.x(steps.to[s]));
      if (b > a) {
        c.fillStyle = css("--accent");
        c.globalAlpha = 0.08;
        c.fillRect(a, edges.top, Math.max(1, b - a), this.plotHeight);
        c.globalAlpha = 1;
        c.fillRect(a, bottom + edges.bottom + edges.lane - 4, Math.max(2, b - a), 2);
      }
    }
    if (this.drag && Math.abs(this.drag.x - this.drag.from) > 4) {
      c.fillStyle = css("--accent");
      c.globalAlpha = 0.18;
      c.fillRect(Math.min(this.drag.x, this.drag.from), edges.top, Math.abs(this.drag.x - this.drag.from), this.plotHeight);
      c.globalAlpha = 1;
    }
    const m = this.page.moment;
    if (m >= this.view.from && m <= this.view.to) {
      const x = this.x(m, 0.5), y = this.y(this.page.moments.allocatedAt(m));
      c.strokeStyle = css("--accent");
      c.lineWidth = 1.5;
      c.beginPath();
      c.moveTo(x, edges.top - 12);
      c.lineTo(x, bottom);
      c.stroke();
      c.fillStyle = css("--accent");
      c.beginPath();
      c.arc(x, y, 4.5, 0, 7);
      c.fill();
      c.strokeStyle = css("--paper");
      c.stroke();
    }
    if (this.hover !== null) {
      c.strokeStyle = css("--faint");
      c.lineWidth = 1;
      c.setLineDash([3, 3]);
      c.beginPath();
      c.moveTo(Math.round(this.hover) + 0.5, edges.top);
      c.lineTo(Math.round(this.hover) + 0.5, bottom);
      c.stroke();
      c.setLineDash([]);
    }
  }

  // momentUnder returns the moment of a pixel: the largest of its column. The peak attracts the
  // pointer.
  momentUnder(x, y = Infinity) {
    const peak = this.page.r.peak;
    if (peak >= this.view.from && peak <= this.view.to && Math.abs(this.x(peak, 0.5) - x) < 7 && y < this.y(this.page.r.peakBytes) + 24) return peak;
    const column = Math.max(0, Math.min(this.columns.moment.length - 1, Math.floor(x - edges.left)));
    const perEntry = this.plotWidth / (this.view.to - this.view.from + 1);
    return perEntry > 1 && !this.byTime ? this.at(x) : this.columns.moment[column];
  }

  place(e) {
    const box = this.canvas.getBoundingClientRect();
    return [e.clientX - box.left, e.clientY - box.top];
  }

  press(e) {
    if (e.button !== 0) return;
    const [x] = this.place(e);
    this.drag = { from: x, x };
    this.canvas.setPointerCapture(e.pointerId);
  }

  move(e) {
    const [x, y] = this.place(e);
    if (this.drag) this.drag.x = x;
    this.hover = x >= edges.left && x <= edges.left + this.plotWidth ? x : null;
    if (this.hover === null) tip.hide();
    else this.tell(e, this.momentUnder(x, y));
    this.draw();
  }

  tell(e, m) {
    const { page } = this, step = page.stepAt(m);
    const sums = new Float64Array(page.groups.names.length), colours = page.colours();
    page.moments.live(m, (i) => (sums[page.groups.of[i]] += page.r.size[i]));
    const groups = [...sums.keys()].filter((g) => sums[g] > 0).sort((a, b) => sums[b] - sums[a]);
    tip.show(e.clientX, e.clientY,
      el("div", { class: "tip-head" }, m < 0 ? "before the first entry" : `entry ${count(m)}`, step >= 0 ? `, step ${count(page.r.steps.columns.step[step])}` : "",
        page.r.time && m >= 0 ? `, ${duration(page.r.time[m])}` : ""),
      row("allocated", mib(page.moments.allocatedAt(m))), row("reserved", mib(page.moments.reservedAt(m))), page.moments.nonReleasable ? row("not releasable", mib(page.moments.nonReleasableAt(m))) : null,
      groups.slice(0, 8).map((g) => el("div", { class: "pair" }, el("span", {}, el("i", { class: "swatch", style: { background: colours[g] } }), shorten(page.groups.names[g], 44)), el("b", {}, mib(sums[g])))));
  }

  release(e) {
    if (!this.drag) return;
    const [x, y] = this.place(e), { from } = this.drag;
    this.drag = null;
    if (Math.abs(x - from) > 4) return this.zoomTo(this.at(Math.min(x, from)), this.at(Math.max(x, from)));
    const bottom = edges.top + this.plotHeight + edges.bottom;
    if (this.page.r.steps.count > 0 && y >= bottom && y < bottom + edges.lane) {
      const step = this.page.stepAt(this.at(x));
      if (step >= 0) return this.page.selectStep(step);
    }
    this.page.select(this.momentUnder(x, y));
  }

  wheel(e) {
    if (!e.ctrlKey && !e.metaKey) return; // the page scrolls
    e.preventDefault();
    this.zoom(e.deltaY < 0 ? 0.7 : 1 / 0.7, this.at(this.place(e)[0]));
  }

  zoomTo(from, to) {
    const last = this.page.moments.last;
    from = Math.max(-1, from);
    to = Math.min(last, Math.max(to, from + 1));
    this.view = { from: Math.max(-1, Math.min(from, to - 1)), to };
    this.refresh();
  }

  // zoom makes the view factor times as long, around a moment.
  zoom(factor, around = this.page.moment) {
    const { from, to } = this.view;
    const m = around < from || around > to ? (from + to) / 2 : around;
    this.zoomTo(Math.floor(m - (m - from) * factor), Math.ceil(m + (to - m) * factor));
  }

  // show moves the view to a moment.
  show(m) {
    const { from, to } = this.view;
    if (m >= from && m <= to) return this.draw();
    const half = Math.floor((to - from) / 2);
    this.zoomTo(m - half, m + half);
  }

  key(e) {
    const { page } = this, m = page.moment, far = Math.max(1, Math.round((this.view.to - this.view.from) / 100));
    const go = (to) => page.select(Math.max(-1, Math.min(page.moments.last, to)));
    const keys = {
      ArrowLeft: () => go(e.shiftKey ? m - far : page.moments.next(m, -1)), ArrowRight: () => go(e.shiftKey ? m + far : page.moments.next(m, 1)),
      ArrowDown: () => go(page.moments.next(m, -1)), ArrowUp: () => go(page.moments.next(m, 1)),
      PageUp: () => page.nextStep(-1), PageDown: () => page.nextStep(1), Home: () => go(-1), End: () => go(page.moments.last),
      p: () => go(page.r.peak), P: () => go(page.r.peak), "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
      0: () => this.zoomTo(-1, page.moments.last), Escape: () => this.zoomTo(-1, page.moments.last), Enter: () => page.flame.focus(),
    };
    if (!keys[e.key] || e.ctrlKey || e.metaKey || e.altKey) return;
    e.preventDefault();
    keys[e.key]();
  }
}
