// The holders of a moment as a table: a row for each owner and size of block.

class Holders {
  constructor(page) {
    const { owners, r } = page;
    const columns = [];
    if (r.labelled) columns.push({ name: "category", text: true, value: (h) => owners.category(h.owner), show: (h) => swatched(page.nameColour(owners.category(h.owner)), owners.category(h.owner)) });
    if (r.modules.some((m) => m)) columns.push({ name: "module", text: true, value: (h) => owners.module(h.owner), show: (h) => words(owners.module(h.owner)) || "–" });
    if (r.stacked) columns.push({ name: "call site", text: true, value: (h) => owners.site(h.owner), show: (h) => this.site(owners, h.owner) });
    if (!r.labelled && !r.stacked) columns.push({ name: "size of block", text: true, value: (h) => sizeClass(h.size), show: (h) => swatched(page.nameColour(sizeClass(h.size)), sizeClass(h.size)) });
    if (r.tags.some((t) => t)) columns.push({ name: "tags", text: true, value: (h) => owners.tags(h.owner), show: (h) => words(owners.tags(h.owner).replaceAll("\n", ", ")) });
    columns.push(
      { name: "held", title: "bytes of all blocks", value: (h) => h.bytes, show: (h) => bytes(h.bytes) },
      { name: "share", value: (h) => h.bytes, show: (h) => percent(h.bytes, this.all) },
      { name: "blocks", value: (h) => h.blocks, show: (h) => count(h.blocks) },
      { name: "each", title: "bytes of each block", value: (h) => h.size, show: (h) => bytes(h.size) });
    amountFirst(columns, "held");
    this.table = new Table($("holders"), columns, { sort: columns.findIndex((c) => c.name === "held"), most: 15, label: "holders of memory at the moment" });
  }

  // site returns the call site, which opens to the stacks that lead to it.
  site(owners, o) {
    const stacks = owners.stacks(o), some = 8;
    if (stacks.length === 0) return "–";
    if (stacks.length === 1 && stacks[0].length === 1) return words(owners.site(o));
    return el("details", {}, el("summary", {}, words(owners.site(o))), stacks.slice(0, some).map((lines) => el("ol", { class: "stack" }, levels(lines, 100).map((line) => el("li", {}, words(line))))),
      stacks.length > some ? `and ${plural(stacks.length - some, "other stack")}` : null);
  }

  // set sets the holdings, and merges those of one call site and size.
  set(list, all, owners) {
    const rows = new Map();
    for (const h of list) {
      const owner = owners.same[h.owner], key = `${owner} ${h.size}`, row = rows.get(key);
      if (row) (row.bytes += h.bytes), (row.blocks += h.blocks);
      else rows.set(key, { ...h, owner });
    }
    this.all = all;
    this.table.set([...rows.values()]);
  }
}
