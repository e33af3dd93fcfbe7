// The holders of a moment as a table: a row for each owner and size of block.

class Holders {
  constructor(page) {
    const { owners, r } = page;
    const columns = [];
    if (r.labelled) columns.push({ name: "category", text: true, value: (h) => owners.category(h.owner), show: (h) => [el("i", { class: "swatch", style: { background: page.nameColour(owners.path(h.owner, h.size)[0]) } }), owners.category(h.owner)] });
    if (r.modules.some((m) => m)) columns.push({ name: "module", text: true, value: (h) => owners.module(h.owner), show: (h) => owners.module(h.owner) || "–" });
    if (r.stacked) columns.push({ name: "call site", text: true, value: (h) => owners.site(h.owner), show: (h) => this.site(owners, h.owner) });
    if (!r.labelled && !r.stacked) columns.push({ name: "size of block", text: true, value: (h) => sizeClass(h.size), show: (h) => [el("i", { class: "swatch", style: { background: page.nameColour(sizeClass(h.size)) } }), sizeClass(h.size)] });
    if (r.tags.some((t) => t)) columns.push({ name: "tags", text: true, value: (h) => owners.tags(h.owner), show: (h) => owners.tags(h.owner).replaceAll("\n", ", ") });
    columns.push(
      { name: "held", title: "bytes of all blocks", value: (h) => h.bytes, show: (h) => bytes(h.bytes) },
      { name: "of all", value: (h) => h.bytes, show: (h) => percent(h.bytes, this.all) },
      { name: "blocks", value: (h) => h.blocks, show: (h) => count(h.blocks) },
      { name: "each", title: "bytes of each block", value: (h) => h.size, show: (h) => bytes(h.size) });
    this.table = new Table($("holders"), columns, { sort: columns.findIndex((c) => c.name === "held"), most: 15, label: "who holds memory at the moment" });
  }

  site(owners, o) {
    const stack = owners.fullStack(o);
    if (stack.length === 0) return "–";
    if (stack.length === 1) return owners.site(o);
    return el("details", {}, el("summary", {}, owners.site(o)), el("ol", { class: "stack" }, stack.map((line) => el("li", {}, line))));
  }

  set(list, all) {
    this.all = all;
    this.table.set(list);
  }
}
