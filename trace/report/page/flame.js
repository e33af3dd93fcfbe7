// The holders of memory at a moment, as a flame graph: the total on top, and below each part its
// own parts, as wide as they are large.

class Flame {
  constructor(page) {
    this.page = page;
    this.box = $("flame");
    this.path = []; // of the open part
    listen(this.box, "keydown", (e) => this.key(e));
  }

  // set sets the holdings: { owner, size, blocks, bytes }.
  set(holdings) {
    const root = { name: "all", bytes: 0, blocks: 0, children: new Map(), path: [], depth: 0 };
    for (const h of holdings) {
      let node = root;
      node.bytes += h.bytes;
      node.blocks += h.blocks;
      for (const name of this.page.owners.path(h.owner, h.size)) {
        let child = node.children.get(name);
        if (!child) node.children.set(name, (child = { name, bytes: 0, blocks: 0, children: new Map(), path: [...node.path, name], owner: h.owner }));
        node = child;
        node.bytes += h.bytes;
        node.blocks += h.blocks;
      }
    }
    this.root = root;
    while (this.path.length > 0 && !this.find(this.path)) this.path.pop();
    this.draw();
  }

  find(path) {
    let node = this.root;
    for (const name of path) if (!(node = node.children.get(name))) return null;
    return node;
  }

  draw() {
    this.pen ||= document.createElement("canvas").getContext("2d");
    const { fontSize, fontFamily } = getComputedStyle(this.box);
    this.pen.font = `${fontSize} ${fontFamily}`;
    const top = this.find(this.path), cells = [];
    const lay = (node, from, depth, colour) => {
      let chain = node;
      const names = [node.name];
      // A part without siblings shares the cell of its parent.
      while (depth > 0 && chain.children.size === 1) {
        chain = chain.children.values().next().value;
        names.push(chain.name);
      }
      cells.push({ node: chain, names, from, depth, colour });
      let x = from, small = 0, smallBytes = 0, smallBlocks = 0;
      for (const child of [...chain.children.values()].sort((a, b) => b.bytes - a.bytes || (a.name < b.name ? -1 : 1))) {
        if (child.bytes / top.bytes < 0.002) {
          small++, (smallBytes += child.bytes), (smallBlocks += child.blocks);
          continue;
        }
        lay(child, x, depth + 1, (depth === 0 && this.path.length === 0) || !this.page.inherits ? this.page.nameColour(child.name) : mix(colour, css("--paper"), 0.88));
        x += child.bytes;
      }
      if (small > 0) cells.push({ node: { name: `${small} smaller`, bytes: smallBytes, blocks: smallBlocks, children: new Map() }, names: [`${plural(small, "smaller part")}`], from: x, depth: depth + 1, colour: css("--band"), rest: true });
    };
    if (top.bytes > 0) lay(top, 0, 0, this.path.length > 0 ? this.page.nameColour(this.path[0]) : css("--band"));
    const height = 24;
    this.box.style.height = `${(Math.max(0, ...cells.map((c) => c.depth)) + 1) * height}px`;
    replace(this.box, cells.map((c, i) => this.cell(c, i, top, height)));
    if (cells.length === 0) replace(this.box, el("p", { class: "nothing" }, "Nothing is held at this moment."));
    this.crumbs();
  }

  cell(c, i, top, height) {
    const what = shorten(c.names.map((n) => shorten(n, 200)).join(" › "), 1000), part = percent(c.node.bytes, this.root.bytes);
    return el("div", {
      class: c.rest ? "cell rest" : "cell", role: "treeitem", tabindex: i === 0 ? 0 : -1, "aria-level": c.depth + 1, "data-bytes": c.node.bytes, "data-depth": c.depth,
      "aria-label": `${what}: ${mib(c.node.bytes)}, ${part}, ${plural(c.node.blocks, "block")}`,
      style: { left: `${(100 * c.from) / top.bytes}%`, width: `${(100 * c.node.bytes) / top.bytes}%`, top: `${c.depth * height}px`, background: c.colour, color: inkOn(c.colour) },
      onclick: () => (c.rest ? null : this.open(i === 0 ? this.path.slice(0, -1) : c.node.path)),
      onpointermove: (e) => tip.show(e.clientX, e.clientY, el("div", { class: "tip-head" }, c.names.slice(0, 24).map((n) => el("div", {}, shorten(n, 200)))),
        row("bytes", exactly(c.node.bytes)), row("share", part), row("blocks", count(c.node.blocks))),
      onpointerleave: () => tip.hide(),
    }, this.text(c, (this.box.clientWidth * c.node.bytes) / top.bytes - 16));
  }

  // text draws as many of a cell's names as fit, and its bytes if they fit, too.
  text(c, width) {
    const measure = (t) => this.pen.measureText(t).width, amount = mib(c.node.bytes), names = c.names.map((n) => shorten(n, 200)).join(" › ");
    const whole = names.length * 4 < width && measure(names) <= width;
    if (whole) return [el("span", {}, names), measure(`${names}  ${amount}`) <= width ? [" ", el("small", {}, amount)] : null];
    let n = Math.min(names.length, Math.floor(width / 4));
    while (n > 2 && measure(shorten(names, n)) > width) n--;
    return n > 2 ? el("span", {}, shorten(names, n)) : null;
  }

  open(path) {
    tip.hide();
    this.path = path;
    this.draw();
    this.page.filter();
    this.focus();
  }

  focus() { this.box.querySelector(".cell")?.focus(); }

  crumbs() {
    replace($("crumbs"), this.path.length === 0 ? null : [
      el("button", { type: "button", onclick: () => this.open([]) }, "all"),
      this.path.map((name, i) => [" › ", i === this.path.length - 1 ? el("b", {}, shorten(name, 80)) : el("button", { type: "button", onclick: () => this.open(this.path.slice(0, i + 1)) }, shorten(name, 80))])]);
  }

  // key moves between the cells: down to the largest part, up to the parent, left and right on a
  // level.
  key(e) {
    const cell = e.target.closest(".cell");
    if (!cell) return;
    const cells = [...this.box.querySelectorAll(".cell")], depth = (c) => Number(c.dataset.depth), left = (c) => parseFloat(c.style.left);
    const level = cells.filter((c) => depth(c) === depth(cell)).sort((a, b) => left(a) - left(b)), at = level.indexOf(cell);
    const inside = (a, b) => left(a) >= left(b) - 1e-6 && left(a) < left(b) + parseFloat(b.style.width) - 1e-9;
    const go = {
      ArrowRight: () => level[at + 1], ArrowLeft: () => level[at - 1], Home: () => cells[0],
      ArrowDown: () => cells.filter((c) => depth(c) === depth(cell) + 1 && inside(c, cell)).sort((a, b) => left(a) - left(b))[0],
      ArrowUp: () => cells.find((c) => depth(c) === depth(cell) - 1 && inside(cell, c)),
    }[e.key];
    if (go) {
      const to = go();
      if (to) {
        for (const c of cells) c.tabIndex = -1;
        to.tabIndex = 0;
        to.focus();
      }
    } else if (e.key === "Enter" || e.key === " ") cell.click();
    else if (e.key === "Escape") {
      if (this.path.length > 0) this.open(this.path.slice(0, -1));
      else $("timeline").focus();
    } else return;
    e.preventDefault();
  }
}
