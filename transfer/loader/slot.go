package loader

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// The states of a slot are: free → filled by the source → uploaded → used on the compute stream →
// released → free. Two events order them instead of host waits: the compute stream waits for
// uploaded, and the copy stream waits for consumed. The source fills one slot while the previous
// slot's upload is in flight, so each slot has as many pinned bytes as device bytes.

// slot is one slot of a loader's ring. The goroutine that received it from a channel owns it.
type slot struct {
	blocks   []memcache.Block
	stages   []transfer.Buffer
	whole    [][]byte     // the stages' memory
	fields   [][]byte     // the parts that the source filled
	uploaded device.Event // recorded on the copy stream
	consumed device.Event // recorded on the compute stream
	used     bool         // consumed is recorded, so the next upload waits for it

	ahead *transfer.Ahead // the uploads of the batch
}

// newSlot allocates a slot, or nothing.
func (l *Loader) newSlot(ctx context.Context, cfg Config) (*slot, error) {
	s := &slot{fields: make([][]byte, len(cfg.Fields))}
	if err := s.allocate(ctx, l, cfg); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// allocate fills in the slot. After an error the caller must call close.
func (s *slot) allocate(ctx context.Context, l *Loader, cfg Config) error {
	ctx = memcache.WithCategory(ctx, memcache.CategoryInput)
	for i, n := range cfg.Fields {
		block, err := cfg.Cache.Alloc(ctx, n, l.copy)
		if err != nil {
			return fmt.Errorf("field %d: %w", i, err)
		}
		s.blocks = append(s.blocks, block)
		stage, err := l.pool.Get(ctx, n)
		if err != nil {
			return fmt.Errorf("field %d: %w", i, err)
		}
		s.stages = append(s.stages, stage)
		s.whole = append(s.whole, stage.Bytes())
	}
	for _, e := range [...]*device.Event{&s.uploaded, &s.consumed} {
		var err error
		if *e, err = l.pool.Device().NewEvent(device.EventOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// close frees the slot's memory and events. The blocks are freed after the work that is queued on
// the streams on which they were recorded.
func (s *slot) close() error {
	s.ahead.Unused()
	var errs []error
	for _, b := range s.blocks {
		errs = append(errs, b.Free())
	}
	for _, b := range s.stages {
		errs = append(errs, b.Release())
	}
	for _, e := range [...]device.Event{s.uploaded, s.consumed} {
		if e != nil {
			errs = append(errs, e.Close())
		}
	}
	return errors.Join(errs...)
}

// fill calls the source to fill the slot, and queues its upload.
func (s *slot) fill(ctx context.Context, l *Loader, source Source, index int64) error {
	// The slot's last upload may still read the pinned memory. This is the goroutine's only wait
	// for a copy.
	for i, b := range s.stages {
		err := b.Wait(ctx)
		if b.IsZero() || errors.Is(err, transfer.ErrInFlight) {
			err = s.renew(ctx, l, i)
		}
		if err != nil {
			return err
		}
	}
	// The last call of the source shortened the fields.
	copy(s.fields, s.whole)
	if err := source.call(ctx, s.fields); err != nil {
		if err == io.EOF {
			return err
		}
		return batchError(index, err)
	}
	if err := checkFields(s.fields, s.whole); err != nil {
		return batchError(index, err)
	}
	// The stream waits and not the host, so that the source can fill the next batch meanwhile.
	if s.used {
		if err := l.copy.Wait(s.consumed); err != nil {
			return fmt.Errorf("loader: %w", err)
		}
	}
	s.ahead.Unused() // the last batch's, if Next did not return it
	if l.pool.Observer() != nil {
		ctx, s.ahead = transfer.WithAhead(ctx)
	}
	for i, f := range s.fields {
		if _, err := l.pool.H2D(ctx, l.copy, s.blocks[i], 0, s.stages[i], 0, int64(len(f))); err != nil {
			return err
		}
	}
	if err := l.copy.Record(s.uploaded); err != nil {
		return fmt.Errorf("loader: %w", err)
	}
	return nil
}

// renew replaces a stage if the end of its upload is unknown, so that it can't be reused. The pool
// frees the old one.
func (s *slot) renew(ctx context.Context, l *Loader, i int) error {
	err := s.stages[i].Release()
	s.stages[i] = transfer.Buffer{}
	if err != nil {
		return err
	}
	b, err := l.pool.Get(ctx, int64(len(s.whole[i])))
	if err != nil {
		return fmt.Errorf("loader: %w", err)
	}
	s.stages[i], s.whole[i] = b, b.Bytes()
	return nil
}

// handOver records the blocks on the compute stream and makes it wait for the upload.
func (s *slot) handOver(compute device.Stream) error {
	for _, b := range s.blocks {
		if err := b.RecordStream(compute); err != nil {
			return err
		}
	}
	return compute.Wait(s.uploaded)
}

// awaitConsumed waits until the compute stream has passed the slot's last use. It only bounds the
// steps in flight, so it orders nothing in race builds.
func (s *slot) awaitConsumed(ctx context.Context) error {
	_, err := race.Quietly(func() (struct{}, error) { return struct{}{}, s.consumed.Synchronize(ctx) })
	return err
}

// bytes returns the number of bytes that the source filled.
func (s *slot) bytes() int64 {
	var n int64
	for _, f := range s.fields {
		n += int64(len(f))
	}
	return n
}
