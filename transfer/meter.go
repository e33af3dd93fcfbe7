package transfer

import (
	"context"
	"fmt"
	"sync/atomic"
)

// Statistics say what a pool copied, and when. Whom a copy was for is another question where copies are queued ahead: a
// batch that a loader uploads during one step is the next one's. So who wants to know puts a meter into the context; a
// copy counts in those of its own context, and who queued it ahead charges it to whoever takes what was copied.

// Meter counts the copies of one pool for a part of a program: those with a context of [Pool.Meter]. Its methods may be
// called from any goroutine.
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

// Value is context.Context's.
func (c *metered) Value(key any) any {
	if key == (meterKey{}) {
		return &c.meter
	}
	return c.Context.Value(key)
}

// Meter returns a context whose copies by this pool count in the meter, when they are queued, and in those around it. A nil
// context is context.Background().
func (p *Pool) Meter(ctx context.Context) (context.Context, *Meter) {
	if ctx == nil {
		ctx = context.Background()
	}
	p.metered.Store(true)
	c := &metered{ctx, Meter{pool: p, outer: meterOf(ctx)}}
	return c, &c.meter
}

// WithoutMeter returns a context whose copies count in no meter, for what is queued ahead of its use: see [Pool.Charge].
func WithoutMeter(ctx context.Context) context.Context {
	if meterOf(ctx) == nil {
		return ctx
	}
	return context.WithValue(ctx, meterKey{}, (*Meter)(nil))
}

// meterOf is the innermost meter of ctx, or nil.
func meterOf(ctx context.Context) *Meter {
	if ctx == nil {
		return nil
	}
	m, _ := ctx.Value(meterKey{}).(*Meter)
	return m
}

// Charge counts copies of a direction, OpH2D, OpD2H or OpD2D, with their bytes, in the meters of ctx for this pool. Copies
// count by themselves; Charge is for those that were queued without a meter. The statistics don't change.
func (p *Pool) Charge(ctx context.Context, op Op, copies, bytes int64) {
	// A look-up takes some nanoseconds for each value in the context: most programs have no meter.
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

// Count is how many copies of a direction there were, and their bytes; 0 for what is no copy, and for a nil Meter.
func (m *Meter) Count(op Op) (copies, bytes int64) {
	if m == nil || op >= copyOps {
		return 0, 0
	}
	return m.copied[op].copies.Load(), m.copied[op].bytes.Load()
}

// String has the copies of each direction.
func (m *Meter) String() string {
	s := "meter:"
	for op := range copyOps {
		copies, bytes := m.Count(op)
		s += fmt.Sprintf(" %v %d copies of %d bytes", op, copies, bytes)
	}
	return s
}
