// The cost of the program under other options, as a table.

function showWhatIf(page) {
  const list = page.r.whatIf;
  $("whatif-section").hidden = list.length === 0;
  if (list.length === 0) return null;
  const recorded = list.find((e) => e.recorded), most = list.reduce((a, e) => Math.max(a, e.reserved), 1);
  const change = (e) => (!recorded || e.recorded || e.error ? "" : e.reserved === recorded.reserved ? "the same" : `${e.reserved > recorded.reserved ? "+" : "−"}${((100 * Math.abs(e.reserved - recorded.reserved)) / recorded.reserved).toFixed(1)} %`);
  const known = (e, node) => (e.error ? "–" : node());
  const table = new Table($("whatif"), [
    { name: "options", text: true, value: (e) => e.options, show: (e) => [el("code", {}, e.options.replaceAll(",", ", ") || "default"), e.recorded ? el("b", {}, " recorded") : "", e.error ? el("span", { class: "alarm" }, ` ${e.error}`) : ""] },
    { name: "reserved", title: "the most bytes held from the driver", ascending: true, value: (e) => (e.error ? Infinity : e.reserved), show: (e) => known(e, () => bytes(e.reserved)) },
    { name: "change", title: "relative to the recorded options", ascending: true, value: (e) => (e.error ? Infinity : e.reserved), show: change },
    { name: "allocated / reserved", text: true, value: (e) => e.ratio, show: (e) => known(e, () => shareBar([{ name: "allocated", bytes: e.allocated, colour: hue(0) }, { name: "not allocated", bytes: Math.max(0, e.reserved - e.allocated), colour: css("--edge") }], most)) },
    { name: "allocated", title: "the most allocated bytes", value: (e) => e.allocated, show: (e) => known(e, () => bytes(e.allocated)) },
    { name: "ratio", title: "reserved divided by allocated", ascending: true, value: (e) => (e.error ? Infinity : e.ratio), show: (e) => known(e, () => e.ratio.toFixed(3)) },
    { name: "driver calls", ascending: true, value: (e) => e.driverCalls, show: (e) => known(e, () => count(e.driverCalls)) },
    { name: "retries", title: "requests that had to release cached memory first", value: (e) => e.retries, show: (e) => known(e, () => count(e.retries)) },
    { name: "out of memory", title: "requests that failed", value: (e) => e.ooms, show: (e) => known(e, () => count(e.ooms)) },
  ], { sort: 1, descending: false, label: "other options" });
  table.set(list);
  return table;
}
