package transfer

import (
	"context"
	"fmt"
	"sync/atomic"
)

// Stats count a pool's copies when they are queued, but not for which part of the program: a loader
// uploads a batch during one step for the next one. So a caller puts a meter into the context, and
// a copy counts in the meters of its context. Code that queues copies ahead does so without a meter
// and later charges them to the context of the code that uses them.

// Meter counts the copies of one pool that are queued with a context of [Pool.Meter]. Its methods
// may be called from any goroutine.
type Meter struct {
	pool   *Pool
	outer  *Meter
	copied [copyOps]struct{ copies, bytes atomic.Int64 }
}

type meterKey struct{}

// metered is a context with a meter, in one object.
type metered struct {
	context.Context
	meter Meter
}

// Value implements context.Context.
func (c *metered) Value(key any) any {
	if key == (meterKey{}) {
		return &c.meter
	}
	return c.Context.Value(key)
}

// Meter returns a context and its meter. This pool's copies with that context count in the meter,
// and in the meters of ctx, when they are queued. A nil ctx is context.Background().
func (p *Pool) Meter(ctx context.Context) (context.Context, *Meter) {
	if ctx == nil {
		ctx = context.Background()
	}
	p.metered.Store(true)
	c := &metered{ctx, Meter{pool: p, outer: meterOf(ctx)}}
	return c, &c.meter
}

// WithoutMeter returns a context whose copies count in no meter, for copies that are queued ahead
// of their use (see [Pool.Charge]).
func WithoutMeter(ctx context.Context) context.Context {
	if meterOf(ctx) == nil {
		return ctx
	}
	return context.WithValue(ctx, meterKey{}, (*Meter)(nil))
}

// meterOf returns the innermost meter of ctx, or nil.
func meterOf(ctx context.Context) *Meter {
	if ctx == nil {
		return nil
	}
	m, _ := ctx.Value(meterKey{}).(*Meter)
	return m
}

// Charge counts copies in one direction (OpH2D, OpD2H or OpD2D) and their bytes in the meters of
// ctx for this pool. It is for copies that were queued without a meter; others count automatically.
// It does not change Stats.
func (p *Pool) Charge(ctx context.Context, op Op, copies, bytes int64) {
	// The look-up takes some nanoseconds for each value in the context, and most programs have no
	// meter.
	if !p.metered.Load() || ctx == nil || op >= copyOps {
		return
	}
	for m := meterOf(ctx); m != nil; m = m.outer {
		if m.pool == p {
			m.copied[op].copies.Add(copies)
			m.copied[op].bytes.Add(bytes)
		}
	}
}

// Count returns the number of copies in one direction and their bytes. It is 0 for other operations
// and for a nil Meter.
func (m *Meter) Count(op Op) (copies, bytes int64) {
	if m == nil || op >= copyOps {
		return 0, 0
	}
	return m.copied[op].copies.Load(), m.copied[op].bytes.Load()
}

// String returns the counts of each direction.
func (m *Meter) String() string {
	s := "meter:"
	for op := range copyOps {
		copies, bytes := m.Count(op)
		s += fmt.Sprintf(" %v %d copies of %d bytes", op, copies, bytes)
	}
	return s
}
