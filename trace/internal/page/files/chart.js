// A chart of one or more series over numbers: steps, or seconds. Each column of pixels shows the
// largest value in it. A point can be chosen by pointer or arrow keys.

class Chart {
  // format formats a value; unit and scale are those of the axis; a series is { name, hue, y },
  // with NaN for a missing value.
  constructor(canvas, { unit, scale = 1, format, label, height = 150, onChoose = () => {} }) {
    Object.assign(this, { canvas, unit, scale, format, height, onChoose, chosen: -1, x: [], series: [], marks: [] });
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "slider");
    canvas.setAttribute("aria-label", label);
    const under = (e) => this.nearest(e.clientX - canvas.getBoundingClientRect().left);
    listen(canvas, "pointermove", (e) => this.tell(e, under(e)));
    listen(canvas, "pointerleave", () => tip.hide());
    listen(canvas, "click", (e) => this.choose(under(e)));
    listen(canvas, "keydown", (e) => {
      const by = { ArrowRight: 1, ArrowLeft: -1, PageUp: 10, PageDown: -10, Home: -Infinity, End: Infinity }[e.key];
      if (by === undefined || this.x.length === 0) return;
      e.preventDefault();
      this.choose(Math.max(0, Math.min(this.x.length - 1, this.chosen + by)));
    });
  }

  // set shows series over x, which rises; name(i) is the name of the i-th point, and marks are
  // points that stand out.
  set({ x, name, series, marks = [], limit = 0, ticksOf = ticks }) {
    Object.assign(this, { x, name, series, marks, limit, ticksOf });
    this.canvas.setAttribute("aria-valuemin", 0);
    this.canvas.setAttribute("aria-valuemax", Math.max(0, x.length - 1));
    this.draw();
  }

  choose(i) {
    if (i < 0) return;
    this.select(i);
    this.onChoose(i);
  }

  // select marks a point that was chosen in another view; -1: none.
  select(i) {
    this.chosen = i;
    this.canvas.setAttribute("aria-valuenow", Math.max(0, i));
    this.canvas.setAttribute("aria-valuetext", i < 0 ? "none is chosen" : [this.name(i), ...this.values(i).map(([s, v]) => `${s.name} ${this.format(v)}`)].join(", "));
    this.draw();
  }

  values(i) { return this.series.map((s) => [s, s.y[i]]).filter(([, v]) => !Number.isNaN(v)); }

  tell(e, i) {
    if (i < 0) return tip.hide();
    tip.show(e.clientX, e.clientY, el("div", { class: "tip-head" }, this.name(i)), this.values(i).map(([s, v]) => row(swatched(hue(s.hue), s.name), this.format(v))));
  }

  at(x) { return this.left + ((x - this.from) / (this.to - this.from)) * this.plot; }

  nearest(px) {
    let best = -1;
    for (let i = 0; i < this.x.length; i++) if (best < 0 || Math.abs(this.at(this.x[i]) - px) < Math.abs(this.at(this.x[best]) - px)) best = i;
    return best;
  }

  draw() {
    const width = this.canvas.parentElement.clientWidth, n = this.x.length;
    if (width === 0) return; // the page is hidden
    const c = canvasFor(this.canvas, width, this.height), top = 18, bottom = 20, h = this.height - top - bottom;
    c.font = `12px ${css("--font")}`;
    const most = (Math.max(this.limit, ...this.series.map((s) => s.y.reduce((a, v) => (v > a ? v : a), 0))) || this.scale) * 1.06;
    Object.assign(this, { left: leftOf(c, most / this.scale, h), from: this.x[0] ?? 0 });
    this.plot = width - this.left - 14;
    this.to = n < 2 ? this.from + 1 : this.x[n - 1];
    const y = (v) => top + h * (1 - v / most);
    drawAxes(c, { left: this.left, plot: this.plot, top, height: h, width, unit: this.unit, most: most / this.scale, xTicks: this.ticksOf(this.from, this.to, this.plot / 90), at: (v) => this.at(v) });
    for (const s of this.series) {
      c.strokeStyle = hue(s.hue);
      c.lineWidth = 1.5;
      c.beginPath();
      let column = -1, high = -Infinity, open = false;
      const flush = () => {
        if (high === -Infinity) return;
        c[open ? "lineTo" : "moveTo"](column, y(high));
        if (!open) c.lineTo(column + 1, y(high)); // makes a single point visible
        [open, high] = [true, -Infinity];
      };
      for (let i = 0; i < n; i++) {
        const px = Math.round(this.at(this.x[i]));
        if (px !== column) flush();
        if (Number.isNaN(s.y[i])) flush(), (open = false);
        else high = Math.max(high, s.y[i]);
        column = px;
      }
      flush();
      c.stroke();
      if (n === 1) dot(c, this.at(this.x[0]), y(s.y[0]), hue(s.hue), 3);
      for (const i of this.marks) dot(c, this.at(this.x[i]), y(s.y[i]), css("--alarm"), 3);
    }
    if (this.limit > 0) drawLimit(c, this.left, this.plot, y(this.limit), width);
    if (this.chosen < 0 || this.chosen >= n) return;
    c.strokeStyle = css("--accent");
    c.beginPath();
    c.moveTo(this.at(this.x[this.chosen]), top);
    c.lineTo(this.at(this.x[this.chosen]), top + h);
    c.stroke();
    for (const [s, v] of this.values(this.chosen)) dot(c, this.at(this.x[this.chosen]), y(v), hue(s.hue), 4);
  }
}

function dot(c, x, y, colour, radius) {
  c.fillStyle = colour;
  c.strokeStyle = css("--paper");
  c.lineWidth = 1;
  c.beginPath();
  c.arc(x, y, radius, 0, 7);
  c.fill();
  c.stroke();
}

// yTicks returns the ticks of an axis from 0 to most, for a height in pixels.
const yTicks = (most, height) => ticks(0, most, Math.max(2, height / 40));

// leftOf returns the left edge of a plot, after its labels.
const leftOf = (c, most, height) => 16 + Math.max(30, ...yTicks(most, height).map((t) => c.measureText(t.text).width));

// drawAxes draws lines and labels of y from 0 to most, and of x at its ticks.
function drawAxes(c, { left, plot, top, height, width, unit, most, xTicks, at }) {
  const faint = css("--faint");
  c.lineWidth = 1;
  c.textAlign = "right";
  c.textBaseline = "middle";
  for (const t of yTicks(most, height)) {
    const y = Math.round(top + height * (1 - t.at / most)) + 0.5;
    c.strokeStyle = css("--line");
    c.beginPath();
    c.moveTo(left, y);
    c.lineTo(left + plot, y);
    c.stroke();
    c.fillStyle = faint;
    c.fillText(t.text, left - 8, y);
  }
  c.fillStyle = c.strokeStyle = faint;
  c.textAlign = "left";
  c.textBaseline = "top";
  c.fillText(unit, 4, 2);
  let free = 0; // the first pixel without a label
  for (const t of xTicks) {
    const x = Math.round(at(t.at)) + 0.5, w = c.measureText(t.text).width, from = Math.max(2, Math.min(width - w - 2, x - w / 2));
    c.beginPath();
    c.moveTo(x, top + height);
    c.lineTo(x, top + height + 4);
    c.stroke();
    if (from >= free) c.fillText(t.text, from, top + height + 6), (free = from + w + 6);
  }
}

// drawLimit draws the line of a memory limit.
function drawLimit(c, left, plot, y, width) {
  c.strokeStyle = c.fillStyle = css("--alarm");
  c.lineWidth = 1;
  c.setLineDash([6, 4]);
  c.beginPath();
  c.moveTo(left, Math.round(y) + 0.5);
  c.lineTo(left + plot, Math.round(y) + 0.5);
  c.stroke();
  c.setLineDash([]);
  c.textAlign = "right";
  c.textBaseline = "bottom";
  c.fillText("limit", width - 14, y - 2);
}

// legend shows the meaning of colours: items are [colour, name].
function legend(box, ...items) {
  replace(box, items.filter(Boolean).map(([colour, name]) => el("li", {}, el("i", { class: "swatch", style: { background: colour } }), name)));
}
