package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// Batch is a list of copies and kernels that one Submit queues on a stream, with one completion: uploads to blocks,
// kernels, and outputs that blocks are read back to. Nothing runs before Submit; then they run in the order in which they
// were added, neighbours of one kind as one operation where the device can ([device.BatchCopier]) and no two of them write
// the same bytes. All data lies in a few pinned buffers.
//
//	b := pool.NewBatch()
//	defer b.Close()
//	err := b.Upload(ctx, in, 0, data)
//	err = b.Launch(kernel, in, out)
//	slot, err := b.Output(ctx, out, 0, n)
//	_, err = b.Submit(ctx, stream)
//	err = b.CollectOne(ctx, slot, &result)
//
// Its methods may be called from any goroutine. Nothing waits while another asks the driver for memory or submits: what
// is added meanwhile is in the batch, or refused if that was too late.
type Batch struct {
	pool *Pool

	mu      sync.Mutex
	state   batchState
	closing bool // Close came while it was submitted
	steps   []step
	arenas  []arena
	outputs []output
	blocks  []memcache.Block
	done    *Copy
	err     error // of a Submit that failed
}

type batchState uint8

const (
	building batchState = iota
	submitting
	submitted
	failed
	batchClosed
)

// arena is a pinned buffer that a batch fills from its start.
type arena struct {
	buffer Buffer
	used   int64
	writes bool // outputs are written to it
}

// output is where an output lies.
type output struct {
	memory []byte // of the bytes that were asked for, without padding
}

// step is one kind of operation on a stream.
type step struct {
	op     Op // OpH2D, OpD2H or OpLaunch
	host   [][]byte
	device []device.Ptr
	launch device.Launch
}

const (
	minArena   = 64 << 10
	maxArena   = 4 << 20
	batchAlign = 64 // of what lies in an arena
)

// NewBatch begins a batch. It must be closed.
func (p *Pool) NewBatch() *Batch { return &Batch{pool: p} }

// Upload adds a copy of src to dst, at offset. src may be reused when Upload returns; dst is recorded on the stream by
// Submit, and may be freed after it. Ranges are checked as by [Pool.H2D]; an error leaves the batch as it was. An empty
// src adds nothing.
func (b *Batch) Upload(ctx context.Context, dst memcache.Block, offset int64, src []byte) error {
	return b.UploadPadded(ctx, dst, offset, src, int64(len(src)))
}

// UploadPadded is Upload of size bytes: src, and zeros behind it. A size less than len(src) wraps [ErrRange].
func (b *Batch) UploadPadded(ctx context.Context, dst memcache.Block, offset int64, src []byte, size int64) error {
	return b.upload(ctx, "UploadPadded", dst, offset, int64(len(src)), size, func(to []byte) error {
		copy(to, src)
		return nil
	})
}

// UploadWords adds an upload of words to dst, at offset, each in little-endian order on any host, padded with zeros to
// size bytes. A size of 0 is that of the words.
func UploadWords[T Word](ctx context.Context, b *Batch, dst memcache.Block, offset int64, words []T, size int64) error {
	n := int64(len(Bytes(words)))
	if size == 0 {
		size = n
	}
	return b.upload(ctx, "UploadWords", dst, offset, n, size, func(to []byte) error { return encode(to, words) })
}

func (b *Batch) upload(ctx context.Context, call string, dst memcache.Block, offset, n, size int64, fill func([]byte) error) error {
	if size < n {
		return fmt.Errorf("transfer: %s: %d bytes padded to %d: %w: want a size of at least the data's", call, n, size, ErrRange)
	}
	if err := checkRange(call, dst, offset, size, dst.Size()); err != nil {
		return err
	}
	if err := b.pool.enter(ctx, call); err != nil {
		return err
	}
	defer b.pool.gate.Leave() // until then the arenas are not freed
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.open(call); err != nil || size == 0 {
		return err
	}
	mem, err := b.take(ctx, call, size, false)
	if err != nil {
		return err
	}
	if err := fill(mem[:n]); err != nil {
		return err
	}
	clear(mem[n:])
	b.add(OpH2D, mem, dst, offset)
	return nil
}

// Output adds a read-back of bytes bytes of src, at offset, and returns its slot: 0, 1, 2, … in this order. src is
// recorded on the stream by Submit, and may be freed after it. An error leaves the batch as it was.
func (b *Batch) Output(ctx context.Context, src memcache.Block, offset, bytes int64) (slot int, err error) {
	return b.OutputPadded(ctx, src, offset, bytes, bytes)
}

// OutputPadded is Output of a copy of size bytes, of which the first bytes bytes are the slot's. A size less than bytes
// wraps [ErrRange].
func (b *Batch) OutputPadded(ctx context.Context, src memcache.Block, offset, bytes, size int64) (slot int, err error) {
	if bytes < 0 || size < bytes {
		return 0, fmt.Errorf("transfer: OutputPadded: %d bytes of %d: %w: want 0 to the size", bytes, size, ErrRange)
	}
	if err := checkRange("OutputPadded", src, offset, size, src.Size()); err != nil {
		return 0, err
	}
	if err := b.pool.enter(ctx, "Output"); err != nil {
		return 0, err
	}
	defer b.pool.gate.Leave()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.open("Output"); err != nil {
		return 0, err
	}
	var mem []byte
	if size > 0 {
		if mem, err = b.take(ctx, "Output", size, true); err != nil {
			return 0, err
		}
		b.add(OpD2H, mem, src, offset)
	}
	b.outputs = append(b.outputs, output{mem[:bytes:bytes]})
	return len(b.outputs) - 1, nil
}

// Launch adds a kernel. The blocks that it uses are recorded on the stream by Submit. l is copied, its slices are not:
// they must stay as they are until Submit.
func (b *Batch) Launch(l *device.Launch, blocks ...memcache.Block) error {
	if l == nil {
		return fmt.Errorf("transfer: Launch: %w: the launch is nil", ErrInvalid)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.open("Launch"); err != nil {
		return err
	}
	b.steps = append(b.steps, step{op: OpLaunch, launch: *l})
	b.blocks = append(b.blocks, blocks...)
	return nil
}

// open says why nothing can be added.
func (b *Batch) open(call string) error {
	switch b.state {
	case building:
		return nil
	case batchClosed:
		return fmt.Errorf("transfer: %s: the batch is %w", call, ErrClosed)
	default:
		return fmt.Errorf("transfer: %s: the batch was submitted: %w: want another batch", call, ErrInvalid)
	}
}

// take finds size bytes of pinned memory. It unlocks the batch while it asks the pool for more.
func (b *Batch) take(ctx context.Context, call string, size int64, writes bool) ([]byte, error) {
	mem, next := b.place(size, writes)
	if mem != nil {
		return mem, nil
	}
	b.mu.Unlock()
	buf, err := b.pool.Get(ctx, next)
	b.mu.Lock()
	if err != nil {
		return nil, fmt.Errorf("transfer: %s: %w", call, err)
	}
	if err := b.open(call); err != nil { // by now
		return nil, errors.Join(err, buf.Release())
	}
	b.arenas = append(b.arenas, arena{buffer: buf, writes: writes})
	mem, _ = b.place(size, writes)
	return mem, nil
}

// place takes size bytes of an arena. If none has them it returns how large the next one has to be.
func (b *Batch) place(size int64, writes bool) (mem []byte, next int64) {
	next = max(minArena, size)
	for i := range b.arenas {
		a := &b.arenas[i]
		if a.writes != writes {
			continue
		}
		if size <= a.buffer.bytes-a.used {
			mem = a.buffer.memory()[a.used : a.used+size]
			a.used = min(a.buffer.bytes, (a.used+size+batchAlign-1)/batchAlign*batchAlign)
			return mem, 0
		}
		next = max(next, min(2*a.buffer.bytes, maxArena))
	}
	return nil, next
}

// add adds a copy to the last step, or begins one.
func (b *Batch) add(op Op, host []byte, block memcache.Block, offset int64) {
	if n := len(b.steps); n == 0 || b.steps[n-1].op != op {
		b.steps = append(b.steps, step{op: op})
	}
	s := &b.steps[len(b.steps)-1]
	s.host = append(s.host, host)
	s.device = append(s.device, block.Ptr()+device.Ptr(offset))
	if n := len(b.blocks); n == 0 || b.blocks[n-1] != block {
		b.blocks = append(b.blocks, block)
	}
}

// Submit queues everything on stream, and returns the handle of its end. A block that was freed is found before anything
// is queued; a kernel that the device refuses leaves what was added before it queued. A batch is submitted once; after an
// error, ctx's included, it can only be closed. An empty batch is done at once.
func (b *Batch) Submit(ctx context.Context, stream device.Stream) (*Copy, error) {
	if err := b.pool.checkStream("Submit", stream); err != nil {
		return nil, err
	}
	b.mu.Lock()
	if err := b.open("Submit"); err != nil {
		b.mu.Unlock()
		return nil, err
	}
	b.state = submitting // until it changes, nothing else does
	b.mu.Unlock()
	c, err := b.submit(ctx, stream)
	b.mu.Lock()
	if b.state, b.done, b.err = submitted, c, err; err != nil {
		b.state = failed
	}
	closing := b.closing
	b.mu.Unlock()
	if closing {
		err = errors.Join(err, b.Close())
	}
	return c, err
}

func (b *Batch) submit(ctx context.Context, stream device.Stream) (*Copy, error) {
	w := work{op: OpBatch, stream: stream, blocks: b.blocks}
	var count [copyOps]struct{ copies, bytes int64 }
	for _, s := range b.steps {
		w.kernels = w.kernels || s.op == OpLaunch
		for _, h := range s.host {
			count[s.op].copies++
			count[s.op].bytes += int64(len(h))
			w.bytes += int64(len(h))
		}
	}
	for _, a := range b.arenas {
		w.buffers = append(w.buffers, BufferUse{a.buffer, a.writes})
	}
	c, err := b.pool.submit(ctx, &w, func() error { return b.queue(&w) })
	if err != nil {
		return nil, err
	}
	for op, n := range count {
		b.pool.copied[op].copies.Add(n.copies)
		b.pool.copied[op].bytes.Add(n.bytes)
	}
	return c, nil
}

// queue queues the steps.
func (b *Batch) queue(w *work) error {
	for i := range b.steps {
		if err := b.steps[i].queue(w); err != nil {
			return err
		}
		w.partial = true
	}
	return nil
}

func (s *step) queue(w *work) error {
	batch, ok := w.stream.(device.BatchCopier)
	switch {
	case s.op == OpLaunch:
		return w.stream.Launch(&s.launch)
	case s.op == OpH2D && ok && !s.overlap():
		return batch.CopyH2DBatch(s.device, s.host)
	case s.op == OpD2H && ok:
		return batch.CopyD2HBatch(s.host, s.device)
	}
	for i, h := range s.host {
		var err error
		if s.op == OpH2D {
			err = w.stream.CopyH2D(s.device[i], h)
		} else {
			err = w.stream.CopyD2H(h, s.device[i])
		}
		if err != nil {
			return err
		}
		w.partial = true
	}
	return nil
}

// overlap reports whether two uploads write the same bytes. One operation would do them in any order.
func (s *step) overlap() bool {
	order := make([]int, len(s.device))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(s.device[i], s.device[j]) })
	for k, i := range order[1:] {
		before := order[k]
		if s.device[i]-s.device[before] < device.Ptr(len(s.host[before])) {
			return true
		}
	}
	return false
}

// Close gives the batch's memory back, when the copies that use it are done. It does not wait for them, and outputs can't
// be collected any more; beside a Submit, that gives it back. It is idempotent; after the pool's Close, which took the
// memory, it returns [ErrClosed] once.
func (b *Batch) Close() error {
	b.mu.Lock()
	if b.state == submitting {
		b.closing = true
		b.mu.Unlock()
		return nil
	}
	arenas := b.arenas
	b.state = batchClosed
	b.arenas, b.steps, b.outputs, b.blocks = nil, nil, nil, nil
	b.mu.Unlock()
	var errs []error
	for _, a := range arenas {
		errs = append(errs, a.buffer.Release())
	}
	return errors.Join(errs...)
}
