// The page of a difference: the peaks, and a table of each dimension with bars on both sides.

// signed returns a difference in bytes as an element.
const signed = (n) => el("data", { value: n, title: exactly(n) }, n > 0 ? "+" : "", mib(n));
const relative = (r) => {
  const before = r.before.bytes, by = r.after.bytes - before;
  if (before === 0) return by === 0 ? "" : "new";
  if (r.after.bytes === 0) return "gone";
  return `${by > 0 ? "+" : ""}${((100 * by) / before).toFixed(1)} %`;
};
const difference = (r) => r.after.bytes - r.before.bytes;
const colour = (n) => (n > 0 ? css("--alarm") : hue(0));

// changeBar returns a bar of a difference: right of a middle line for growth, else left of it.
function changeBar(n, most) {
  const width = most > 0 ? (50 * Math.abs(n)) / most : 0;
  return el("span", { class: "change", "aria-hidden": "true" }, el("i", { style: { width: `${width}%`, background: colour(n), "margin-left": `${n < 0 ? 50 - width : 50}%` } }));
}

const base = (path) => path.slice(Math.max(path.lastIndexOf("/"), path.lastIndexOf("\\")) + 1);

// holder returns the name of a row, with its file and line as its title.
function holder(dimension, r) {
  if (r.name === "") return el("span", { class: "nothing" }, dimension === "line" ? "unknown" : "none");
  if (dimension !== "line") return words(r.name);
  const place = r.file ? `  ${base(r.file)}:${r.was ? `${r.was} → ` : ""}${r.line}` : "";
  return el("span", { title: `${r.name} ${r.file}:${r.line}`.slice(0, 4000) }, shorten(base(r.name) + place, 96));
}

let tables = [];

function show(d) {
  stopListening();
  const names = `${d.before} → ${d.after}`;
  replace($("about"), names === $("name").textContent ? null : names);
  replace($("figures"), d.peaks.map((r) => el("div", {}, el("dt", {}, r.name), el("dd", {}, bytes(r.after.bytes), " ", el("small", {}, "before ", bytes(r.before.bytes), difference(r) === 0 ? null : [", ", signed(difference(r)), ` (${relative(r)})`])))));
  const same = d.dimensions.every((x) => x.rows.length === 0) && d.peaks.every((r) => difference(r) === 0);
  $("same").hidden = !same;
  tables = [];
  replace($("dimensions"), d.dimensions.map(dimension));
  colours();
  $("notes-section").hidden = d.notes.length === 0;
  replace($("notes"), d.notes.map((n) => el("li", {}, n)));
}

function dimension(x) {
  const box = el("div", { id: `rows-${x.name}`, class: "scroll" }), equal = x.equal > 0 ? `${plural(x.equal, x.name === "category" ? "categor" : x.name)}`.replace(/categors?$/, x.equal === 1 ? "category" : "categories") : "";
  const about = x.missing ? `Not compared: ${x.missing}.` : [x.name === "step" ? "Peak of the allocated bytes in each step. " : "Allocated at the peak. ", equal && `${equal} without a difference${x.name === "step" ? "" : `, ${mib(x.equal_bytes)}`}.`];
  if (x.rows.length > 0) {
    const most = x.rows.reduce((a, r) => Math.max(a, Math.abs(difference(r))), 0), blocks = x.name !== "step";
    const columns = [{ name: x.name, text: true, value: (r) => (x.name === "step" ? Number(r.name) : r.name), show: (r) => holder(x.name, r) },
      { name: "difference", value: difference, show: (r) => signed(difference(r)) }, { name: "relative", value: (r) => difference(r) / (r.before.bytes || 1e-9), show: relative },
      { name: "before", value: (r) => r.before.bytes, show: (r) => bytes(r.before.bytes) }, { name: "after", value: (r) => r.after.bytes, show: (r) => bytes(r.after.bytes) },
      blocks && { name: "blocks", title: "before and after", value: (r) => (r.after.blocks || 0) - (r.before.blocks || 0), show: (r) => `${count(r.before.blocks || 0)} → ${count(r.after.blocks || 0)}` },
      { name: "growth", text: true, value: (r) => -difference(r), show: (r) => changeBar(difference(r), most) }].filter(Boolean);
    amountFirst(columns, "difference");
    const table = new Table(box, columns, { sort: columns.findIndex((c) => c.name === "difference"), label: `by ${x.name}`, most: 20 });
    tables.push(table);
    table.set(x.rows);
  }
  return el("section", { "aria-labelledby": `title-${x.name}` }, el("h2", { id: `title-${x.name}` }, `By ${x.name}`), el("p", {}, about), x.rows.length > 0 && box);
}

function colours() { legend($("legend"), [colour(1), "growth"], [colour(-1), "shrinkage"]); }

present(() => {
  const list = JSON.parse($("data").textContent), select = $("run");
  replace(select, list.map((d, i) => el("option", { value: i }, shorten(d.after, 60))));
  $("runs").hidden = list.length < 2;
  select.onchange = () => show(list[Number(select.value)]);
  show(list[0]);
}, () => {
  colours();
  for (const table of tables) table.draw();
});
