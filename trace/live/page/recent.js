// The last five minutes: 600 slots of half a second, each with the largest and the last values in
// it.

const slot = 500, slots = 600, lines = { allocated: "allocated", peak: "peak of the latest step", reserved: "reserved" };

class Recent {
  ring = [];

  add(time, values) {
    const t = Math.floor(time / slot), i = t % slots, old = this.ring[i];
    if (old?.t > t) return; // the slot has newer values
    const s = (this.ring[i] = old?.t === t ? old : { t, time: t * slot, most: {}, last: {}, when: {} });
    for (const name in values) {
      s.most[name] = Math.max(s.most[name] ?? 0, values[name]);
      if (!(s.when[name] > time)) [s.when[name], s.last[name]] = [time, values[name]];
    }
  }

  step(p) {
    const start = Date.parse(p.start);
    this.add(start, { peak: p.allocated_peak });
    this.add(start + p.host_time_ns / 1e6, { allocated: p.allocated_end, reserved: p.reserved });
  }

  // points returns the points up to now, the last with the values then. A value holds until the
  // next one, or until a gap, in which nothing is known.
  points(now, then) {
    const list = this.ring.filter((s) => s.time > now - slot * slots).sort((a, b) => a.t - b.t), points = [];
    let held = {}, before = Infinity;
    for (const s of [...list, { time: now, most: then }]) {
      if (s.time > before + slot) for (const time of [before + slot, Math.max(before, s.time - 2 * slot) + slot]) points.push({ ...held, time });
      if (s.most.gap) held = {};
      points.push({ ...held, ...s.most, time: s.time });
      [held, before] = [{ ...held, ...s.last, gap: 0 }, s.time];
    }
    return points;
  }
}
