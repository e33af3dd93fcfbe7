package trace

import (
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// watch is a cache, pool or offloader whose statistics are metrics.
type watch struct {
	tracer       *Tracer
	key          any
	registration metric.Registration
}

// Watch exports the statistics of a cache as metrics. They are read once per collection and cost
// nothing in between. stop ends the watch. Until then, or until the Tracer is closed, the meter
// provider keeps the cache reachable. If stop fails the watch continues, and stop can be called
// again. A closed cache reports its last figures.
//
// The metrics all have the attribute cistern.device.name and those in attributes. Several caches of
// one device need attributes that differ: otherwise their figures add up, and only one of their
// peaks is shown.
//
//	cistern.device.memory.usage           By            held from the driver, by pool and state
//	cistern.device.memory.limit           By            that the cache may hold
//	cistern.device.memory.utilization     1             usage by limit, by state
//	cistern.device.memory.reserved        By            held from the driver, by pool
//	cistern.device.memory.private         By            held by all private pools, by pool
//	cistern.device.memory.largest_free    By            the largest free block, by pool
//	cistern.device.memory.category.usage  By            handed out, by category
//	cistern.device.memory.peak            By            since ResetPeakStats, by state
//	cistern.device.segment.held           {segment}     held from the driver, by pool
//	cistern.device.allocated              By            handed out, a total, by pool
//	cistern.device.allocations            {allocation}  requests, a total, by result
//	cistern.device.oom.retries            {retry}       driver allocations repeated after a flush
//
// The pool is the attribute cistern.pool.name. The state is cistern.memory.state: "allocated",
// "pending" (freed, but a stream still uses it), "split" (free, but part of a segment in use),
// "cached" or "graph" (private pools keep it for graphs). The bytes of these states add up to
// reserved. The states of peak are "allocated" and "reserved". The category is
// cistern.memory.category: see memcache.Label. The result is cistern.allocation.result: "hit",
// "miss" or "oom". Memory of private pools is part of reserved; largest_free is outside of them.
//
// Those of a GPU also have hw.id and hw.type. For the categories each collection walks the blocks
// in use, and requests wait meanwhile. Totals continue through ResetAccumulatedStats. A nil cache
// is an error, and so is one that is watched already.
func (t *Tracer) Watch(cache *memcache.Cache, attributes ...attribute.KeyValue) (stop func() error, err error) {
	if cache == nil {
		return nil, fmt.Errorf("trace: Watch: %w: the cache is nil", ErrInvalid)
	}
	if t.off() {
		return func() error { return nil }, nil
	}
	return t.watch("Watch", cache, func() (metric.Registration, error) {
		if t.memory == nil {
			m, err := newMemoryMetrics(t.meter)
			if err != nil {
				return nil, err
			}
			t.memory = m
		}
		return t.memory.register(t, cache, attributes)
	})
}

// WatchPool exports the statistics of a pool of pinned host memory as metrics, as Watch does for a
// cache:
//
//	cistern.pinned.memory.usage        By            by cistern.memory.state: "active", "cached"
//	cistern.pinned.memory.limit        By            that the pool may hold
//	cistern.pinned.memory.utilization  1             usage by limit, by state
//	cistern.pinned.memory.peak         By            by state: "active", "reserved"
//	cistern.pinned.allocations         {allocation}  by cistern.allocation.result: "hit", "miss"
//	cistern.transfer.io                By            by cistern.transfer.direction: "h2d", "d2h"
//	cistern.transfer.copies            {copy}        by direction
//	cistern.transfer.pending           {buffer}      released buffers that a copy still uses
//
// The limit and the utilization exist if transfer.Config.MaxBytes is set.
func (t *Tracer) WatchPool(pool *transfer.Pool, attributes ...attribute.KeyValue) (stop func() error, err error) {
	if pool == nil {
		return nil, fmt.Errorf("trace: WatchPool: %w: the pool is nil", ErrInvalid)
	}
	if t.off() {
		return func() error { return nil }, nil
	}
	return t.watch("WatchPool", pool, func() (metric.Registration, error) {
		if t.copies == nil {
			m, err := newTransferMetrics(t.meter)
			if err != nil {
				return nil, err
			}
			t.copies = m
		}
		return t.copies.register(t, pool, attributes)
	})
}

// watch calls register and stores its registration under key, once. register runs under t.mu and
// may call only the meter.
func (t *Tracer) watch(op string, key any, register func() (metric.Registration, error)) (func() error, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, fmt.Errorf("trace: %s: %w: the tracer is closed", op, ErrInvalid)
	}
	if t.watched[key] != nil {
		return nil, fmt.Errorf("trace: %s: %w: it is watched already, and would be counted twice", op, ErrInvalid)
	}
	r, err := register()
	if err != nil {
		return nil, fmt.Errorf("trace: %s: %w", op, err)
	}
	w := &watch{tracer: t, key: key, registration: r}
	t.watched[key] = w
	return w.stop, nil
}

// stop ends the watch. If the meter fails, the watch continues, because a new one would count
// twice.
func (w *watch) stop() error {
	if err := w.registration.Unregister(); err != nil {
		return fmt.Errorf("trace: ending a watch: %w", err)
	}
	w.tracer.mu.Lock()
	defer w.tracer.mu.Unlock()
	if w.tracer.watched[w.key] == w {
		delete(w.tracer.watched, w.key)
	}
	return nil
}
