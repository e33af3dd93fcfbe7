// A moment is the number of an entry; -1 is before the first. A block is held at the moments from
// alloc up to but not including free. Everything here is exact, because it reads every entry.

class Moments {
  constructor(r) {
    this.r = r;
    this.last = r.moments - 1;
    this.list();
    this.allocated = this.curve((add) => {
      for (let i = 0; i < r.blocks; i++) add(r.alloc[i], r.size[i]), add(r.free[i], -r.size[i]);
    });
    this.reserved = this.curve((add) => {
      for (let i = 0; i < r.rangeSize.length; i++) add(r.rangeFrom[i], r.rangeSize[i]), add(r.rangeTo[i], -r.rangeSize[i]);
    });
    // The bytes of segments that contain blocks, without the blocks (nonreleasable.go).
    this.nonReleasable = r.keptAt?.length > 0 ? this.curve((add) => {
      for (let i = 0; i < r.keptAt.length; i++) add(r.keptAt[i], r.keptBy[i]);
      for (let i = 0; i < r.blocks; i++) if (!r.apart?.[i]) add(r.alloc[i], -r.size[i]), add(r.done[i], r.size[i]);
    }) : null;
    this.nonReleasable?.forEach((v, i, list) => { if (v < 0) list[i] = 0; });
  }

  // list computes the changes of each moment. Those of moment m are from first[m+1] to first[m+2]:
  // block i is i where it begins and ~i where it ends.
  list() {
    const r = this.r, n = r.moments;
    const first = (this.first = new Int32Array(n + 3));
    for (let i = 0; i < r.blocks; i++) first[r.alloc[i] + 2]++, first[r.free[i] + 2]++;
    for (let i = 1; i < first.length; i++) first[i] += first[i - 1];
    const at = first.slice();
    this.changes = new Int32Array(2 * r.blocks);
    for (let i = 0; i < r.blocks; i++) this.changes[at[r.alloc[i] + 1]++] = i;
    for (let i = 0; i < r.blocks; i++) this.changes[at[r.free[i] + 1]++] = ~i;
  }

  curve(each) {
    const c = new Float64Array(this.r.moments + 2);
    each((at, by) => (c[at + 1] += by));
    for (let i = 1; i < c.length; i++) c[i] += c[i - 1];
    return c;
  }

  allocatedAt(m) { return this.allocated[m + 1]; }
  reservedAt(m) { return this.reserved[m + 1]; }
  nonReleasableAt(m) { return this.nonReleasable ? this.nonReleasable[m + 1] : 0; }

  // live calls f with each block that is held at a moment.
  live(m, f) {
    const { alloc, free, blocks } = this.r;
    for (let i = 0; i < blocks; i++) if (alloc[i] <= m && m < free[i]) f(i);
  }

  // peakIn returns the first moment from from to to, inclusive, with the most allocated bytes.
  peakIn(from, to) {
    let best = from;
    for (let m = from; m <= to; m++) if (this.allocated[m + 1] > this.allocated[best + 1]) best = m;
    return best;
  }

  // next returns the nearest moment in a direction at which something changes.
  next(m, direction) {
    for (let i = m + direction; i >= -1 && i <= this.last; i += direction) {
      if (this.first[i + 2] > this.first[i + 1] || this.reserved[i + 1] !== this.reserved[Math.max(i, 0)]) return i;
    }
    return direction > 0 ? this.last : -1;
  }

  // columns divides the moments into n columns, and returns the groups' bytes at the largest moment
  // of each. edge[x] is the first moment of column x, and edge[n] the first after all. groupOf has
  // the group of each block.
  columns(edge, groupOf, groups) {
    const n = edge.length - 1, { size } = this.r;
    const sums = new Float64Array(groups), out = new Float64Array(n * groups), total = new Float64Array(n), reserved = new Float64Array(n), nonReleasable = new Float64Array(n);
    const moment = new Int32Array(n);
    let m = -1, all = 0;
    const step = () => {
      for (let j = this.first[m + 1]; j < this.first[m + 2]; j++) {
        const c = this.changes[j], i = c < 0 ? ~c : c, by = c < 0 ? -size[i] : size[i];
        sums[groupOf[i]] += by;
        all += by;
      }
      m++;
    };
    while (m < edge[0]) step();
    for (let x = 0; x < n; x++) {
      const keep = (at) => {
        total[x] = all;
        moment[x] = at;
        out.set(sums, x * groups);
      };
      // A column without a moment of its own shows the previous moment.
      keep(Math.max(-1, Math.min(m - 1, this.last)));
      const at = Math.max(-1, Math.min(m, this.last + 1) - 1);
      reserved[x] = this.reservedAt(at);
      nonReleasable[x] = this.nonReleasableAt(at);
      let fresh = true;
      while (m < edge[x + 1] && m <= this.last) {
        step();
        if (fresh || all > total[x]) keep(m - 1);
        reserved[x] = fresh ? this.reserved[m] : Math.max(reserved[x], this.reserved[m]);
        if (this.nonReleasable) nonReleasable[x] = fresh ? this.nonReleasable[m] : Math.max(nonReleasable[x], this.nonReleasable[m]);
        fresh = false;
      }
    }
    return { out, total, reserved, nonReleasable, moment };
  }
}
