// Blocks that were never freed, by owner. An owner grows if several steps left blocks behind: that
// is a leak, as long as the program runs.

function showKept(page) {
  const { r, owners } = page, growing = r.kept.filter((k) => k.grows), all = r.kept.reduce((a, k) => a + k.bytes, 0);
  const failing = r.failing ? ` Blocks of step ${count(r.failing)}, in which memory ran out, are not counted.` : "";
  if (r.kept.length === 0) {
    replace($("kept-about"), "Every block was freed.", failing);
    replace($("kept"));
    return null;
  }
  const grown = growing.reduce((a, k) => a + k.bytes, 0);
  replace($("kept-about"), bytes(all), " are held at the end of the recording.", r.steps.count === 0 ? " The recording has no steps, so growth is unknown."
    : growing.length === 0 ? " No owner left blocks in three or more steps, so nothing grows." : [" ", el("b", { class: "alarm" }, bytes(grown), " grow"), `: ${plural(growing.length, "owner")} left blocks in three or more steps.`], failing);
  const columns = [];
  if (growing.length > 0) columns.push({ name: "grows", text: true, value: (k) => (k.grows ? 0 : 1), show: (k) => (k.grows ? el("b", { class: "alarm" }, "grows") : "") });
  if (r.labelled) columns.push({ name: "category", text: true, value: (k) => owners.category(k.owner), show: (k) => swatched(page.nameColour(owners.category(k.owner)), owners.category(k.owner)) });
  if (r.modules.some((m) => m)) columns.push({ name: "module", text: true, value: (k) => owners.module(k.owner), show: (k) => words(owners.module(k.owner)) || "–" });
  if (r.stacked) columns.push({ name: "call site", text: true, value: (k) => owners.site(k.owner), show: (k) => page.holders.site(owners, k.owner) });
  if (columns.length === (growing.length > 0 ? 1 : 0)) columns.push({ name: "blocks of", text: true, value: (k) => k.size, show: (k) => (k.size ? bytes(k.size) : words(owners.name(k.owner))) });
  columns.push({ name: "held", value: (k) => k.bytes, show: (k) => bytes(k.bytes) }, { name: "blocks", value: (k) => k.blocks, show: (k) => count(k.blocks) });
  if (r.steps.count > 0) {
    columns.push({ name: "steps", title: "the number of steps that left blocks", value: (k) => k.steps, show: (k) => (k.steps ? count(k.steps) : "–") },
      { name: "first", title: "the step of the oldest block", value: (k) => k.first, show: (k) => (k.first ? count(k.first) : "–") },
      { name: "last", title: "the step of the youngest block", value: (k) => k.last, show: (k) => (k.last ? count(k.last) : "–") },
      { name: "outside", title: "blocks allocated outside of steps", value: (k) => k.before, show: (k) => count(k.before) });
  }
  amountFirst(columns, "held");
  const table = new Table($("kept"), columns, { sort: columns.findIndex((c) => c.name === (growing.length > 0 ? "grows" : "held")), descending: growing.length === 0, most: 25, label: "never freed" });
  table.set(r.kept);
  return table;
}
