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

// Watch makes the statistics of a cache metrics, read once per collection and at no cost in between. stop
// undoes it; until then, or until the Tracer is closed, the meter provider holds on to the cache. If stop fails
// the watch goes on, and stop can be called again. A closed cache gives its last figures.
//
// The metrics, all with the attribute cistern.device.name and those in attributes, which tell several caches
// of one device apart (without, they add up, and of their peaks only one is shown):
//
//	cistern.device.memory.usage        By            by cistern.pool.name and cistern.memory.state: "allocated",
//	                                                 "pending" (freed, a stream still uses it), "split" (free, but
//	                                                 a part of a segment in use), "cached", "graph" (private pools
//	                                                 keep it for graphs); the sum is reserved
//	cistern.device.memory.limit        By            that the cache may hold
//	cistern.device.memory.utilization  1             usage by limit, by state
//	cistern.device.memory.reserved     By            held from the driver, by pool
//	cistern.device.memory.private      By            held by all private pools, a part of reserved, by pool
//	cistern.device.memory.largest_free  By           the largest free block outside of private pools, by pool
//	cistern.device.memory.category.usage  By         handed out, by cistern.memory.category: see memcache.Label
//	cistern.device.memory.peak         By            by state "allocated", "reserved"; since ResetPeakStats
//	cistern.device.segment.held        {segment}     held from the driver, by pool
//	cistern.device.allocated           By            handed out, a total, by pool
//	cistern.device.allocations         {allocation}  by cistern.allocation.result: "hit", "miss", "oom"
//	cistern.device.oom.retries         {retry}       driver allocations tried again after a flush
//
// A GPU's have hw.id and hw.type, too. For the categories each collection walks the blocks in use, and requests wait
// meanwhile. Totals go on through ResetAccumulatedStats. A nil cache and one that is watched already are errors.
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

// WatchPool makes the statistics of a pool of pinned host memory metrics, as Watch does for a cache:
//
//	cistern.pinned.memory.usage  By          by cistern.memory.state: "active", "cached"
//	cistern.pinned.memory.limit        By    that the pool may hold; with transfer.Config.MaxBytes
//	cistern.pinned.memory.utilization  1     usage by limit, by state; with transfer.Config.MaxBytes
//	cistern.pinned.memory.peak   By          by state "active", "reserved"
//	cistern.pinned.allocations  {allocation}  by cistern.allocation.result: "hit", "miss"
//	cistern.transfer.io          By          copied, by cistern.transfer.direction: "h2d", "d2h"
//	cistern.transfer.copies      {copy}      by direction
//	cistern.transfer.pending     {buffer}    released buffers that a copy still uses
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

// watch registers what register does under key, once. register runs under t.mu: it calls the meter only.
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

// stop ends the watch, unless the meter fails: then it goes on, since another one would count twice.
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
