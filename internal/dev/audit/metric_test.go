package audit

import (
	"context"
	"fmt"
	"strings"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// metrics are all points of all metrics: "name{attributes}", of histograms with the number of
// values and their sum.
func (w *world) metrics() figures {
	var all metricdata.ResourceMetrics
	require.NoError(w.t, w.reader.Collect(context.Background(), &all))
	f := figures{}
	key := func(m metricdata.Metrics, set attribute.Set) string {
		rest, same := set.Filter(func(kv attribute.KeyValue) bool {
			return kv.Key != "cistern.device.name" && kv.Key != "cistern.rank" && kv.Key != "cistern.world_size"
		})
		w.attributes(same)
		return fmt.Sprintf("%s{%s}", m.Name, rest.Encoded(attribute.DefaultEncoder()))
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					f[key(m, p.Attributes)] = p.Value
				}
			case metricdata.Gauge[int64]:
				for _, p := range d.DataPoints {
					f[key(m, p.Attributes)] = p.Value
				}
			case metricdata.Gauge[float64]:
				for _, p := range d.DataPoints {
					f[key(m, p.Attributes)] = p.Value
				}
			case metricdata.Histogram[int64]:
				for _, p := range d.DataPoints {
					f[key(m, p.Attributes)+".count"], f[key(m, p.Attributes)+".sum"] = p.Count, p.Sum
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					f[key(m, p.Attributes)+".count"], f[key(m, p.Attributes)+".sum"] = p.Count, p.Sum
				}
			default:
				require.Fail(w.t, "a metric of an unknown kind", "%s: %T", m.Name, m.Data)
			}
		}
	}
	return f
}

// checkMetrics compares all metrics.
func (w *world) checkMetrics() {
	b, f := w.books, figures{}
	point := func(name, attributes string, v any) { f[name+"{"+attributes+"}"] = v }
	for i, pool := range []string{"small", "large"} {
		of := func(quantity string) stat { return b.all[quantity][1+i] }
		reserved, active, allocated := of("ReservedBytes").current, of("ActiveBytes").current, of("AllocatedBytes").current
		var free, split, graphs int64 // whole segments, and parts of others, of no graph's pool
		for _, s := range b.segments {
			for _, r := range b.free(s) {
				switch {
				case index(s.large) != i:
				case b.pinned[s.pool]:
					graphs += r.Bytes
				case len(b.used(s)) > 0:
					split += r.Bytes
				default:
					free += r.Bytes
				}
			}
		}
		for state, n := range map[string]int64{"allocated": allocated, "pending": active - allocated, "split": split, "cached": free, "graph": graphs} {
			point("cistern.device.memory.usage", "cistern.memory.state="+state+",cistern.pool.name="+pool, n)
			share := "cistern.device.memory.utilization{cistern.memory.state=" + state + "}"
			sum, _ := f[share].(between)
			sum.low += float64(n) / capacity
			f[share] = between{sum.low, sum.low}
		}
		point("cistern.device.memory.reserved", "cistern.pool.name="+pool, reserved)
		private, largest := int64(0), int64(0)
		for _, c := range b.pools {
			private += c["ReservedBytes"][1+i].current
		}
		for _, s := range b.segments {
			for _, f := range b.free(s) {
				if s.pool == (memcache.PoolID{}) && index(s.large) == i {
					largest = max(largest, f.Bytes)
				}
			}
		}
		point("cistern.device.memory.private", "cistern.pool.name="+pool, private)
		point("cistern.device.memory.largest_free", "cistern.pool.name="+pool, largest)
		point("cistern.device.segment.held", "cistern.pool.name="+pool, of("Segment").current)
		point("cistern.device.allocated", "cistern.pool.name="+pool, of("AllocatedBytes").allocated)
	}
	for state, n := range f {
		if r, ok := n.(between); ok {
			f[state] = between{r.low - 1e-9, r.low + 1e-9}
		}
	}
	point("cistern.device.memory.limit", "", capacity)
	var categories [memcache.CategoryWorkspace + 1]int64
	for _, h := range b.now().blocks {
		categories[h.label.Category] += h.Size()
	}
	for c, name := range []string{"other", "parameter", "gradient", "optimizer_state", "activation", "input", "workspace"} {
		point("cistern.device.memory.category.usage", "cistern.memory.category="+name, categories[c])
	}
	point("cistern.device.memory.peak", "cistern.memory.state=allocated", b.all["AllocatedBytes"][0].peak)
	point("cistern.device.memory.peak", "cistern.memory.state=reserved", b.all["ReservedBytes"][0].peak)
	point("cistern.device.allocations", "cistern.allocation.result=hit", b.counts["Hits"])
	point("cistern.device.allocations", "cistern.allocation.result=miss", b.counts["Misses"]-b.counts["NumOOMs"])
	point("cistern.device.allocations", "cistern.allocation.result=oom", b.counts["NumOOMs"])
	point("cistern.device.oom.retries", "", b.counts["NumAllocRetries"])
	histogram := func(name, attributes string, count, sum any) {
		f[name+"{"+attributes+"}.count"], f[name+"{"+attributes+"}.sum"] = count, sum
	}
	w.pinnedMetrics(point, histogram)
	for key, n := range w.driverAllocs {
		histogram("cistern.device.allocation.duration", key, n, between{0, 60})
	}
	if n := len(w.ended); n > 0 {
		last := w.profiles[n-1]
		point("cistern.step.memory.last_peak", "", w.ended[n-1].peak.allocated)
		share := float64(last.BusyTime) / float64(last.DeviceTime)
		point("cistern.step.device.utilization", "", between{share - 1e-9, share + 1e-9})
	}
	took := map[string]float64{}
	count, peaks := map[string]int64{}, map[string]int64{}
	for i, s := range w.ended {
		key := ""
		if s.failed {
			key = "error.type=*errors.errorString"
		}
		took[key] += w.profiles[i].HostTime.Seconds()
		count[key]++
		peaks[key] += s.peak.allocated
	}
	for key, n := range count {
		histogram("cistern.step.duration", key, n, between{took[key] - 1e-9, took[key] + 1e-9})
		histogram("cistern.step.memory.peak", key, n, peaks[key])
	}
	got := w.metrics()
	cisterntest.WaitFor(w.t, func() bool { // the ends of copies come by another goroutine
		told := uint64(0)
		for name, v := range got {
			if n, ok := v.(uint64); ok && strings.HasPrefix(name, "cistern.transfer.duration") {
				told += n
			}
		}
		if told < uint64(len(w.copies)) {
			got = w.metrics()
			return false
		}
		return true
	})
	requireTrue(w.t, "metrics", got, f, w)
}

// pinnedMetrics are those of the pool of pinned memory. No buffer is out when they are read.
func (w *world) pinnedMetrics(point func(name, attributes string, v any), histogram func(name, attributes string, count, sum any)) {
	hits, most, bytes, copies := 0, int64(0), map[transfer.Op]int64{}, map[transfer.Op]int64{}
	for _, c := range w.copies {
		bytes[c.op] += c.bytes
		copies[c.op]++
		most = max(most, pinnedSize(c.bytes))
	}
	for _, g := range w.gets {
		if g.hit {
			hits++
		}
	}
	point("cistern.pinned.allocations", "cistern.allocation.result=hit", hits)
	point("cistern.pinned.allocations", "cistern.allocation.result=miss", len(w.gets)-hits)
	point("cistern.pinned.memory.usage", "cistern.memory.state=active", 0)
	point("cistern.pinned.memory.usage", "cistern.memory.state=cached", w.dev.heldPinned)
	point("cistern.pinned.memory.peak", "cistern.memory.state=active", most)
	point("cistern.pinned.memory.peak", "cistern.memory.state=reserved", w.dev.heldPinned)
	point("cistern.pinned.memory.limit", "", capacity)
	share := float64(w.dev.heldPinned) / capacity
	point("cistern.pinned.memory.utilization", "cistern.memory.state=active", between{})
	point("cistern.pinned.memory.utilization", "cistern.memory.state=cached", between{share - 1e-9, share + 1e-9})
	point("cistern.transfer.pending", "", 0)
	for _, op := range []transfer.Op{transfer.OpH2D, transfer.OpD2H} {
		name := "cistern.transfer.direction=" + op.String()
		point("cistern.transfer.io", name, bytes[op])
		point("cistern.transfer.copies", name, copies[op])
		if copies[op] > 0 {
			histogram("cistern.transfer.duration", "cistern.transfer.operation="+op.String(), copies[op], between{0, 60})
		}
	}
}

// pinnedSize is the pinned allocation for a request: a multiple of 64 bytes up to 512, and one of
// eight steps to each power of two above.
func pinnedSize(bytes int64) int64 {
	step := int64(64)
	for n := int64(512); n < bytes; n *= 2 {
		step = n / 8
	}
	return (bytes + step - 1) / step * step
}

// pinned are the figures of transfer.Stats, by the names of its fields: each buffer was back before
// the next one was taken.
func (w *world) pinned() figures {
	f := figures{"Pending": 0, "DroppedBatches": 0, "AccountingFaults": 0, "HostFrees": 0, "D2DCopies": 0, "D2DBytes": 0, "Registered.Current": 0}
	n, allocs, held := int64(len(w.gets)), int64(0), w.dev.heldPinned
	var sizes, requested, most, mostRequested, again int64
	for _, g := range w.gets {
		size := pinnedSize(g.bytes)
		sizes, requested = sizes+size, requested+g.bytes
		most, mostRequested = max(most, size), max(mostRequested, g.bytes)
		if g.hit {
			again += size
		} else {
			allocs++
		}
	}
	f.stat("Allocations", stat{allocs, allocs, allocs, 0})
	f.stat("AllocatedBytes", stat{held, held, held, 0})
	f.stat("HeldBytes", stat{held, held, held, 0})
	f.stat("ActiveRequests", stat{0, min(n, 1), n, n})
	f.stat("ActiveBytes", stat{0, most, sizes, sizes})
	f.stat("RequestedBytes", stat{0, mostRequested, requested, requested})
	f.stat("CachedBytes", stat{held, held, sizes, again})
	f.stat("Registered", stat{})
	f["Hits"], f["Misses"], f["HostAllocs"] = n-allocs, allocs, allocs
	for _, part := range []string{"Total", "Max", "Min"} {
		f["HostAllocTime."+part], f["HostFreeTime."+part] = between{0, 60e9}, between{}
	}
	f["HostAllocTime.Count"], f["HostFreeTime.Count"] = allocs, 0
	for _, name := range []string{"H2D", "D2H"} {
		f[name+"Copies"], f[name+"Bytes"] = 0, int64(0)
	}
	for _, c := range w.copies {
		name := map[transfer.Op]string{transfer.OpH2D: "H2D", transfer.OpD2H: "D2H"}[c.op]
		f[name+"Copies"] = f[name+"Copies"].(int) + 1
		f[name+"Bytes"] = f[name+"Bytes"].(int64) + c.bytes
	}
	return f
}

// checkPinned compares the statistics of the pool.
func (w *world) checkPinned() { requireTrue(w.t, "transfer.Stats", of(w.pool.Stats()), w.pinned(), w) }
