// Fragmentation in words: the free memory at the peak of the reserved memory that could not be
// released, the owners that keep it, and the options that would have reserved less.

function showFragmentation(page) {
  const { r, owners } = page, f = r.fragmentation;
  $("fragmentation-section").hidden = !f;
  if (!f) return;
  replace($("fragmentation-go"), el("button", { type: "button", onclick: () => { page.select(f.moment); $("map").scrollIntoView({ block: "center" }); } }, "Go to the moment"));
  replace($("fragmentation-about"), "When the reserved memory grew to its peak, at ", page.momentName(f.moment), ", ", f.segments > 0 ? [bytes(f.free), " of ", bytes(f.reserved), ` (${percent(f.free, f.reserved)}) were free and not releasable: pieces of `, plural(f.segments, "segment"), " in which blocks are in use. None of them could serve the request that reached the peak: each was too small, could not be split, or belonged to another stream or pool. "] : "", f.releasable > 0 ? [bytes(f.releasable), f.segments > 0 ? " more" : "", " were free: whole segments, and pages of expandable segments, which serve a larger request only if its block begins in them."] : "");
  const shown = f.keepers.reduce((a, k) => a + k.alone.free, 0), shared = f.shared || [], rest = f.free - shown - shared.reduce((a, s) => a + s.free, 0);
  const verb = (n) => (n === 1 ? " keeps " : " keep ");
  const kept = (k) => [bytes(k.free), " in ", plural(k.segments, "segment")];
  const line = (k) => {
    const n = k.alone.blocks + k.shared.blocks, what = k.size ? `${mib(k.size)} each` : owners.name(k.owner);
    return [plural(n, "block"), " of ", el("b", {}, words(what)), " (", bytes(k.alone.bytes + k.shared.bytes), ")", k.alone.free > 0 ? [verb(n), kept(k.alone)] : "",
      k.alone.free > 0 && k.shared.free > 0 ? ", and" : "", k.shared.free > 0 ? [verb(n), kept(k.shared), " together with others"] : "", "."];
  };
  replace($("keepers"), f.keepers.map((k) => el("li", {}, line(k))), f.others > 0 ? el("li", {}, plural(f.others, "other owner"), verb(f.others), "less", rest > 0 ? [": ", bytes(rest), " alone"] : "", ".") : null,
    shared.map((s) => el("li", {}, s.category === -3 ? "Owners of several categories" : s.category === -2 ? "Blocks from before the recording" : s.category === -1 ? "Blocks of several sizes or owners" : ["Several owners of ", el("b", {}, owners.categoryName(s.category))], " together keep ", kept(s), ".")));
  const recorded = r.whatIf.find((e) => e.recorded && !e.error), tried = r.whatIf.filter((e) => recorded && !e.recorded && !e.error);
  const better = tried.filter((e) => e.ooms <= recorded.ooms && e.reserved <= 0.99 * recorded.reserved).sort((a, b) => a.reserved - b.reserved).slice(0, 5);
  const calls = (e) => (e.driverCalls > recorded.driverCalls ? `, with ${count(e.driverCalls)} driver calls instead of ${count(recorded.driverCalls)}` : "");
  replace($("fragmentation-advice"), better.length > 0 ? "Options that would have reserved less:" : tried.length > 0 ? "None of the tried options would have reserved at least 1 % less." : "");
  replace($("fragmentation-options"), better.map((e) => el("li", {}, el("code", {}, e.options.replaceAll(",", ", ") || "default"), " reserves ", bytes(e.reserved), " instead of ", bytes(recorded.reserved), ` (−${percent(recorded.reserved - e.reserved, recorded.reserved)})`, calls(e), ".")));
}
