// Steps that stand out: those that failed or ran out of memory, and those with a peak or a time
// above Tukey's outer fence (the third quartile plus three times the distance between the
// quartiles) and more than 5 % above the median.

// fence returns the median and the value above which others stand out. It ignores values of NaN.
function fence(values) {
  const sorted = Float64Array.from(values.filter((v) => !Number.isNaN(v))).sort(), at = (q) => sorted[Math.round(q * (sorted.length - 1))];
  return { median: at(0.5), above: Math.max(at(0.75) + 3 * (at(0.75) - at(0.25)), 1.05 * at(0.5)) };
}

// outliersOf returns a map of steps to the reasons why they stand out.
function outliersOf(columns, peaks, times) {
  const found = new Map(), add = (i, why) => found.set(i, [...(found.get(i) || []), why]);
  const of = [[peaks, fence(peaks), "peak", mib], [times, fence(times), "time", duration]];
  for (let i = 0; i < peaks.length; i++) {
    if (columns.failed?.[i]) add(i, "failed");
    if (columns.ooms?.[i] > 0) add(i, "out of memory");
    for (const [values, f, name, amount] of of) if (values[i] > f.above) add(i, f.median > 0 ? `${name} ${(values[i] / f.median).toFixed(values[i] < 2 * f.median ? 2 : 1)} × median` : `${name} ${amount(values[i])}`);
  }
  return found;
}
