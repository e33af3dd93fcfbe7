// The owner of a block in words: its category, its module and its line in the program.

class Owners {
  constructor(r, categories) {
    this.r = r;
    this.categories = categories;
    this.merge();
  }

  // merge finds the owners that differ only in the calls around their call site: same[o] is the
  // first of them, and ways[o] has all of them.
  merge() {
    const { owners, sites } = this.r, first = new Map();
    this.ways = new Map();
    this.same = owners.map(([category, module, tags, stack], o) => {
      const key = `${category} ${module} ${tags} ${stack < 0 ? -1 : sites[stack]}`;
      if (!first.has(key)) first.set(key, o), this.ways.set(o, []);
      this.ways.get(first.get(key)).push(o);
      return first.get(key);
    });
  }

  category(o) { return this.categoryName(this.r.owners[o][0]); }

  categoryName(c) {
    if (c === -2) return "before the recording";
    return this.categories[c] || "not labelled";
  }

  module(o) { return this.r.modules[this.r.owners[o][1]] || ""; }
  tags(o) { return this.r.tags[this.r.owners[o][2]] || ""; }

  frame(f) {
    const [name, file, line] = this.r.frames[f];
    const base = file.slice(Math.max(file.lastIndexOf("/"), file.lastIndexOf("\\")) + 1);
    const short = name.slice(name.lastIndexOf("/") + 1);
    return base ? `${short}  ${base}:${line}` : short;
  }

  // site returns the line in the user's program; "": unknown.
  site(o) {
    const stack = this.r.owners[o][3];
    return stack < 0 ? "" : this.frame(this.r.sites[stack]);
  }

  // stack returns the whole stack, the outermost call first.
  stack(o) {
    const stack = this.r.owners[o][3];
    return stack < 0 ? [] : this.r.stacks[stack].toReversed().map((f) => this.frame(f));
  }

  // stacks returns all stacks that lead to the owner's call site, in full, the innermost call
  // first.
  stacks(o) {
    return this.ways.get(this.same[o]).map((way) => this.r.owners[way][3]).filter((stack) => stack >= 0)
      .map((stack) => this.r.stacks[stack].map((f) => this.r.frames[f]).map(([name, file, line]) => `${name} ${file}:${line}`));
  }

  // name returns the owner in one line.
  name(o) {
    const parts = [];
    if (this.r.labelled || this.r.owners[o][0] === -2) parts.push(this.category(o));
    if (this.module(o)) parts.push(this.module(o));
    if (this.site(o)) parts.push(this.site(o));
    if (this.tags(o)) parts.push(this.tags(o).replaceAll("\n", ", "));
    return parts.join(" · ") || "unknown owner";
  }

  // path returns the path of a block of a size in the flame graph.
  path(o, size) {
    const { labelled, stacked, owners } = this.r;
    if (owners[o][0] === -2) return ["before the recording", `blocks of ${mib(size)}`];
    if (!labelled && !stacked) return [sizeClass(size), `blocks of ${mib(size)}`];
    const path = labelled ? [this.category(o), ...levels(modulePath(this.module(o)).split(".").filter(Boolean), 16)] : [];
    if (labelled) path.push(this.site(o) || `blocks of ${mib(size)}`);
    else path.push(...levels(this.stack(o), 64));
    return path.length > 0 ? path : ["unknown owner"];
  }

  // groupings returns the ways to stack the timeline, the best one first.
  groupings() {
    const { labelled, stacked, owners, modules, tags } = this.r;
    const list = [];
    const byOwner = (f) => {
      const names = owners.map((_, o) => f(o));
      return (r, i) => names[r.owner[i]];
    };
    if (labelled) {
      list.push({ name: "category", of: byOwner((o) => this.category(o)), categories: true });
      const deep = modules.some((m) => modulePath(m).includes("."));
      list.push({ name: deep ? "outer module" : "module", of: byOwner((o) => modulePath(this.module(o)).split(".")[0] || "no module") });
      if (deep) list.push({ name: "module", of: byOwner((o) => this.module(o) || "no module") });
    }
    if (stacked) list.push({ name: "call site", of: byOwner((o) => this.site(o) || "no stack") });
    if (tags.some((t) => t)) list.push({ name: "tags", of: byOwner((o) => this.tags(o).replaceAll("\n", ", ") || "no tags") });
    list.push({ name: "size of block", of: (r, i) => sizeClass(r.size[i]), sizes: true });
    if (this.r.streams.length > 1) list.push({ name: "stream", of: (r, i) => `stream ${r.streams[r.stream[i]]}` });
    return list;
  }
}

// modulePath returns a module without the type of its layer, as memcache.ModulePath does.
function modulePath(module) {
  return module.replace(/(^| )\([^(]*\)$/, "");
}

// levels returns at most most parts of a path, with the middle of a longer path as one part.
function levels(parts, most) {
  if (parts.length <= most) return parts;
  const half = most >> 1;
  return [...parts.slice(0, half), `… ${count(parts.length - most + 1)} more …`, ...parts.slice(parts.length - (most - half - 1))];
}

const sizeLimits = [64 * 1024, MiB, 10 * MiB, 32 * MiB, 128 * MiB, 512 * MiB];
const sizeNames = ["up to 64 KiB", "up to 1 MiB", "up to 10 MiB", "up to 32 MiB", "up to 128 MiB", "up to 512 MiB", "above 512 MiB"];

function sizeClass(size) {
  const i = sizeLimits.findIndex((limit) => size <= limit);
  return sizeNames[i < 0 ? sizeLimits.length : i];
}

// Long-lived blocks are at the bottom of the chart, where they don't move.
const categoryOrder = ["before the recording", "parameter", "optimizer state", "input", "other", "not labelled", "gradient", "activation", "workspace"];

// groupsOf numbers the groups of a grouping, from the bottom of the chart up: categories in their
// order, others by their bytes at the peak. Groups beyond the most are merged into one.
function groupsOf(r, moments, grouping, most) {
  const names = new Map(), of = new Int32Array(r.blocks), held = [];
  for (let i = 0; i < r.blocks; i++) {
    const name = grouping.of(r, i);
    let g = names.get(name);
    if (g === undefined) names.set(name, (g = names.size)), held.push(0);
    of[i] = g;
    // A small part of the size, which orders groups without bytes at the peak.
    held[g] += r.size[i] * 1e-9;
  }
  moments.live(r.peak, (i) => (held[of[i]] += r.size[i]));
  let list = [...names.entries()].map(([name, g]) => ({ name, g, held: held[g] }));
  list.sort((a, b) => b.held - a.held || (a.name < b.name ? -1 : 1));
  if (grouping.categories) list.sort((a, b) => categoryOrder.indexOf(a.name) - categoryOrder.indexOf(b.name));
  if (grouping.sizes) list.sort((a, b) => sizeNames.indexOf(a.name) - sizeNames.indexOf(b.name));
  const place = new Int32Array(list.length);
  list.forEach((e, i) => (place[e.g] = Math.min(i, most)));
  for (let i = 0; i < r.blocks; i++) of[i] = place[of[i]];
  if (list.length > most + 1) {
    const rest = list.length - most;
    list = [...list.slice(0, most), { name: `${rest} others`, rest: true }];
  }
  return { of, names: list.map((e) => e.name), rest: list.map((e) => !!e.rest) };
}
