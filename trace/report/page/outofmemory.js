// The box about the last request that ran out of memory: its size and module, the free memory, why
// that did not serve the request, and possible remedies.

function showOutOfMemory(page) {
  const { r, owners } = page, e = r.shortage, labelOf = (o) => r.owners[o].slice(0, 3).join();
  const found = e ? r.ooms.findLast(([, size, o]) => size === e.requested && labelOf(o) === labelOf(e.owner)) : r.ooms.at(-1);
  $("oom").hidden = !found && !e;
  if (!found && !e) return;
  const [moment, requested, owner, stream] = found ?? [-1, e.requested, e.owner, -1];
  const category = owners.category(owner), module = owners.module(owner), site = owners.site(owner);
  const by = [module ? ["by ", el("b", {}, words(module)), ` (${category})`] : category !== "not labelled" && `for ${category}`, site && ["at ", el("code", {}, words(site))]].filter(Boolean);
  const figures = e ?? shortageAt(r, moment, stream), limit = e ? e.limit : r.limit;
  const facts = [
    limit > 0 && ["The limit is ", bytes(limit), "."],
    [bytes(figures.reserved), " were reserved: ", bytes(figures.allocated), " in use, ", figures.pending > 0 && [bytes(figures.pending), " waiting for streams, "], bytes(Math.max(0, figures.reserved - figures.allocated - figures.pending)), " free."],
    figures.largest > 0 ? [e ? "The largest free block that it could use had " : "The largest hole on its stream had ", bytes(figures.largest), "."] : `No free block belonged to its stream${e ? ", pool and size class" : ""}.`,
    figures.otherStreams > 0 && ["Free blocks of ", bytes(figures.otherStreams), " belonged to other streams."],
    figures.otherSizes > 0 && ["Free blocks of ", bytes(figures.otherSizes), " belonged to the other size class (requests up to 1 MiB, or larger ones)."],
    figures.otherPools > 0 && ["Free blocks of ", bytes(figures.otherPools), " belonged to other pools", figures.graphs > 0 && [", of which graphs held ", bytes(figures.graphs)], "."],
    figures.free >= 0 && figures.total > 0 && ["The device had ", bytes(figures.free), " free of ", bytes(figures.total), "."],
  ].filter(Boolean);
  replace($("oom-what"), bytes(requested), " were requested ", by.map((part, i) => [i > 0 ? " " : "", part]), ".", r.ooms.length > 1 && found === r.ooms.at(-1) ? ` This is the last of ${count(r.ooms.length)} failed requests.` : "");
  replace($("oom-facts"), facts.map((f) => el("li", {}, f)));
  const serving = r.whatIf.filter((w) => !w.recorded && !w.error && w.ooms === 0).map((w) => w.options);
  const advice = e?.advice || (serving.length > 0 ? `no request fails with ${serving.join(", or with ")}` : "");
  replace($("oom-advice"), advice ? ["What would have helped: ", el("b", {}, advice), "."] : "");
  replace($("oom-go"), moment < 0 ? null : el("button", { type: "button", onclick: () => { page.select(moment - 1); $("moment").scrollIntoView(); } }, "Go to the moment"));
}

// shortageAt returns the figures of a moment by the entries: blocks in use, and holes.
function shortageAt(r, m, stream) {
  const s = { reserved: 0, allocated: 0, pending: 0, largest: 0, otherStreams: 0 };
  for (const p of layout(r, m).pieces) {
    s.reserved += p.size;
    if (p.block >= 0) s[r.free[p.block] <= m ? "pending" : "allocated"] += p.size;
    else if (p.segment.stream === stream) s.largest = Math.max(s.largest, p.size);
    else s.otherStreams += p.size;
  }
  return s;
}
