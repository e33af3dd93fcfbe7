// Tables that sort by any column. Columns: { name, title, value(row), show(row), text, start };
// value sorts, show returns the contents of a cell, text columns are on the left and start
// ascending. foot is a row below all others.

class Table {
  constructor(box, columns, { sort = 0, descending = true, most = 100, onSelect, label, foot } = {}) {
    Object.assign(this, { box, columns, sort, descending, most, onSelect, label, foot, rows: [], shown: most, selected: null });
    listen(box, "keydown", (e) => this.key(e));
  }

  set(rows) {
    this.rows = rows;
    this.shown = this.most;
    this.draw();
  }

  sorted() {
    const { value, text } = this.columns[this.sort], sign = this.descending ? -1 : 1;
    const keys = new Map(this.rows.map((r) => [r, value(r)]));
    return [...this.rows].sort((a, b) => {
      const x = keys.get(a), y = keys.get(b);
      return sign * (text ? (x < y ? -1 : x > y ? 1 : 0) : x - y);
    });
  }

  sortBy(i) {
    this.descending = i === this.sort ? !this.descending : !this.columns[i].text && !this.columns[i].ascending;
    this.sort = i;
    this.draw();
    this.box.querySelectorAll("th button")[i].focus();
  }

  // draw replaces the rows, and the head only when the order changes, so that a focused button
  // keeps the focus while rows are added.
  draw() {
    const rows = this.sorted(), shown = rows.slice(0, this.shown);
    if (this.selected && rows.includes(this.selected) && !shown.includes(this.selected)) shown.push(this.selected);
    this.lines = shown.map((r) => this.line(r));
    this.focusable();
    const order = `${this.sort} ${this.descending}`;
    if (this.order !== order) {
      this.order = order;
      const head = el("thead", {}, el("tr", {}, this.columns.map((c, i) => el("th", { scope: "col", class: c.text ? "text" : null, "aria-sort": i === this.sort ? (this.descending ? "descending" : "ascending") : "none" },
        el("button", { type: "button", title: c.title, onclick: () => this.sortBy(i) }, c.name, el("span", { class: "arrow", "aria-hidden": "true" }, i === this.sort ? (this.descending ? " ↓" : " ↑") : ""))))));
      replace(this.box, el("table", { "aria-label": this.label }, head, (this.body = el("tbody")), this.foot ? el("tfoot", {}, this.line(this.foot)) : null), (this.more = el("p", { class: "more" })));
    }
    replace(this.body, this.lines);
    replace(this.more, rows.length > this.shown ? [`${count(this.shown)} of ${count(rows.length)} `, el("button", { type: "button", onclick: () => { this.shown *= 4; this.draw(); } }, "More")] : null);
    this.more.hidden = rows.length <= this.shown;
  }

  line(r) {
    const tr = el("tr", { class: r === this.selected ? "selected" : null, "aria-selected": this.onSelect ? r === this.selected : null, onclick: this.onSelect ? () => this.choose(r) : null },
      this.columns.map((c) => el("td", { class: c.text ? "text" : null }, c.show(r))));
    tr.row = r;
    if (this.onSelect) tr.classList.add("choice");
    return tr;
  }

  focusable() {
    if (!this.onSelect) return;
    const first = this.lines.find((l) => l.row === this.selected) || this.lines[0];
    for (const l of this.lines) l.tabIndex = l === first ? 0 : -1;
  }

  choose(r) { this.onSelect(r); }

  // select marks a row that was chosen in another view.
  select(r) {
    if (this.selected === r) return;
    this.selected = r;
    if (r && !this.lines?.some((l) => l.row === r)) this.draw();
    for (const l of this.lines || []) {
      l.classList.toggle("selected", l.row === r);
      l.setAttribute("aria-selected", l.row === r);
    }
    this.focusable();
    const line = this.lines?.find((l) => l.row === r);
    if (line) {
      const box = this.box, top = line.offsetTop, head = 34;
      if (top < box.scrollTop + head) box.scrollTop = top - head;
      else if (top + line.offsetHeight > box.scrollTop + box.clientHeight) box.scrollTop = top + line.offsetHeight - box.clientHeight;
    }
  }

  key(e) {
    const tr = e.target.closest("tbody tr");
    if (!tr || !this.onSelect) return;
    if (e.key === "Enter" || e.key === " ") this.choose(tr.row);
    else if (e.key === "ArrowDown" || e.key === "ArrowUp") {
      const to = e.key === "ArrowDown" ? tr.nextElementSibling : tr.previousElementSibling;
      if (to) {
        tr.tabIndex = -1;
        to.tabIndex = 0;
        to.focus();
      }
    } else return;
    e.preventDefault();
  }
}

// amountFirst moves a column to the front if the screen is too narrow for all.
function amountFirst(columns, name) {
  const i = columns.findIndex((c) => c.name === name);
  if (window.innerWidth < 600) columns.unshift(...columns.splice(i, 1));
}

// swatched returns a name after its colour.
const swatched = (colour, name) => el("span", { class: "swatched" }, el("i", { class: "swatch", style: { background: colour } }), name);

// shareBar returns a bar of the parts of a whole.
function shareBar(parts, whole) {
  return el("span", { class: "bar", role: "img", "aria-label": parts.map((p) => `${p.name} ${mib(p.bytes)}`).join(", ") },
    parts.map((p) => el("i", { title: `${p.name}: ${mib(p.bytes)} (${exactly(p.bytes)})`, style: { width: `${whole > 0 ? (100 * p.bytes) / whole : 0}%`, background: p.colour } })));
}
