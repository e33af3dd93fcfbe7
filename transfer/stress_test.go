package transfer_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

var background = context.Background()

// graves holds handles of released buffers, of all goroutines.
type graves struct {
	mu      sync.Mutex
	handles []transfer.Buffer
}

func (g *graves) bury(b transfer.Buffer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.handles) < 200 {
		g.handles = append(g.handles, b)
	}
}

// poke calls every method of a stale handle; each must return an error.
func (g *graves) poke(r *rig, rng *rand.Rand, s device.Stream, block memcache.Block) error {
	g.mu.Lock()
	if len(g.handles) == 0 {
		g.mu.Unlock()
		return nil
	}
	b := g.handles[rng.IntN(len(g.handles))]
	g.mu.Unlock()
	ctx := background
	_, h2d := r.pool.H2D(ctx, s, block, 0, b, 0, int64(b.Len()))
	_, d2h := r.pool.D2H(ctx, s, b, 0, block, 0, int64(b.Len()))
	_, at := b.Range(0, 1)
	_, read := b.ReadAt(make([]byte, 9), 0)
	_, write := b.WriteAt(make([]byte, 9), 0)
	for i, err := range []error{b.Check(), b.Release(), b.Wait(ctx), h2d, d2h, at, read, write, b.Zero(0, 1)} {
		if !errors.Is(err, transfer.ErrReleased) {
			return errors.Join(errors.New("a stale handle is taken for a buffer"), errors.New([]string{
				"Check", "Release", "Wait", "H2D", "D2H", "Range", "ReadAt", "WriteAt", "Zero"}[i]), err)
		}
	}
	if b.Bytes() != nil {
		return errors.New("a stale handle has bytes")
	}
	return nil
}

// Goroutines on all shards write their numbers into buffers and find only these; stale handles of
// all goroutines reach no memory.
func TestNobodySeesAnothersBuffer(t *testing.T) {
	for name, cfg := range map[string]transfer.Config{"default": {}, "small": {MaxCachedBytes: 40_000, MaxCachedBuffers: 4}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, cfg)
			old := &graves{}
			var wg sync.WaitGroup
			for g := range 16 {
				wg.Go(func() {
					if err := visit(r, g, old); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			require.NoError(t, errors.Join(r.a.Synchronize(t.Context()), r.b.Synchronize(t.Context())))
			require.NoError(t, r.get(t, 1<<20).Release()) // rebalances
			idle(t, r.pool)
			st := r.pool.Stats()
			if cfg.MaxCachedBytes > 0 {
				require.LessOrEqual(t, st.CachedBytes.Current, cfg.MaxCachedBytes)
			}
			if cfg.MaxCachedBytes == 0 { // every buffer fit the cache
				require.Equal(t, st.CachedBytes.Allocated, st.ActiveBytes.Freed)
			}
		})
	}
}

// visit runs one goroutine.
func visit(r *rig, g int, old *graves) error {
	ctx, rng, s := background, rand.New(rand.NewPCG(uint64(g), 3)), [2]device.Stream{r.a, r.b}[g%2]
	block, err := r.cache.Alloc(ctx, 8192, s)
	if err != nil {
		return err
	}
	defer block.Free()
	for i := range 60 {
		b, err := r.pool.Get(ctx, int64(1+rng.IntN(4)*2000))
		if err != nil {
			return err
		}
		mine := byte(1 + g)
		mem := b.Bytes()
		for k := range mem {
			mem[k] = mine
		}
		if err := old.poke(r, rng, s, block); err != nil {
			return err
		}
		if slices.ContainsFunc(mem, func(v byte) bool { return v != mine }) {
			return errors.New("another goroutine's number in my buffer")
		}
		if i%3 > 0 {
			if _, err := r.pool.H2D(ctx, s, block, 0, b, 0, int64(b.Len())); err != nil {
				return err
			}
		}
		if i%3 > 1 {
			got := make([]byte, b.Len())
			if err := r.pool.Download(ctx, s, got, block, 0); err != nil {
				return err
			}
			if slices.ContainsFunc(got, func(v byte) bool { return v != mine }) {
				return errors.New("another goroutine's number in my block")
			}
		}
		if err := b.Release(); err != nil {
			return err
		}
		old.bury(b)
	}
	return nil
}

// Close during other calls: each call succeeds or returns ErrClosed, and all memory is freed.
func TestCloseUnderEverything(t *testing.T) {
	r := newRig(t, transfer.Config{})
	for round := range 6 {
		p, err := transfer.New(poisoning{r.dev}, transfer.Config{MaxCachedBytes: int64(round%2) * 30_000, Observer: &stacktest.Recorder{}})
		require.NoError(t, err)
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				if err := until(r, p, g); !errors.Is(err, transfer.ErrClosed) {
					t.Error(err)
				}
			})
		}
		cisterntest.WaitFor(t, func() bool { return p.Stats().H2DCopies > 50 })
		if err := p.Close(); err != nil {
			require.ErrorContains(t, err, "Release them first")
		}
		wg.Wait()
		st := p.Stats()
		require.Zero(t, st.AllocatedBytes.Current+st.ActiveBytes.Current+st.CachedBytes.Current+st.Registered.Current+st.Pending)
	}
}

// until calls every method of p until it is closed. It does not touch buffers that Close has freed.
func until(r *rig, p *transfer.Pool, g int) error {
	ctx, s := background, [2]device.Stream{r.a, r.b}[g%2]
	block, err := r.cache.Alloc(ctx, 1<<16, s)
	if err != nil {
		return err
	}
	defer block.Free()
	mine, data, got := make([]byte, 1<<16), fill(make([]byte, 50_000), byte(g)), make([]byte, 50_000)
	for {
		if _, err := p.Upload(ctx, s, block, 0, data); err != nil {
			return err
		}
		clear(got)
		if err := p.Download(ctx, s, got, block, 0); err != nil {
			return err
		}
		if string(got) != string(data) {
			return errors.New("wrong contents")
		}
		b, err := p.Get(ctx, 1000)
		if err != nil {
			return err
		}
		if _, err := p.D2H(ctx, s, b, 0, block, 0, 1000); err != nil {
			return err
		}
		if err := b.Release(); err != nil {
			return err
		}
		reg, err := p.Register(ctx, mine)
		if err != nil {
			return err
		}
		if _, err := p.H2D(ctx, s, block, 0, reg, 0, 1<<16); err != nil {
			return err
		}
		if err := reg.Release(); err != nil {
			return err
		}
		if err := tryBatch(p, s, block, data); err != nil {
			return err
		}
		if err := p.EmptyCache(ctx); err != nil {
			return err
		}
		time.Sleep(time.Microsecond)
	}
}

func tryBatch(p *transfer.Pool, s device.Stream, block memcache.Block, data []byte) (err error) {
	ctx, b := background, p.NewBatch()
	defer func() { err = errors.Join(err, b.Close()) }()
	if err := b.Upload(ctx, block, 0, data); err != nil {
		return err
	}
	if _, err := b.Output(ctx, block, 0, int64(len(data))); err != nil {
		return err
	}
	if _, err := b.Submit(ctx, s); err != nil {
		return err
	}
	var out [][]byte
	if err := b.Collect(ctx, &out); err != nil {
		return err
	}
	if string(out[0]) != string(data) {
		return errors.New("wrong contents of a batch")
	}
	return nil
}
