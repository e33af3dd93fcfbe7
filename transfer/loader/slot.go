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

// A slot goes round: free → filled by the source → uploaded → handed to compute → released → free.
// Two events order it, and no host wait: uploaded lets the compute stream wait for the copy stream,
// consumed the other way. The source fills pinned memory while the upload of the slot before is on
// its way, so a slot has as many pinned bytes as device bytes.

// slot is one place of a loader's ring. Whoever took it from a channel has it alone.
type slot struct {
	blocks   []memcache.Block
	stages   []transfer.Buffer
	whole    [][]byte     // the stages' memory
	fields   [][]byte     // what the source made of it
	uploaded device.Event // recorded on the copy stream
	consumed device.Event // recorded on the compute stream
	used     bool         // consumed is recorded: the next upload waits for it

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

// allocate fills in what a slot has. After an error close gives back what is there.
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

// close gives everything back. The blocks are freed after what the streams that they were recorded
// on have queued.
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

// fill lets the source fill the slot, and queues its upload.
func (s *slot) fill(ctx context.Context, l *Loader, source Source, index int64) error {
	// The pinned memory may still be read by the last upload of this slot. That is the only wait of this goroutine for a copy.
	for i, b := range s.stages {
		err := b.Wait(ctx)
		if b.IsZero() || errors.Is(err, transfer.ErrInFlight) {
			err = s.renew(ctx, l, i)
		}
		if err != nil {
			return err
		}
	}
	// The source of the last time cut them.
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
	// The stream waits, not the host: the source's next batch is filled meanwhile.
	if s.used {
		if err := l.copy.Wait(s.consumed); err != nil {
			return fmt.Errorf("loader: %w", err)
		}
	}
	s.ahead.Unused() // of a batch that Next did not return
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

// renew replaces the stage of an upload that nothing says the end of: the pool frees it after that.
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

// handOver makes the compute stream wait for the upload.
func (s *slot) handOver(compute device.Stream) error {
	for _, b := range s.blocks {
		if err := b.RecordStream(compute); err != nil {
			return err
		}
	}
	return compute.Wait(s.uploaded)
}

// awaitConsumed waits until the compute stream is past the slot's last use. It only bounds the
// steps in flight, so it orders nothing.
func (s *slot) awaitConsumed(ctx context.Context) error {
	_, err := race.Quietly(func() (struct{}, error) { return struct{}{}, s.consumed.Synchronize(ctx) })
	return err
}

// bytes is how many the source filled.
func (s *slot) bytes() int64 {
	var n int64
	for _, f := range s.fields {
		n += int64(len(f))
	}
	return n
}
