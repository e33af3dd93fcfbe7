package loader

import (
	"context"
	"fmt"
	"sync"
)

// Workers read an epoch's samples ahead of the loader's goroutine. That goroutine requests samples
// by their positions in the order and takes them in that order. It requests one more for each that
// it takes, so that neither channel is ever full: workers wait only for requests, and end as soon
// as their reads return.

// readahead reads the samples of one epoch. Its methods are for the loader's goroutine, except work
// and read.
type readahead[T any] struct {
	b       *Batcher[T]
	epoch   int
	order   []int
	asked   int             // number of samples requested
	taken   int             // number of samples taken
	wanted  chan int        // requested positions in the order; closed by end
	got     chan arrival[T] // in any order
	arrived []*outcome[T]   // position k at k modulo the length, until it is taken
	batch   []T
	workers sync.WaitGroup
}

// arrival is the sample at a position in the order.
type arrival[T any] struct {
	place int
	outcome[T]
}

// ahead returns the readahead of the rest of an epoch. Its workers start with the first call of
// collate.
func (b *Batcher[T]) ahead(epoch int, order []int) *readahead[T] {
	// One batch of requests keeps other workers busy during a slow read, and two for each worker
	// during Collate.
	n := min(b.Batch, len(order)) + 2*b.workers
	n = min(n, len(order))
	return &readahead[T]{
		b: b, epoch: epoch, order: order,
		wanted: make(chan int, n), got: make(chan arrival[T], n), arrived: make([]*outcome[T], n),
	}
}

// collate takes the samples of a batch and writes them into its fields.
func (r *readahead[T]) collate(ctx context.Context, samples []int, fields [][]byte) error {
	if r.asked == 0 {
		r.begin(ctx)
	}
	defer func() {
		clear(r.batch) // keeps no reference to a sample
		r.batch = r.batch[:0]
	}()
	for range samples {
		o, err := r.take(ctx)
		if err != nil {
			return err
		}
		r.batch = append(r.batch, o.sample)
	}
	if r.b.config.Collate == nil {
		return r.b.stack(samples, r.batch, fields)
	}
	return r.b.config.Collate(r.batch, fields)
}

// begin starts the workers. ctx is the epoch's.
func (r *readahead[T]) begin(ctx context.Context) {
	for range r.arrived {
		r.ask()
	}
	for range min(r.b.workers, len(r.order)) {
		r.workers.Go(func() { r.work(ctx) })
	}
}

// ask requests the next sample, if there is one.
func (r *readahead[T]) ask() {
	if r.asked < len(r.order) {
		r.wanted <- r.asked
		r.asked++
	}
}

// take waits for the next sample of the order.
func (r *readahead[T]) take(ctx context.Context) (*outcome[T], error) {
	at := &r.arrived[r.taken%len(r.arrived)]
	for *at == nil {
		select {
		case a := <-r.got:
			r.arrived[a.place%len(r.arrived)] = &a.outcome
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	o := *at
	*at = nil
	r.taken++
	r.ask()
	return o, o.err
}

// work is a worker's loop: it reads requested samples until there are no more, or ctx ends.
func (r *readahead[T]) work(ctx context.Context) {
	for place := range r.wanted {
		if ctx.Err() != nil {
			return
		}
		r.read(place)
	}
}

// read reads a sample and sends it. If the dataset calls runtime.Goexit, it sends an error before
// the worker ends.
func (r *readahead[T]) read(place int) {
	a, goexit := arrival[T]{place: place}, true
	defer func() {
		if goexit {
			a.err = fmt.Errorf("sample %d: %w", r.order[place], errGoexit)
		}
		r.got <- a
	}()
	a.outcome = r.b.read(r.epoch, r.order[place])
	goexit = false
}

// end ends the workers and waits for them. No take follows.
func (r *readahead[T]) end() {
	close(r.wanted)
	r.workers.Wait()
}
