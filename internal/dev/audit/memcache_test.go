package audit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
)

// counted lists the counts of memcache.Stats. MaxSplitSize is an option, not a count.
var counted = []string{"NumAllocRetries", "NumOOMs", "NumOOMRejections", "NumSyncAllStreams", "NumDeviceAlloc", "NumDeviceFree", "NumStreamReuses",
	"Hits", "Misses", "Splits", "Merges"}

// stats are the figures of memcache.Stats, by the names of its fields. since is what is subtracted
// from sums, or nil.
func (b *books) stats(since *books) figures {
	f := figures{"MaxSplitSize": -1, "AccountingFaults": 0}
	for i, name := range []string{"All", "SmallPool", "LargePool"} {
		for quantity, q := range b.all {
			s := q[i]
			if since != nil {
				s.allocated -= since.all[quantity][i].allocated
				s.freed -= since.all[quantity][i].freed
			}
			f.stat(quantity+"."+name, s)
		}
		for id, c := range b.pools {
			f.stat(fmt.Sprintf("ReservedBytesByPrivatePools.%v.%s", id, name), c["ReservedBytes"][i])
		}
	}
	f.stat("OversizeAllocations", stat{})
	f.stat("OversizeSegments", stat{})
	held, split := b.graphBytes()
	for i, kind := range []string{"SmallPool", "LargePool"} {
		f["GraphBytes."+kind], f["GraphSplitBytes."+kind] = held[i], split[i]
	}
	f["GraphBytes.All"], f["GraphSplitBytes.All"] = held[0]+held[1], split[0]+split[1]
	for _, name := range counted {
		f[name] = b.counts[name]
		if since != nil {
			f[name] = b.counts[name] - since.counts[name]
		}
	}
	return f
}

func (f figures) stat(name string, s stat) {
	f[name+".Current"], f[name+".Peak"], f[name+".Allocated"], f[name+".Freed"] = s.current, s.peak, s.allocated, s.freed
}

// checkStats compares Cache.Stats, its map of PyTorch's names, its difference, and those of the
// private pool.
func (w *world) checkStats() {
	stats := w.cache.Stats()
	want := w.books.stats(w.books.reset)
	requireTrue(w.t, "memcache.Stats", of(stats), want, w)
	requireTrue(w.t, "memcache.Stats.Map", of(stats.Map()), torchNames(want), w)
	requireTrue(w.t, "memcache.Stats.Since", of(stats.Since(memcache.Stats{})), w.books.stats(nil), w)
	pool := figures{"MaxSplitSize": 0, "AccountingFaults": 0}
	for quantity, q := range w.books.pools[w.other.ID()] {
		pool.stat(quantity+".All", q[0])
		pool.stat(quantity+".SmallPool", q[1])
		pool.stat(quantity+".LargePool", q[2])
	}
	for _, kind := range []string{"All", "SmallPool", "LargePool"} {
		pool["GraphBytes."+kind], pool["GraphSplitBytes."+kind] = 0, 0
	}
	pool.stat("OversizeAllocations", stat{})
	pool.stat("OversizeSegments", stat{})
	for _, name := range counted {
		pool[name] = 0
	}
	requireTrue(w.t, "memcache.Pool.Stats", of(w.other.Stats()), pool, w)
	c := w.books.all
	requireTrue(w.t, "memcache.Cache", figures{
		"allocated": w.cache.MemoryAllocated(), "most allocated": w.cache.MaxMemoryAllocated(), "reserved": w.cache.MemoryReserved(),
		"most reserved": w.cache.MaxMemoryReserved(), "limit": w.cache.MemoryLimit(),
	}, figures{
		"allocated": c["AllocatedBytes"][0].current, "most allocated": c["AllocatedBytes"][0].peak, "reserved": c["ReservedBytes"][0].current,
		"most reserved": c["ReservedBytes"][0].peak, "limit": capacity,
	}, w)
}

var camel = regexp.MustCompile(`([a-z])([A-Z])`)

// torchNames returns PyTorch's figures, by its names.
func torchNames(f figures) figures {
	out := figures{}
	for name, v := range f {
		if strings.HasPrefix(name, "Graph") || slices.Contains([]string{"AccountingFaults", "Hits", "Misses", "Splits", "Merges", "NumStreamReuses"}, name) {
			continue
		}
		name = strings.NewReplacer("[", "", " ", "_", "]", "", "OOMRejections", "OomRejections", "OOMs", "Ooms").Replace(name)
		out[strings.ToLower(camel.ReplaceAllString(name, "${1}_${2}"))] = v
	}
	return out
}

// checkSummary reads the table of memory_summary back: each cell is the figure, rounded down to its
// unit.
func (w *world) checkSummary() {
	stats := w.books.stats(w.books.reset)
	rows := map[string]string{"Allocated memory": "AllocatedBytes", "Active memory": "ActiveBytes", "Requested memory": "RequestedBytes",
		"GPU reserved memory": "ReservedBytes", "Non-releasable memory": "InactiveSplitBytes", "Allocations": "Allocation", "Active allocs": "Active",
		"GPU reserved segments": "Segment", "Non-releasable allocs": "InactiveSplit", "Oversize allocations": "OversizeAllocations",
		"Oversize GPU segments": "OversizeSegments"}
	units := map[string]int64{"B": 1, "KiB": kib, "MiB": mib, "GiB": kib * mib, "": 1, "K": 1000, "M": 1e6}
	cell := regexp.MustCompile(`^\s*(\d+)\s+(\S*)\s*$`)
	quantity, got, want := "", figures{}, figures{}
	for _, line := range strings.Split(w.cache.Summary(), "\n") {
		parts := strings.Split(strings.Trim(line, "|"), "|")
		if len(parts) == 2 {
			var ooms, retries int64
			_, err := fmt.Sscanf(strings.Join(strings.Fields(parts[0]+parts[1]), " "), "CUDA OOMs: %d cudaMalloc retries: %d", &ooms, &retries)
			require.NoError(w.t, err, "%q", line)
			got["OOMs"], got["retries"], want["OOMs"], want["retries"] = ooms, retries, stats["NumOOMs"], stats["NumAllocRetries"]
		}
		if len(parts) != 5 || strings.Contains(line, "Metric") {
			continue
		}
		name, of := strings.TrimSpace(parts[0]), ".All"
		switch name {
		case "from large pool":
			of = ".LargePool"
		case "from small pool":
			of = ".SmallPool"
		default:
			quantity = rows[name]
			require.NotEmpty(w.t, quantity, "%q", line)
		}
		if strings.HasPrefix(quantity, "Oversize") {
			of = ""
		}
		for i, column := range []string{".Current", ".Peak", ".Allocated", ".Freed"} {
			m := cell.FindStringSubmatch(parts[1+i])
			require.NotNil(w.t, m, "%q", line)
			unit, ok := units[m[2]]
			require.True(w.t, ok, "%q", line)
			key := quantity + of + column
			got[key], want[key] = m[1], fmt.Sprint(number(stats[key])/unit)
		}
	}
	require.Len(w.t, got, 2+4*(9*3+2), "%s", w.cache.Summary())
	requireTrue(w.t, "memcache.Summary", got, want, w)
}

func number(v any) (n int64) {
	if _, err := fmt.Sscan(fmt.Sprint(v), &n); err != nil {
		panic(err)
	}
	return n
}

// holdings are blocks by label and size: the most bytes first.
func holdings(blocks []*held) []memcache.Holding {
	type key struct {
		label memcache.Label
		size  int64
	}
	sums := map[key]memcache.Holding{}
	for _, h := range blocks {
		k := key{h.label, h.Size()}
		s := sums[k]
		sums[k] = memcache.Holding{Label: h.label, Size: k.size, Blocks: s.Blocks + 1, Bytes: s.Bytes + k.size, Requested: s.Requested + h.requested}
	}
	return sorted(slices.Collect(maps.Values(sums)))
}

func sorted(list []memcache.Holding) []memcache.Holding {
	slices.SortFunc(list, func(x, y memcache.Holding) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Module, y.Module), cmp.Compare(x.Category, y.Category), cmp.Compare(x.Step, y.Step),
			cmp.Compare(x.Tags, y.Tags), cmp.Compare(y.Size, x.Size))
	})
	return list
}

func profileOf(m mark) memcache.Profile {
	return memcache.Profile{Allocated: m.allocated, Active: m.active, Graphs: m.graphs, Reserved: m.reserved, Holdings: holdings(m.blocks)}
}

// checkProfiles compares the holders of the memory, now and at the peak.
func (w *world) checkProfiles() {
	requireTrue(w.t, "memcache.Profile", of(w.cache.Profile()), of(profileOf(w.books.now())), w)
	requireTrue(w.t, "memcache.PeakProfile", of(w.cache.PeakProfile()), of(profileOf(w.books.peak)), w)
	var want [memcache.CategoryWorkspace + 1]int64
	for _, h := range w.books.now().blocks {
		want[h.label.Category] += h.Size()
	}
	require.Equal(w.t, want, w.cache.AllocatedByCategory(), "%v", w)
}

// snapshot is the truth about Cache.Snapshot, with the blocks in use. Of free blocks it has only
// the position.
func (b *books) snapshot() (list []memcache.SegmentSnapshot) {
	for _, s := range b.segments {
		out := memcache.SegmentSnapshot{Address: s.ptr, TotalSize: s.size, Stream: s.stream, Pool: map[bool]string{false: "small", true: "large"}[s.large], PoolID: s.pool}
		for _, h := range b.used(s) {
			block := memcache.BlockSnapshot{Address: h.Ptr(), Size: h.Size(), RequestedSize: h.requested, State: memcache.BlockPendingFree, Streams: h.users, Label: h.label}
			if !h.pending {
				block.State, block.Serial = memcache.BlockAllocated, h.Serial()
				out.AllocatedSize += h.Size()
			}
			out.ActiveSize += h.Size()
			out.RequestedSize += h.requested
			out.Blocks = append(out.Blocks, block)
		}
		for _, r := range b.free(s) {
			out.Blocks = append(out.Blocks, memcache.BlockSnapshot{Address: r.Ptr, Size: r.Bytes, State: memcache.BlockInactive})
		}
		slices.SortFunc(out.Blocks, func(x, y memcache.BlockSnapshot) int { return cmp.Compare(x.Address, y.Address) })
		list = append(list, out)
	}
	slices.SortFunc(list, func(x, y memcache.SegmentSnapshot) int { return cmp.Compare(x.Address, y.Address) })
	return list
}

// checkSnapshot compares the snapshot, and the history in it.
func (w *world) checkSnapshot() {
	got := w.cache.Snapshot()
	for i := range got.Segments {
		for j := range got.Segments[i].Blocks {
			if b := &got.Segments[i].Blocks[j]; b.State == memcache.BlockInactive {
				b.RequestedSize, b.Label = 0, memcache.Label{} // of an earlier hand-out
			}
		}
	}
	before := time.Time{}
	for i := range got.History {
		require.False(w.t, got.History[i].Time.Before(before), "%v: the history goes back in time", w)
		before, got.History[i].Time = got.History[i].Time, time.Time{}
	}
	want := memcache.Snapshot{Device: "host", Segments: w.books.snapshot(), History: w.books.events}
	requireTrue(w.t, "memcache.Snapshot", of(got), of(want), w)
	w.books.event(memcache.HistoryEntry{Action: memcache.ActionSnapshot, Size: w.books.all["ActiveBytes"][0].current})
}

// checkOOM compares the figures of an error, and its text.
func (w *world) checkOOM(r *request, e *memcache.OutOfMemoryError) {
	b := w.books
	want := memcache.OutOfMemoryError{Requested: r.bytes, Segment: segmentFor(r.bytes), Device: "host", Total: capacity,
		Free: capacity - b.all["ReservedBytes"][0].current, Limit: -1, Allocated: b.all["AllocatedBytes"][0].current, Reserved: b.all["ReservedBytes"][0].current,
		Label: r.label, Advice: e.Advice, Err: e.Err}
	want.Pending = b.all["ActiveBytes"][0].current - want.Allocated
	large := rounded(r.bytes) > mib
	for _, s := range b.segments {
		for _, f := range b.free(s) {
			switch {
			case s.pool != r.pool:
				want.OtherPools += f.Bytes
				if b.pinned[s.pool] {
					want.Graphs += f.Bytes
				}
			case s.large != large:
				want.OtherSizes += f.Bytes
			case s.stream != r.stream:
				want.OtherStreams += f.Bytes
			default:
				want.Largest = max(want.Largest, f.Bytes)
			}
		}
	}
	holders := shares(b.now().blocks, func(l memcache.Label) string { return memcache.Label{Module: l.Module, Category: l.Category}.String() })
	if slices.ContainsFunc(b.now().blocks, func(h *held) bool { return h.label != (memcache.Label{}) }) {
		want.Holders = holders[:min(3, len(holders))]
	}
	require.True(w.t, errors.Is(e, memcache.ErrOutOfMemory))
	requireTrue(w.t, "memcache.OutOfMemoryError", of(*e), of(want), w)
	text := e.Error()
	for _, n := range []int64{want.Requested, want.Segment, want.Total, want.Free, want.Reserved, want.Allocated, want.OtherSizes, want.OtherPools, want.OtherStreams} {
		if n != 0 {
			require.Contains(w.t, text, size(n), "%v: %s", w, text)
		}
	}
	for _, h := range want.Holders {
		require.Contains(w.t, text, h.Name+" "+size(h.Bytes), "%v", w)
	}
}

// size is a number of bytes as texts have it.
func size(n int64) string {
	switch {
	case n <= kib:
		return fmt.Sprintf("%d bytes", n)
	case n <= mib:
		return fmt.Sprintf("%.2f KiB", float64(n)/kib)
	case n <= kib*mib:
		return fmt.Sprintf("%.2f MiB", float64(n)/mib)
	}
	return fmt.Sprintf("%.2f GiB", float64(n)/kib/mib)
}
