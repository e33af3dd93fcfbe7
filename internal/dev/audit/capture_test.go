package audit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// captured is an open graph in the private pool.
type captured struct {
	memory *memcache.GraphMemory
	number uint64
	served int64   // requests
	peak   []*held // blocks at the captured peak that were not there before
}

// capture captures a graph without operations in the private pool. It allocates blocks, frees most
// of them, and adds the blocks of its peak to the books.
func (w *world) capture(in *scene, r *rand.Rand) {
	if w.held != nil || w.books.all["ReservedBytes"][0].current > capacity/2 {
		return // it might wait for the side stream, or find no memory
	}
	stream, g := w.main.(device.GraphCapturer), &captured{}
	require.NoError(w.t, stream.BeginCapture())
	var own []*held
	start := w.books.all["AllocatedBytes"][0].current
	most, served := start, int64(0)
	memory, err := w.cache.CaptureGraph(w.other, func() error {
		for range 2 + r.IntN(8) {
			if len(own) > 0 && r.IntN(3) == 0 {
				i := r.IntN(len(own))
				w.free(in, own[i], true)
				own = slices.Delete(own, i, i+1)
				continue
			}
			served++
			own = append(own, w.alloc(in, labels[r.IntN(len(labels))], 1+r.Int64N(3*mib), true))
			if now := w.books.all["AllocatedBytes"][0].current; now > most {
				most, g.peak = now, slices.Clone(own)
			}
		}
		for len(own) > r.IntN(3) {
			w.free(in, own[0], true)
			own = own[1:]
		}
		return nil
	})
	require.NoError(w.t, err)
	empty, err := stream.EndCapture()
	require.NoError(w.t, errors.Join(err, empty.Close()))
	w.captures++
	g.memory, g.number, g.served = memory, w.captures, served
	for i, h := range g.peak { // whose labels may change from now on
		copied := *h
		g.peak[i] = &copied
	}
	w.captured = append(w.captured, g)
	requireTrue(w.t, "memcache.GraphMemory", of(struct {
		Number, Held, Allocations any
		Holdings                  []memcache.Holding
	}{memory.Number, memory.Held, memory.Allocations, memory.Holdings}), of(struct {
		Number, Held, Allocations any
		Holdings                  []memcache.Holding
	}{g.number, most - start, served, holdings(g.peak)}), w)
}

// closeGraph closes a graph. The pool keeps its memory.
func (w *world) closeGraph(i int) {
	w.captured[i].memory.Close()
	w.captured = slices.Delete(w.captured, i, i+1)
}

// graphHoldings assigns the free ranges of the private pool: each 512 bytes to the first open graph
// that has them at its peak.
func (w *world) graphHoldings() (list []memcache.GraphHolding) {
	type owner struct {
		graph uint64
		block *held
		at    device.Ptr // of the part's first 512 bytes
	}
	sizes := map[owner]int64{}
	for _, s := range w.books.segments {
		if !w.books.pinned[s.pool] {
			continue
		}
		for _, free := range w.books.free(s) {
			last := owner{}
			for at := free.Ptr; at < free.Ptr+device.Ptr(free.Bytes); at += 512 {
				o := owner{}
				for _, g := range w.captured {
					i := slices.IndexFunc(g.peak, func(h *held) bool { return h.Ptr() <= at && at < h.end() })
					if i >= 0 {
						o = owner{graph: g.number, block: g.peak[i]}
						break
					}
				}
				if o.graph != last.graph || o.block != last.block || last.at == 0 {
					o.at = at
					last = o
				}
				sizes[last] += 512
			}
		}
	}
	type key struct {
		graph uint64
		label memcache.Label
		size  int64
	}
	sums := map[key]memcache.GraphHolding{}
	for o, size := range sizes {
		k := key{graph: o.graph, size: size}
		if o.block != nil {
			k.label = o.block.label
		}
		sum := sums[k]
		sums[k] = memcache.GraphHolding{Graph: k.graph, Pool: w.other.ID(), Holding: memcache.Holding{Label: k.label, Size: size,
			Blocks: sum.Blocks + 1, Bytes: sum.Bytes + size}}
	}
	list = slices.Collect(maps.Values(sums))
	slices.SortFunc(list, func(x, y memcache.GraphHolding) int {
		return cmp.Or(cmp.Compare(x.Graph-1, y.Graph-1), cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Module, y.Module), cmp.Compare(x.Category, y.Category),
			cmp.Compare(x.Step, y.Step), cmp.Compare(x.Tags, y.Tags), cmp.Compare(y.Size, x.Size))
	})
	return list
}

// checkGraphs compares the memory of graphs.
func (w *world) checkGraphs() {
	got, want := figures{}, figures{}
	profile := w.cache.GraphProfile()
	add := func(f figures, held int64, graphs []uint64, list []memcache.GraphHolding) {
		f["held"], f["graphs"] = held, fmt.Sprint(graphs)
		for i, h := range list {
			for name, v := range of(h) {
				f[fmt.Sprintf("holdings[%d].%s", i, name)] = v
			}
		}
	}
	var open []uint64
	for _, g := range profile.Graphs {
		open = append(open, g.Number)
	}
	add(got, profile.Held, open, profile.Holdings)
	open = nil
	for _, g := range w.captured {
		open = append(open, g.number)
	}
	add(want, w.books.now().graphs, open, w.graphHoldings())
	requireTrue(w.t, "memcache.GraphProfile", got, want, w)
}
