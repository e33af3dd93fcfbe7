package trace

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/cistern-ml/cistern/device"
)

// NewProfiler makes a Profiler. A configuration without a cache, with parts of different devices or
// ranks, or with a KernelTimer that lacks a Stream or has another profiler, is an error that wraps
// [ErrInvalid].
func NewProfiler(config ProfilerConfig) (*Profiler, error) {
	if config.Cache == nil {
		return nil, fmt.Errorf("trace: NewProfiler: %w: ProfilerConfig.Cache is nil; it must be "+
			"the cache that the steps use", ErrInvalid)
	}
	if s := config.Stream; s != nil && s.Device() != config.Cache.Device() {
		return nil, fmt.Errorf("trace: NewProfiler: %w: stream %d belongs to device %d (%s), the cache to device %d (%s)",
			ErrInvalid, s.ID(), s.Device().ID(), s.Device().Name(), config.Cache.Device().ID(), config.Cache.Device().Name())
	}
	if pool := config.Pool; pool != nil && pool.Device() != config.Cache.Device() {
		return nil, fmt.Errorf("trace: NewProfiler: %w: the pool belongs to device %d (%s), the cache to device %d (%s)",
			ErrInvalid, pool.Device().ID(), pool.Device().Name(), config.Cache.Device().ID(), config.Cache.Device().Name())
	}
	if c := config.Communicator; c != nil && c.Device() != config.Cache.Device() {
		return nil, fmt.Errorf("trace: NewProfiler: %w: the communicator belongs to device %d (%s), the cache to device %d (%s)",
			ErrInvalid, c.Device().ID(), c.Device().Name(), config.Cache.Device().ID(), config.Cache.Device().Name())
	}
	if config.Communicator != nil && !config.Tracer.off() {
		if err := config.Tracer.agree(config.Communicator); err != nil {
			return nil, fmt.Errorf("trace: NewProfiler: %w", err)
		}
	}
	if config.Kernels != nil && config.Stream == nil {
		return nil, fmt.Errorf("trace: NewProfiler: %w: ProfilerConfig.Kernels is set without a Stream; set Stream, whose kernels it times", ErrInvalid)
	}
	if config.Tracer.off() {
		config.Tracer = nil
	}
	p := &Profiler{config: config, drain: make(chan struct{}, 1)}
	p.stop = make(chan struct{})
	dev := config.Cache.Device()
	p.events.Device, p.events.Options.Timed = dev, true
	p.busy, _ = dev.(device.BusyTimer)
	if p.busy == nil && config.Kernels != nil {
		if !config.Kernels.attach(p) {
			return nil, fmt.Errorf("trace: NewProfiler: %w: ProfilerConfig.Kernels belongs to another profiler; close that one first", ErrInvalid)
		}
		p.kernels = config.Kernels
	}
	if config.Tracer == nil {
		return p, nil
	}
	ranks := rankOf(config.ranks())
	p.identity, p.describe = append(identity(dev), ranks...), append(description(dev), ranks...)
	p.series = []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(p.identity...))}
	return p, nil
}

// Flush waits until the device has completed every step that has ended, and completes their
// profiles and spans. If ctx ends, Flush stops waiting, and the next Flush completes the remaining
// steps. Flush returns the first error since the last Flush. After an error of measuring the device
// time that step has no device time. After an error of placing it on the host's clock the device's
// part has no span. Both steps are complete. Flush orders no memory accesses: to read the device's
// results, synchronize the stream.
func (p *Profiler) Flush(ctx context.Context) error {
	if p.off() {
		return nil
	}
	if ctx == nil {
		return fmt.Errorf("trace: Flush: %w: the context is nil; use context.Background()", ErrInvalid)
	}
	select {
	case p.drain <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("trace: Flush: waiting for another goroutine that completes steps: %w", ctx.Err())
	}
	_, err := p.complete(func(e device.Event) (bool, error) { return true, e.Synchronize(ctx) })
	p.poll(false, device.Event.Query) // of Ends that found drain taken
	if err != nil {
		return fmt.Errorf("trace: Flush: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	err, p.err = p.err, nil
	return err
}

// Close is Flush without a deadline. It also releases the profiler's resources on the device and
// ends its goroutine. It must be called before the device is closed. Steps that are started later
// have no device time. It is idempotent.
func (p *Profiler) Close() error {
	if p.off() {
		return nil
	}
	p.closed.Store(true)
	p.kernels.detach(p)
	err := p.Flush(context.Background())
	p.background.end()
	return errors.Join(err, p.clock.close(), p.events.Close())
}

// Summary returns the sum of the steps completed so far.
func (p *Profiler) Summary() Summary {
	if p.off() {
		return Summary{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.summary.summary()
	s.Rank, s.WorldSize = p.config.ranks()
	if s.succeeded() > 0 {
		s.Mean.Rank, s.Mean.WorldSize = s.Rank, s.WorldSize
	}
	s.Pending = int64(len(p.open))
	s.LastReplayed.Replays = slices.Clone(s.LastReplayed.Replays)
	for i := range s.LastReplayed.Replays {
		s.LastReplayed.Replays[i].tell()
	}
	return s
}
