package memcache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// captured calls f while the stream is captured, and returns the graph's memory.
func capturedIn(t *testing.T, c *Cache, p *Pool, s device.Stream, f func() error) *GraphMemory {
	capture := s.(device.GraphCapturer)
	m, err := c.CaptureGraph(p, func() error {
		require.NoError(t, capture.BeginCapture())
		err := f()
		g, ended := capture.EndCapture()
		return errors.Join(err, ended, g.Close())
	})
	require.NoError(t, err)
	return m
}

// TestGraphMemory: random graphs in two pools hold the memory that their functions held at the
// peak. The profile assigns all free memory of the pools: each 512 bytes to the first open graph
// that uses them at its peak.
func TestGraphMemory(t *testing.T) {
	for seed, config := range []Config{{}, {ExpandableSegments: true}, {Exact: true}, {MaxSplitSizeMB: 20}} {
		dev := cisterntest.Host(t, 1<<30)
		c, err := New(dev, config)
		require.NoError(t, err)
		s, r := cisterntest.Stream(t, dev), rand.New(rand.NewPCG(uint64(seed), 3))
		p, inP := newPool(t, c, PoolOptions{})
		q, inQ := newPool(t, c, PoolOptions{StartSmall: true})
		pools, contexts := []*Pool{p, q}, []context.Context{inP, inQ}
		type peak struct {
			memory *GraphMemory
			owner  map[device.Ptr]string // of each 512 bytes
		}
		var graphs []peak
		var stay []Block
		plain := mustAlloc(t, c, 3<<20, s) // of no graph's
		for i := range 4 {
			at := r.IntN(2)
			var live []Block
			owner, held, most, served := map[device.Ptr]string{}, int64(0), int64(0), 0
			modules := map[device.Ptr]string{}
			memory := capturedIn(t, c, pools[at], s, func() error {
				for range 3 + r.IntN(12) {
					if len(live) > 0 && r.IntN(3) == 0 {
						b := live[r.IntN(len(live))]
						live = slices.DeleteFunc(live, func(o Block) bool { return o == b })
						held -= b.Size()
						if err := b.Free(); err != nil {
							return err
						}
						continue
					}
					module := fmt.Sprintf("graph %d, layer %d", i, r.IntN(3))
					b, err := c.Alloc(WithModule(contexts[at], module), 1+r.Int64N(3<<19), s)
					if err != nil {
						return err
					}
					served++
					live, modules[b.Ptr()] = append(live, b), module
					if held += b.Size(); held > most {
						most = held
						clear(owner)
						for _, b := range live {
							for a := b.Ptr(); a < b.Ptr()+device.Ptr(b.Size()); a += 512 {
								owner[a] = modules[b.Ptr()]
							}
						}
					}
				}
				for len(live) > 1 {
					if err := live[0].Free(); err != nil {
						return err
					}
					live = live[1:]
				}
				return nil
			})
			stay = append(stay, live...)
			assert.EqualValues(t, i+1, memory.Number)
			assert.Equal(t, []int64{most, int64(served)}, []int64{memory.Held, memory.Allocations}, "config %d, graph %d", seed, i+1)
			want := map[string]int64{}
			for _, module := range owner {
				want[module] += 512
			}
			assert.Equal(t, want, sharesOf(Profile{Holdings: memory.Holdings}), "config %d, graph %d", seed, i+1)
			assert.Equal(t, pools[at].ID(), memory.Pool.ID)
			assert.Equal(t, pools[at].Stats().ReservedBytes.All.Current, memory.Pool.Reserved.Load())
			graphs = append(graphs, peak{memory, owner})
		}
		check := func() {
			t.Helper()
			want, all, kinds := map[string]int64{}, int64(0), PoolBytes{}
			for _, seg := range c.Snapshot().Segments {
				if free := seg.TotalSize - seg.ActiveSize; seg.PoolID != (PoolID{}) && seg.Pool == "small" {
					kinds.SmallPool += free
				} else if seg.PoolID != (PoolID{}) {
					kinds.LargePool += free
				}
				for _, b := range seg.Blocks {
					for a := b.Address; b.State == BlockInactive && seg.PoolID != (PoolID{}) && a < b.Address+device.Ptr(b.Size); a += 512 {
						all += 512
						name := "0 "
						for _, g := range graphs {
							if module, ok := g.owner[a]; ok && g.memory.Pool.ID == seg.PoolID {
								name = fmt.Sprint(g.memory.Number, " ", module)
								break
							}
						}
						want[fmt.Sprint(seg.PoolID, " ", name)] += 512
					}
				}
			}
			profile, got, sum := c.GraphProfile(), map[string]int64{}, int64(0)
			for _, h := range profile.Holdings {
				got[fmt.Sprint(h.Pool, " ", h.Graph, " ", h.Module)] += h.Bytes
				sum += h.Bytes
				assert.Equal(t, int64(h.Blocks)*h.Size, h.Bytes)
			}
			assert.Equal(t, want, got, "config %d", seed)
			assert.Equal(t, []int64{all, all, all, all}, []int64{sum, profile.Held, c.Stats().GraphBytes.All, c.Profile().Graphs}, "config %d", seed)
			kinds.All = all
			assert.Equal(t, kinds, c.Stats().GraphBytes)
			split := PoolBytes{}
			for _, p := range pools {
				s := p.Stats().InactiveSplitBytes
				split.All, split.SmallPool, split.LargePool = split.All+s.All.Current, split.SmallPool+s.SmallPool.Current, split.LargePool+s.LargePool.Current
			}
			assert.Equal(t, split, c.Stats().GraphSplitBytes)
			var open []*GraphMemory
			for _, g := range graphs {
				open = append(open, g.memory)
			}
			assert.Equal(t, append([]*GraphMemory{}, open...), append([]*GraphMemory{}, profile.Graphs...))
		}
		check()
		for len(graphs) > 0 {
			i := r.IntN(len(graphs))
			m := graphs[i].memory
			before := m.Pool.Graphs.Load()
			m.Close()
			m.Close()
			assert.Equal(t, before-1, m.Pool.Graphs.Load())
			graphs = slices.Delete(graphs, i, i+1)
			if len(stay) > 0 {
				require.NoError(t, stay[0].Free())
				stay = stay[1:]
			}
			check()
		}
		require.NoError(t, errors.Join(p.Release(), q.Release()))
		assert.Zero(t, c.Stats().GraphBytes, "others may have it now")
		assert.Empty(t, c.GraphProfile().Holdings)
		for _, b := range stay {
			require.NoError(t, b.Free())
		}
		require.NoError(t, errors.Join(plain.Free(), c.Close(), s.Close(), dev.Close()))
		assert.Zero(t, c.Stats().GraphBytes)
	}
}

// sharesOf returns the bytes of a profile by module.
func sharesOf(p Profile) map[string]int64 {
	sums := map[string]int64{}
	for _, s := range p.Sum(func(h Holding) string { return h.Module }) {
		sums[s.Name] = s.Bytes
	}
	return sums
}

// TestGraphMemoryOfOthers: blocks that the pool had before the capture, and those of other pools,
// are not the graph's, and a pool that was never captured holds nothing for graphs.
func TestGraphMemoryOfOthers(t *testing.T) {
	dev := cisterntest.Host(t, 1<<30)
	c, err := New(dev, Config{})
	require.NoError(t, err)
	s := cisterntest.Stream(t, dev)
	p, in := newPool(t, c, PoolOptions{})
	_, inOther := newPool(t, c, PoolOptions{})
	old, other := allocIn(t, in, c, 1<<20, s), allocIn(t, inOther, c, 2<<20, s)
	require.Zero(t, c.Stats().GraphBytes)
	var blocks []Block
	memory := capturedIn(t, c, p, s, func() error {
		for _, ctx := range []context.Context{context.Background(), in, inOther} {
			b, err := c.Alloc(ctx, 1<<20, s)
			require.NoError(t, err)
			blocks = append(blocks, b)
		}
		return nil
	})
	assert.Equal(t, []int64{1 << 20, 1}, []int64{memory.Held, memory.Allocations})
	for _, b := range append(blocks, old, other) {
		require.NoError(t, b.Free())
	}
	assert.Equal(t, p.Stats().ReservedBytes.All.Current+22<<20, c.Stats().GraphBytes.All, "the capture has used both pools")
	memory.Close()
	require.NoError(t, errors.Join(c.Close(), s.Close(), dev.Close()))
}

// TestGraphsAtAPeak: windows and profiles of peaks contain the memory of graphs at that moment,
// without the block of the pool that raises the peak.
func TestGraphsAtAPeak(t *testing.T) {
	dev := cisterntest.Host(t, 1<<30)
	c, err := New(dev, Config{})
	require.NoError(t, err)
	s := cisterntest.Stream(t, dev)
	p, in := newPool(t, c, PoolOptions{})
	memory := capturedIn(t, c, p, s, func() error { return allocIn(t, in, c, 3<<20, s).Free() })
	_, scope := c.Scope(context.Background(), "scope")
	require.EqualValues(t, 20<<20, scope.Window().GraphBytes)
	b := allocIn(t, in, c, 4<<20, s)
	require.EqualValues(t, 16<<20, scope.Window().GraphBytes)
	for _, profile := range []Profile{c.Profile(), c.PeakProfile(), scope.PeakProfile()} {
		require.Equal(t, []int64{4 << 20, 16 << 20, 20 << 20}, []int64{profile.Allocated, profile.Graphs, profile.Reserved})
	}
	require.NoError(t, b.Free())
	require.EqualValues(t, 16<<20, c.PeakProfile().Graphs)
	scope.End()
	require.EqualValues(t, 20<<20, scope.Window().GraphBytes)
	memory.Close()
	require.NoError(t, errors.Join(p.Release(), c.Close(), s.Close(), dev.Close()))
}

// TestGraphsOfReleasedPools: an open graph has no part of another pool's memory at the former
// addresses of its own pool.
func TestGraphsOfReleasedPools(t *testing.T) {
	a, b := &placement.Pool{}, &placement.Pool{}
	block := freedBlock{ptr: 0x1000, size: 1024}
	old, own := &GraphMemory{place: a, blocks: []freedBlock{block}}, &GraphMemory{place: b, blocks: []freedBlock{block}}
	got := map[*GraphMemory]int64{}
	freedBlock{ptr: 0xe00, size: 2048, pool: b}.share([]*GraphMemory{old, own}, func(p *placement.Pool, g *GraphMemory, n freedBlock) {
		require.Same(t, b, p)
		got[g] += n.size
	})
	require.Equal(t, map[*GraphMemory]int64{nil: 1024, own: 1024}, got)
}

// TestFailedGraphs are not in the profile, and their scopes are closed.
func TestFailedGraphs(t *testing.T) {
	c, dev := newCache(t, Config{})
	p, in := newPool(t, c, PoolOptions{})
	wrong := errors.New("wrong")
	m, err := c.CaptureGraph(p, func() error {
		b := allocIn(t, in, c, 512, dev.stream(1))
		return errors.Join(wrong, b.Free())
	})
	require.ErrorIs(t, err, wrong)
	require.Nil(t, m)
	require.Panics(t, func() { _, _ = c.CaptureGraph(p, func() error { panic(wrong) }) })
	require.Empty(t, c.ledger.openScopes)
	require.Empty(t, c.GraphProfile())
	require.Zero(t, p.graphs.Graphs.Load())
	for _, wrongPool := range []*Pool{nil, {}} {
		_, err := c.CaptureGraph(wrongPool, func() error { return nil })
		require.ErrorIs(t, err, ErrInvalid)
	}
	_, err = c.CaptureGraph(p, nil)
	require.ErrorIs(t, err, ErrInvalid)
}
