package memcache

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// pressed is a cache of 256 MiB, full of blocks of 16 MiB.
func pressed(t *testing.T) (c *Cache, s *scriptedStream, held []Block) {
	c, dev := newCache(t, Config{MemoryLimit: 256 * mib})
	s = dev.stream(1)
	for range 16 {
		held = append(held, mustAlloc(t, c, 16*mib, s))
	}
	return c, s, held
}

// TestReclaimerThatRemovesItself: the next one is called all the same.
func TestReclaimerThatRemovesItself(t *testing.T) {
	c, s, held := pressed(t)
	var asked []string
	var remove func()
	remove = c.OnPressure(func(context.Context, int64) int64 {
		asked = append(asked, "once")
		remove()
		return 0
	})
	c.OnPressure(func(context.Context, int64) int64 { asked = append(asked, "in between"); return 0 })
	c.OnPressure(func(context.Context, int64) int64 {
		asked = append(asked, "last")
		require.NoError(t, held[0].Free())
		return held[0].Size()
	})
	mustAlloc(t, c, 16*mib, s)
	require.Equal(t, []string{"once", "in between", "last"}, asked)
	require.Zero(t, c.Stats().NumOOMs)
}

// TestReclaimerThatFreesAndRemovesItself: it is not called again, and the next one is.
func TestReclaimerThatFreesAndRemovesItself(t *testing.T) {
	c, s, held := pressed(t)
	var asked []string
	var remove func()
	remove = c.OnPressure(func(context.Context, int64) int64 {
		asked = append(asked, "once")
		remove()
		require.NoError(t, held[0].Free())
		return held[0].Size()
	})
	c.OnPressure(func(context.Context, int64) int64 {
		asked = append(asked, "next")
		require.NoError(t, held[1].Free())
		return held[1].Size()
	})
	mustAlloc(t, c, 32*mib, s)
	require.Equal(t, []string{"once", "next"}, asked)
}

// TestReclaimerRemovedByAnother: it is not called any more, although it was registered when the
// request found no memory.
func TestReclaimerRemovedByAnother(t *testing.T) {
	c, s, _ := pressed(t)
	var removeOther func()
	c.OnPressure(func(context.Context, int64) int64 { removeOther(); return 0 })
	removeOther = c.OnPressure(func(context.Context, int64) int64 { t.Error("it was removed"); return 0 })
	after := 0
	c.OnPressure(func(context.Context, int64) int64 { after++; return 0 })
	_, err := c.Alloc(t.Context(), 16*mib, s)
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.Equal(t, 1, after)
}

// TestReclaimerOfOneEntryACall: a reclaimer that frees its oldest entry is called until enough is
// free. The others are called only when it has nothing left.
func TestReclaimerOfOneEntryACall(t *testing.T) {
	c, s, held := pressed(t)
	var asked []string
	c.OnPressure(func(_ context.Context, need int64) int64 {
		asked = append(asked, "oldest")
		require.EqualValues(t, 48*mib, need)
		if len(held) <= 14 {
			return 0
		}
		b := held[0]
		held = held[1:]
		require.NoError(t, b.Free())
		return b.Size()
	})
	c.OnPressure(func(context.Context, int64) int64 {
		asked = append(asked, "youngest")
		b := held[len(held)-1]
		held = held[:len(held)-1]
		require.NoError(t, b.Free())
		return b.Size()
	})
	mustAlloc(t, c, 48*mib, s)
	require.Equal(t, []string{"oldest", "oldest", "oldest", "youngest"}, asked)
	require.Zero(t, c.Stats().NumOOMs)
	require.EqualValues(t, 4, c.Stats().NumAllocRetries, "a flush before the first answer, and one after each")
	require.NoError(t, c.check())
}

// TestReclaimerThatSaysMoreThanThereIs: a reclaimer that frees nothing and reports that it does is
// eventually skipped, and so is one whose context has ended.
func TestReclaimerThatSaysMoreThanThereIs(t *testing.T) {
	c, s, held := pressed(t) // of a device of 1 GiB
	lies, asked := int64(100*mib), 0
	c.OnPressure(func(context.Context, int64) int64 {
		if asked++; asked == 1 {
			return min(lies, 1)
		}
		return lies
	})
	_, err := c.Alloc(t.Context(), 16*mib, s)
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.Equal(t, 12, asked)
	asked, lies = 0, math.MaxInt64
	_, err = c.Alloc(t.Context(), 16*mib, s)
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.Equal(t, 2, asked)
	asked, lies = 1, 512*mib
	_, err = c.Alloc(t.Context(), 16*mib, s)
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.Equal(t, 4, asked, "it may have freed all there is, and no more")
	require.EqualValues(t, 3, c.Stats().NumOOMs)

	asked, lies = 0, 1
	ctx, cancel := context.WithCancel(t.Context())
	c.OnPressure(func(context.Context, int64) int64 { t.Error("the context has ended"); return 0 })
	c.reclaimers.list[0].free = func(context.Context, int64) int64 {
		if asked++; asked == 5 {
			cancel()
		}
		return 1
	}
	_, err = c.Alloc(ctx, 16*mib, s)
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.Equal(t, 5, asked)
	for _, b := range held {
		require.NoError(t, b.Free())
	}
}

// TestReclaimerWithNothingLeft: it is called once for a request, however often the next one frees
// something. The bytes that one reclaimer reports do not count against another.
func TestReclaimerWithNothingLeft(t *testing.T) {
	c, s, held := pressed(t)
	nothing, lied := 0, false
	c.OnPressure(func(context.Context, int64) int64 { nothing++; return 0 })
	c.OnPressure(func(context.Context, int64) int64 {
		if lied {
			return 0
		}
		lied = true
		return 5 << 30
	})
	c.OnPressure(func(context.Context, int64) int64 {
		b := held[0]
		held = held[1:]
		require.NoError(t, b.Free())
		return b.Size()
	})
	mustAlloc(t, c, 48*mib, s)
	require.Equal(t, 1, nothing)
	require.Len(t, held, 13)
	_, err := c.Alloc(t.Context(), 16*mib, s)
	require.NoError(t, err)
	require.Equal(t, 2, nothing, "once for each request")
}
