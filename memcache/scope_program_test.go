package memcache

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// plainScope implements a scope as documented, without sharing: blocks are charged to the scopes
// that are open at that moment.
type plainScope struct {
	scope  *Scope
	ctx    context.Context
	parent *plainScope
	ended  bool
	own    Own
	window Window // except the reserved bytes
}

type plainBlock struct {
	block   Block
	which   int // of the caches
	bytes   int64
	charged []*plainScope
}

// moved updates the open windows of a cache after a call.
func moved(scopes []*plainScope, c *Cache, allocated, requested, blocks int64) {
	for _, o := range scopes {
		if o.scope == nil || o.scope.ledger.shards.cache != c || o.ended {
			continue
		}
		w := &o.window
		w.Allocated.Current += allocated
		w.Allocated.Peak = max(w.Allocated.Peak, w.Allocated.Current)
		w.Requested.Current += requested
		w.Requested.Peak = max(w.Requested.Peak, w.Requested.Current)
		w.Allocations += blocks
	}
}

// scopeProgram runs random scopes, with ends that are not nested, on two caches, and compares every
// Own and every Window after every step.
func scopeProgram(t *testing.T, seed uint64, steps int) {
	r := rand.New(rand.NewPCG(seed, 0))
	var caches [2]*Cache
	var devices [2]*scripted
	var allocated, requested [2]int64
	for i := range caches {
		caches[i], devices[i] = newCache(t, Config{NoCaching: seed%8 == 7})
	}
	root := &plainScope{ctx: context.Background()}
	scopes := []*plainScope{root}
	var live []plainBlock
	for range steps {
		which := r.IntN(2)
		c, s := caches[which], devices[which].stream(uint64(r.IntN(3)))
		at := scopes[r.IntN(len(scopes))]
		switch r.IntN(8) {
		case 0, 1:
			n := &plainScope{parent: at}
			n.ctx, n.scope = c.Scope(at.ctx, fmt.Sprint(len(scopes)))
			n.window.Allocated = Level{Start: allocated[which], Current: allocated[which], Peak: allocated[which]}
			n.window.Requested = Level{Start: requested[which], Current: requested[which], Peak: requested[which]}
			scopes = append(scopes, n)
		case 2:
			if r.IntN(4) == 0 {
				c.ResetPeakStats()
				c.ResetAccumulatedStats()
			}
			if at.scope != nil {
				at.scope.End()
				at.ended = true
			}
		case 3, 4:
			if len(live) == 0 {
				continue
			}
			i := r.IntN(len(live))
			b := live[i]
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
			require.NoError(t, b.block.Free())
			allocated[b.which] -= b.block.Size()
			requested[b.which] -= b.bytes
			moved(scopes, caches[b.which], -b.block.Size(), -b.bytes, 0)
			for _, o := range b.charged {
				o.own.Live -= b.block.Size()
			}
		default:
			bytes := int64(1 + r.IntN(5000))
			b, err := c.Alloc(at.ctx, bytes, s)
			require.NoError(t, err)
			allocated[which] += b.Size()
			requested[which] += bytes
			moved(scopes, c, b.Size(), bytes, 1)
			p := plainBlock{block: b, which: which, bytes: bytes}
			for o := at; o != root; o = o.parent {
				if o.scope.ledger.shards.cache == c && !o.ended {
					o.own.Live += b.Size()
					o.own.Peak = max(o.own.Peak, o.own.Live)
					o.own.Allocations++
					p.charged = append(p.charged, o)
				}
			}
			live = append(live, p)
		}
		for _, o := range scopes[1:] {
			require.Equal(t, o.own, o.scope.Own(), "seed %d, scope %s", seed, o.scope.Name())
			w := o.scope.Window()
			require.Equal(t, o.window, Window{Allocated: w.Allocated, Requested: w.Requested, Allocations: w.Allocations},
				"seed %d, scope %s", seed, o.scope.Name())
			require.Equal(t, w.Allocations, w.Hits+w.Misses)
		}
	}
	for _, b := range live {
		require.NoError(t, b.block.Free())
	}
	for _, o := range scopes[1:] {
		require.Zero(t, o.scope.Own().Live)
		o.scope.End()
	}
	require.NoError(t, caches[0].check())
}

func TestScopePrograms(t *testing.T) {
	for seed := range uint64(max(scaled(60), 8)) {
		scopeProgram(t, seed, 100)
	}
}

// TestScopeBeyondAnEndedOne: the middle scope ends first; the outer one still counts the inner
// one's allocations.
func TestScopeBeyondAnEndedOne(t *testing.T) {
	c, dev := newCache(t, Config{})
	ctx, outer := c.Scope(t.Context(), "outer")
	ctx, mid := c.Scope(ctx, "mid")
	ctx, inner := c.Scope(ctx, "inner")
	early, err := c.Alloc(ctx, 1024, dev.stream(1))
	require.NoError(t, err)
	mid.End()
	b, err := c.Alloc(ctx, 512, dev.stream(1))
	require.NoError(t, err)
	require.EqualValues(t, 1536, inner.Own().Live)
	require.EqualValues(t, 1024, mid.Own().Live)
	require.EqualValues(t, 1536, outer.Own().Live)
	require.NoError(t, b.Free())
	require.NoError(t, early.Free())
	for _, s := range []*Scope{outer, mid, inner} {
		require.Zero(t, s.Own().Live)
		s.End()
	}
}
