package audit

import (
	"bytes"
	"fmt"
	"net/http/httptest"
	"strings"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace/heap"
	"github.com/cistern-ml/cistern/trace/live"
)

// get returns a page of the handler.
func (w *world) get(path string) []byte {
	r := httptest.NewRequest("GET", "http://localhost"+live.Prefix+path, nil)
	out := httptest.NewRecorder()
	w.live.ServeHTTP(out, r)
	require.Equal(w.t, 200, out.Code, "%v: %s: %s", w, path, out.Body)
	return out.Body.Bytes()
}

// checkHeap compares the samples of pprof files, in their labels and values, and their comments.
func (w *world) checkHeap() {
	var file bytes.Buffer
	require.NoError(w.t, heap.Of(w.cache).Write(&file))
	now, peak := profileOf(w.books.now()), profileOf(w.books.peak)
	pairs := map[string][]memcache.Holding{"inuse": now.Holdings, "peak": peak.Holdings}
	w.checkSamples("pprof", file.Bytes(), pairs, w.graphHoldings(), "in use", now, "at the peak", peak)
	w.checkSamples("live/peak", w.get("peak"), map[string][]memcache.Holding{"peak": peak.Holdings}, nil, "at the peak", peak)
	var totals []memcache.Holding
	for _, sizes := range w.totals {
		for _, h := range sizes {
			totals = append(totals, h)
		}
	}
	pairs["alloc"] = totals
	w.checkSamples("live/heap", w.get("heap"), pairs, w.graphHoldings(), "in use", now, "at the peak", peak)
	require.ElementsMatch(w.t, totals, w.counter.Holdings(), "%v", w)
}

// checkSamples compares one file. about has moments with their profiles, which the comments name.
func (w *world) checkSamples(artefact string, file []byte, pairs map[string][]memcache.Holding, graphs []memcache.GraphHolding, about ...any) {
	p, err := profile.Parse(bytes.NewReader(file))
	require.NoError(w.t, err)
	got, want := figures{}, figures{}
	for _, s := range p.Sample {
		require.Equal(w.t, []string{"host"}, s.Label["device"])
		var path []string
		for _, l := range s.Location {
			path = append(path, l.Line[0].Function.Name)
		}
		key := fmt.Sprint(s.Label["state"], s.NumLabel["graph"], s.Label["module"], s.Label["category"], s.Label["tenant"], s.NumLabel["step"], s.NumLabel["bytes"], path)
		for i, kind := range p.SampleType {
			if s.Value[i] != 0 {
				got[key+" "+kind.Type] = s.Value[i]
			}
		}
		for label := range s.Label {
			w.seen(artefact, label)
		}
	}
	add := func(pair string, h memcache.Holding, state []string, graph []int64) {
		var module, tenant []string
		var step []int64
		var path []string
		if h.Module != "" {
			module = []string{h.Module}
			parts := strings.Split(h.Module, ".")
			for n := len(parts); n > 0; n-- {
				path = append(path, strings.Join(parts[:n], "."))
			}
		}
		if tag, ok := strings.CutPrefix(h.Tags, "tenant="); ok {
			tenant = []string{tag}
		}
		if h.Step != 0 {
			step = []int64{h.Step}
		}
		path = append(path, "("+h.Category.String()+")")
		key := fmt.Sprint(state, graph, module, []string{h.Category.String()}, tenant, step, []int64{h.Size}, path)
		want[key+" "+pair+"_objects"], want[key+" "+pair+"_space"] = h.Blocks, h.Bytes
	}
	for pair, list := range pairs {
		for _, h := range list {
			add(pair, h, nil, nil)
		}
	}
	for _, h := range graphs {
		var number []int64
		if h.Graph > 0 {
			number = []int64{int64(h.Graph)}
		}
		add("inuse", h.Holding, []string{"graph"}, number)
	}
	var comments []string
	for i := 0; i < len(about); i += 2 {
		q := about[i+1].(memcache.Profile)
		comments = append(comments, fmt.Sprintf("%s: %d bytes allocated, %d active, %d reserved; %d of them held by graphs, %d free", about[i], q.Allocated, q.Active, q.Reserved, q.Graphs, q.Reserved-q.Active-q.Graphs))
	}
	require.Equal(w.t, comments, p.Comments, "%v", w)
	requireTrue(w.t, artefact+" samples", got, want, w)
}

// checkLive compares the JSON and the figures of the pages of a running program.
func (w *world) checkLive() {
	want := figures{"device": "host", "steps": len(w.ended)}
	for name, v := range torchNames(w.books.stats(w.books.reset)) {
		want["memory."+name] = v
	}
	for name, v := range w.pinned() {
		want["pinned."+name] = v
	}
	want["graphs.held"] = w.books.now().graphs
	for i, g := range w.captured {
		at, held := fmt.Sprintf("graphs.open[%d].", i), int64(0)
		for _, h := range g.peak {
			held += h.Size()
		}
		want[at+"graph"], want[at+"held"], want[at+"allocations"] = g.number, held, g.served
		want[at+"pool[0]"], want[at+"pool[1]"] = 0, w.other.ID()[1]
		want.shares(at+"categories", shares(g.peak, func(l memcache.Label) string { return l.Category.String() }))
		want.shares(at+"modules", shares(g.peak, func(l memcache.Label) string { return l.Module }))
	}
	requireTrue(w.t, "live/stats", fromJSON(w.t, w.get("stats")), want, w)
	requireTrue(w.t, "live/expvar", fromJSON(w.t, []byte(w.live.String())), want, w)
	steps := figures{}
	latest := w.ended[max(0, len(w.ended)-keptSteps):]
	for i, s := range latest {
		for name, v := range w.profile(s) {
			steps[fmt.Sprintf("[%d].%s", i, name)] = v
		}
	}
	got := fromJSON(w.t, w.get("steps"))
	for i := range latest {
		delete(got, fmt.Sprintf("[%d].start", i)) // compared with the profile
	}
	requireTrue(w.t, "live/steps", got, steps, w)
	if n := len(w.ended); n > 1 {
		last := fromJSON(w.t, w.get("steps?last=1"))
		require.Equal(w.t, fmt.Sprint(w.ended[n-1].number), fmt.Sprint(last["[0].step"]))
	}
	w.checkIndex(w.get(""))
}

// checkIndex compares the data of the first page, which its script shows.
func (w *world) checkIndex(page []byte) {
	_, data, found := bytes.Cut(page, []byte(`id="data">`))
	require.True(w.t, found)
	data, _, _ = bytes.Cut(data, []byte("</script>"))
	got, b := fromJSON(w.t, data), w.books
	for name := range got {
		if strings.HasSuffix(name, ".start") || name == "state.time" || name == "state.since" {
			delete(got, name)
		}
	}
	title, rank := "host", figures{"rank": 0, "world_size": 0}
	if len(w.ended) > 0 && w.worldSize > 0 {
		title += fmt.Sprintf(", rank %d of %d", w.rank, w.worldSize)
		rank = figures{"rank": w.rank, "world_size": w.worldSize}
	}
	retries, ooms := b.counts["NumAllocRetries"], b.counts["NumOOMs"]
	if b.reset != nil {
		retries, ooms = retries-b.reset.counts["NumAllocRetries"], ooms-b.reset.counts["NumOOMs"]
	}
	want := figures{
		"state.title": title + " – device memory", "state.rank": rank["rank"], "state.world_size": rank["world_size"],
		"state.allocated": b.all["AllocatedBytes"][0].current, "state.peak": b.all["AllocatedBytes"][0].peak, "state.reserved": b.all["ReservedBytes"][0].current,
		"state.limit": 0, "state.graphs": b.now().graphs, "state.retries": retries, "state.ooms": ooms, "state.steps": len(w.ended),
	}
	want.shares("state.categories", shares(b.now().blocks, func(l memcache.Label) string { return l.Category.String() }))
	type of struct{ graph, category string }
	sums := map[of]memcache.Share{}
	for _, h := range w.graphHoldings() {
		k := of{fmt.Sprint("graph ", h.Graph), h.Category.String()}
		if h.Graph == 0 {
			k = of{"in no open graph's peak", "other"}
		}
		sums[k] = memcache.Share{Blocks: sums[k].Blocks + h.Blocks, Bytes: sums[k].Bytes + h.Bytes}
	}
	for i := range len(sums) { // in an order of their own
		at := fmt.Sprintf("state.graph_shares[%d].", i)
		k := of{fmt.Sprint(got[at+"graph"]), fmt.Sprint(got[at+"name"])}
		want[at+"graph"], want[at+"name"] = k.graph, k.category
		want[at+"blocks"], want[at+"bytes"] = sums[k].Blocks, sums[k].Bytes
		delete(sums, k)
	}
	for i, s := range w.ended[max(0, len(w.ended)-keptSteps):] {
		for _, name := range []string{"host_time_ns", "allocated_peak", "allocated_end", "reserved"} {
			want[fmt.Sprintf("before[%d].%s", i, name)] = w.profile(s)[name]
		}
	}
	requireTrue(w.t, "live/index", got, want, w)
}
