package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// TestReportsWhileBusy reads artefacts while goroutines allocate and free on streams of their own.
// Each reading is of one moment: its figures add up and lie within the goroutines' limits. The sums
// are correct at the end.
func TestReportsWhileBusy(t *testing.T) {
	w := newWorld(t, 1)
	const goroutines, most = 3, 8 * mib
	ctx, cancel := context.WithCancel(context.Background())
	type sums struct{ blocks, bytes, requested, steps int64 }
	var done [goroutines]sums
	var kept [goroutines][]*held
	var all sync.WaitGroup
	for g := range done {
		s, err := w.dev.NewStream(device.StreamOptions{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 8))
			held := int64(0)
			for range 60 {
				in, step := w.profiler.StartStep(context.Background(), int64(g+1))
				own := int64(0)
				for range 12 {
					label := labels[r.IntN(len(labels))]
					n := 1 + r.Int64N(mib)
					b, err := w.cache.Alloc(memcache.WithCategory(memcache.WithModule(in, label.Module), label.Category), n, s)
					if err != nil {
						t.Error(err)
						return
					}
					own += b.Size()
					held += b.Size()
					kept[g] = append(kept[g], blockOf(b, n, memcache.Label{Module: label.Module, Category: label.Category, Step: int64(g + 1)}))
					done[g].blocks, done[g].bytes, done[g].requested = done[g].blocks+1, done[g].bytes+b.Size(), done[g].requested+n
					for held > most-mib {
						held -= kept[g][0].Size()
						if err := kept[g][0].Free(); err != nil {
							t.Error(err)
						}
						kept[g] = kept[g][1:]
					}
				}
				p := step.End()
				done[g].steps++
				if p.OwnAllocations != 12 || p.OwnPeak > own || p.OwnPeak > p.AllocatedPeak || p.AllocatedPeak > goroutines*most {
					t.Errorf("%+v", p)
				}
			}
		})
	}
	var readers sync.WaitGroup
	readers.Go(func() {
		for ctx.Err() == nil {
			w.readOnce(goroutines * most)
		}
	})
	all.Wait()
	cancel()
	readers.Wait()
	var blocks []*held
	var total sums
	for g := range done {
		blocks = slices.Concat(blocks, kept[g])
		total.blocks, total.bytes, total.steps = total.blocks+done[g].blocks, total.bytes+done[g].bytes, total.steps+done[g].steps
	}
	st := w.cache.Stats()
	require.Equal(t, []int64{total.blocks, total.bytes, total.blocks, int64(len(blocks))},
		[]int64{st.Allocation.All.Allocated, st.AllocatedBytes.All.Allocated, st.Hits + st.Misses, st.Allocation.All.Current})
	require.Equal(t, holdings(blocks), w.cache.Profile().Holdings)
	require.NoError(t, w.profiler.Flush(context.Background()))
	require.Equal(t, total.steps, w.profiler.Summary().Steps)
	for _, b := range blocks {
		require.NoError(t, b.Free())
	}
	w.close()
}

func blockOf(b memcache.Block, requested int64, l memcache.Label) *held {
	return &held{Block: b, requested: requested, label: l}
}

// readOnce reads everything once. No figure contradicts another one of the same artefact.
func (w *world) readOnce(most int64) {
	st := w.cache.Stats()
	for _, a := range []memcache.StatArray{st.Allocation, st.AllocatedBytes, st.Active, st.ActiveBytes, st.RequestedBytes, st.ReservedBytes, st.Segment} {
		require.Equal(w.t, a.All.Current, a.SmallPool.Current+a.LargePool.Current)
		require.Equal(w.t, a.All.Current, a.All.Allocated-a.All.Freed)
		require.LessOrEqual(w.t, a.All.Current, a.All.Peak)
	}
	require.LessOrEqual(w.t, st.AllocatedBytes.All.Peak, most)
	for _, p := range []memcache.Profile{w.cache.Profile(), w.cache.PeakProfile()} {
		sum := int64(0)
		for _, h := range p.Holdings {
			require.Equal(w.t, h.Bytes, h.Size*int64(h.Blocks))
			sum += h.Bytes
		}
		require.Equal(w.t, p.Allocated, sum)
		require.True(w.t, p.Allocated <= p.Active && p.Active <= p.Reserved)
	}
	for _, s := range w.cache.Snapshot().Segments {
		at, allocated := s.Address, int64(0)
		for _, b := range s.Blocks {
			require.Equal(w.t, at, b.Address)
			at += device.Ptr(b.Size)
			if b.State == memcache.BlockAllocated {
				allocated += b.Size
			}
		}
		require.Equal(w.t, []int64{s.TotalSize, s.AllocatedSize}, []int64{int64(at - s.Address), allocated})
	}
	reading := w.cache.Reading()
	allocated := int64(0)
	for _, s := range reading.Snapshot.Segments {
		allocated += s.AllocatedSize
	}
	require.Equal(w.t, allocated, reading.Profile.Allocated, "one moment")
	require.True(w.t, reading.Profile.Allocated <= reading.PeakProfile.Allocated && reading.Profile.Reserved <= reading.MaxMemoryReserved)
	var page struct {
		Memory map[string]int64
		Steps  int64
	}
	require.NoError(w.t, json.Unmarshal(w.get("stats"), &page))
	require.Equal(w.t, page.Memory["allocated_bytes.all.current"], page.Memory["allocated_bytes.all.allocated"]-page.Memory["allocated_bytes.all.freed"])
	p, err := profile.Parse(bytes.NewReader(w.get("heap")))
	require.NoError(w.t, err)
	require.NotEmpty(w.t, p.SampleType)
	r := w.readPage(w.get("report"))
	now := r.doc["profiles"].([]any)[0].(map[string]any)
	sum := int64(0)
	holders, _ := now["holdings"].([]any)
	for _, h := range holders {
		sum += number(h.([]any)[3])
	}
	require.Equal(w.t, number(now["allocated"]), sum)
}
