package audit

import (
	"bytes"
	"fmt"
	"html"
	"net/http/httptest"
	"regexp"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace/heap"
	"github.com/cistern-ml/cistern/trace/live"
)

// get is a page of the handler.
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

// checkSamples compares one file. about are moments with their profiles, which the comments tell.
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
	w.checkIndex(string(w.get("")))
}

var (
	headline = regexp.MustCompile(`<span><b>([^<]*)</b> ([^<]*)</span>`)
	category = regexp.MustCompile(`<tr><td>([^<]*)</td><td title="(\d+) bytes">([^<]*)</td><td>(\d+)</td></tr>`)
	graphed  = regexp.MustCompile(`<tr><td>([^<]*)</td><td>([^<]*)</td><td title="(\d+) bytes">([^<]*)</td><td>(\d+)</td></tr>`)
)

// checkIndex compares the first page. Its table of steps is made in the browser, of live/steps.
func (w *world) checkIndex(page string) {
	b, got, want := w.books, figures{}, figures{}
	for _, m := range headline.FindAllStringSubmatch(page, -1) {
		got[m[2]] = html.UnescapeString(m[1])
	}
	size := func(n int64) string { return humanize.IBytes(uint64(n)) }
	want["allocated"], want["at the peak"] = size(b.all["AllocatedBytes"][0].current), size(b.all["AllocatedBytes"][0].peak)
	want["reserved"] = size(b.all["ReservedBytes"][0].current)
	since := figures{"retries": b.counts["NumAllocRetries"], "out of memory": b.counts["NumOOMs"]}
	if b.reset != nil {
		since = figures{"retries": b.counts["NumAllocRetries"] - b.reset.counts["NumAllocRetries"], "out of memory": b.counts["NumOOMs"] - b.reset.counts["NumOOMs"]}
	}
	want["retries"], want["out of memory"] = since["retries"], since["out of memory"]
	for i, m := range category.FindAllStringSubmatch(page, -1) {
		got[fmt.Sprintf("[%d].name", i)], got[fmt.Sprintf("[%d].bytes", i)] = m[1], m[2]
		got[fmt.Sprintf("[%d].size", i)], got[fmt.Sprintf("[%d].blocks", i)] = m[3], m[4]
	}
	for i, s := range shares(b.now().blocks, func(l memcache.Label) string { return l.Category.String() }) {
		want[fmt.Sprintf("[%d].name", i)], want[fmt.Sprintf("[%d].bytes", i)] = s.Name, s.Bytes
		want[fmt.Sprintf("[%d].size", i)], want[fmt.Sprintf("[%d].blocks", i)] = size(s.Bytes), s.Blocks
	}
	if n := b.now().graphs; n > 0 {
		want["held by graphs"] = size(n)
	}
	for _, m := range graphed.FindAllStringSubmatch(page, -1) {
		at := html.UnescapeString(m[1]) + ", " + m[2]
		got[at+".bytes"], got[at+".size"], got[at+".blocks"] = m[3], m[4], m[5]
	}
	type row struct{ bytes, blocks int64 }
	graphs := map[string]row{}
	for _, h := range w.graphHoldings() {
		at := fmt.Sprintf("graph %d, %v", h.Graph, h.Category)
		if h.Graph == 0 {
			at = "no open graph's peak, other"
		}
		graphs[at] = row{graphs[at].bytes + h.Bytes, graphs[at].blocks + int64(h.Blocks)}
	}
	for at, r := range graphs {
		want[at+".bytes"], want[at+".size"], want[at+".blocks"] = r.bytes, size(r.bytes), r.blocks
	}
	m := regexp.MustCompile(`>(\d+) so far<`).FindStringSubmatch(page)
	require.NotNil(w.t, m)
	got["steps"], want["steps"] = m[1], len(w.ended)
	requireTrue(w.t, "live/index", got, want, w)
}
