package transfer_test

import (
	"context"
	"slices"
	"time"

	"github.com/cistern-ml/cistern/device"
)

// simStream is a queue. A simBatchStream copies many ranges in one operation, the last first.
type simStream struct {
	dev    *sim
	id     uint64
	queue  []simOp
	head   int
	last   *simRecord // queued last
	closed bool
}

type simBatchStream struct{ *simStream }

type simOp struct {
	kind     simKind
	dst, src []byte
	spans    [3]*simSpan
	value    byte
	fn       func()
	done     func(error)
	more     []simOp
	record   *simRecord
	breaks   bool
}

type simKind uint8

const (
	simCopy simKind = iota
	simSet
	simRun
	simRecorded
	simWait
	simDone
)

// simRecord is a point in a stream.
type simRecord struct {
	stream *simStream
	done   bool
	at     time.Duration
}

func (d *sim) NewStream(device.StreamOptions) (device.Stream, error) { return d.stream(false), nil }

func (d *sim) stream(batches bool) device.Stream {
	s := &simStream{dev: d, id: device.NewID()}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.streams = append(d.streams, s)
	if batches {
		return simBatchStream{s}
	}
	return s
}

func (s *simStream) ID() uint64            { return s.id }
func (s *simStream) Device() device.Device { return s.dev }
func (s *simStream) Priority() int         { return 0 }

// usable is the error of a call that queues.
func (s *simStream) usable(op string) error {
	if s.closed {
		return &device.Error{Op: op, Device: "sim", Err: device.ErrClosed}
	}
	return s.dev.stuck
}

// push queues an operation of the given number of parts.
func (s *simStream) push(o simOp, parts int) {
	for _, u := range o.spans {
		if u != nil {
			u.uses++
		}
	}
	for i := range o.more {
		for _, u := range o.more[i].spans {
			if u != nil {
				u.uses++
			}
		}
	}
	s.dev.parts += parts
	s.queue = append(s.queue, o)
	if len(s.queue)-s.head > 400 {
		s.dev.finish(s)
	}
}

// data queues an operation on memory.
func (s *simStream) data(op string, o simOp, parts int) error {
	if err := s.usable(op); err != nil {
		return err
	}
	if s.dev.fails(refuseCopy) {
		return errSim
	}
	o.breaks = s.dev.fails(breakCopy)
	s.push(o, parts)
	return nil
}

// copy returns a copy from device memory if src is nil, and to it if dst is nil.
func (s *simStream) copy(dst, src []byte, to, from device.Ptr) (o simOp, err error) {
	n := int64(max(len(dst), len(src)))
	o = simOp{kind: simCopy, dst: dst, src: src}
	if dst == nil {
		o.dst, o.spans[0] = s.dev.bytes(to, n)
	} else {
		o.spans[0] = s.dev.inside(addressOf(dst), len(dst))
	}
	if src == nil {
		o.src, o.spans[1] = s.dev.bytes(from, n)
	} else {
		o.spans[1] = s.dev.inside(addressOf(src), len(src))
	}
	if o.spans[0] == nil || o.spans[1] == nil {
		return o, &device.Error{Op: "Copy", Device: "sim", Bytes: n, Err: device.ErrNotPinned}
	}
	return o, nil
}

func (s *simStream) CopyH2D(dst device.Ptr, src []byte) error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	o, err := s.copy(nil, src, dst, 0)
	if err != nil {
		return err
	}
	return s.data("CopyH2D", o, 1)
}

func (s *simStream) CopyD2H(dst []byte, src device.Ptr) error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	o, err := s.copy(dst, nil, 0, src)
	if err != nil {
		return err
	}
	return s.data("CopyD2H", o, 1)
}

func (s *simStream) CopyD2D(dst, src device.Ptr, bytes int64) error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	mem, from := s.dev.bytes(src, bytes)
	if from == nil {
		return &device.Error{Op: "CopyD2D", Device: "sim", Bytes: bytes, Err: device.ErrInvalid}
	}
	o, err := s.copy(nil, mem, dst, 0)
	if err != nil {
		return err
	}
	return s.data("CopyD2D", o, 1)
}

func (s *simStream) Copy2D(c *device.Copy2D) error {
	dst, src, err := c.Spans("sim")
	if err != nil {
		return err
	}
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	to, from := c.DstHost, c.SrcHost
	if to == nil {
		to, _ = s.dev.bytes(c.Dst, dst)
	}
	if from == nil {
		from, _ = s.dev.bytes(c.Src, src)
	}
	whole, err := s.copy(to[:dst], from[:src], 0, 0)
	if err != nil {
		return err
	}
	rows := simOp{kind: simCopy, spans: whole.spans}
	for i := range c.Height {
		rows.more = append(rows.more, simOp{kind: simCopy, dst: to[i*c.DstPitch:][:c.Width], src: from[i*c.SrcPitch:][:c.Width]})
	}
	return s.data("Copy2D", rows, 1)
}

func (s *simStream) Memset(dst device.Ptr, value byte, bytes int64) error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	o := simOp{kind: simSet, value: value}
	if o.dst, o.spans[0] = s.dev.bytes(dst, bytes); o.spans[0] == nil {
		return &device.Error{Op: "Memset", Device: "sim", Bytes: bytes, Err: device.ErrInvalid}
	}
	return s.data("Memset", o, 1)
}

func (s *simStream) Launch(l *device.Launch) error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	if l.Func == nil {
		return &device.Error{Op: "Launch", Device: "sim", Err: device.ErrInvalid}
	}
	o := simOp{kind: simRun, fn: l.Func}
	for i, r := range append(slices.Clone(l.Reads), l.Writes...) {
		if _, o.spans[i%3] = s.dev.bytes(r.Ptr, r.Bytes); o.spans[i%3] == nil {
			return &device.Error{Op: "Launch", Device: "sim", Err: device.ErrInvalid}
		}
	}
	return s.data("Launch", o, 1)
}

// batch queues a copy of many ranges, the last first.
func (s *simStream) batch(ops []simOp) error {
	slices.Reverse(ops)
	return s.data("CopyBatch", simOp{kind: simCopy, more: ops}, len(ops))
}

func (s simBatchStream) CopyH2DBatch(dst []device.Ptr, src [][]byte) error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	ops := make([]simOp, len(dst))
	var err error
	for i := range dst {
		if ops[i], err = s.copy(nil, src[i], dst[i], 0); err != nil {
			return err
		}
	}
	return s.batch(ops)
}

func (s simBatchStream) CopyD2HBatch(dst [][]byte, src []device.Ptr) error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	ops := make([]simOp, len(dst))
	var err error
	for i := range dst {
		if ops[i], err = s.copy(dst[i], nil, 0, src[i]); err != nil {
			return err
		}
	}
	return s.batch(ops)
}

func (s *simStream) Record(e device.Event) error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	if err := s.usable("Record"); err != nil {
		return err
	}
	if s.dev.fails(failRecord) {
		return errSim
	}
	r := &simRecord{stream: s}
	s.last = r
	e.(*simEvent).last = r
	s.push(simOp{kind: simRecorded, record: r}, 0)
	return nil
}

func (s *simStream) Wait(e device.Event) error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	if err := s.usable("Wait"); err != nil {
		return err
	}
	if s.dev.fails(failWait) {
		return errSim
	}
	if r := e.(*simEvent).last; r != nil && !r.done {
		s.push(simOp{kind: simWait, record: r}, 0)
	}
	return nil
}

func (s *simStream) OnDone(fn func(error)) error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	if err := s.usable("OnDone"); err != nil {
		return err
	}
	s.push(simOp{kind: simDone, done: fn}, 0)
	s.callbacks()
	return nil
}

func (s *simStream) Query() (bool, error) {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	return s.head == len(s.queue), s.usable("Query")
}

func (s *simStream) Synchronize(ctx context.Context) error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	if s.closed {
		return s.usable("Synchronize")
	}
	if err := s.dev.interrupted(ctx); err != nil && s.head < len(s.queue) {
		return err
	}
	s.dev.finish(s)
	return s.dev.stuck
}

func (s *simStream) Closed() bool {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	return s.closed
}

func (s *simStream) Close() error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	s.dev.finish(s)
	s.closed = true
	if i := slices.Index(s.dev.streams, s); i >= 0 {
		s.dev.streams = slices.Delete(s.dev.streams, i, i+1)
	}
	return nil
}

// interrupted returns the error of a wait that was cancelled.
func (w *simWorld) interrupted(ctx context.Context) error {
	if w.cancel != nil {
		w.cancel()
		w.cancel = nil
	}
	return ctx.Err()
}

// step runs the stream's next operation, after the operations that it waits for.
func (w *simWorld) step(s *simStream) {
	o := &s.queue[s.head]
	if o.kind == simWait {
		w.await(o.record)
	}
	w.operations++
	switch {
	case o.kind == simRecorded:
		o.record.done, o.record.at = true, time.Duration(w.operations)
	case w.stuck != nil:
	case o.breaks:
		w.stuck = &device.Error{Op: "Copy", Device: "sim", Code: device.CodeIllegalAddress, Err: device.ErrSticky}
	default:
		o.do()
	}
	for _, u := range o.spans {
		if u != nil {
			u.uses--
		}
	}
	for i := range o.more {
		for _, u := range o.more[i].spans {
			if u != nil {
				u.uses--
			}
		}
	}
	*o = simOp{}
	if s.head++; s.head == len(s.queue) {
		s.queue, s.head = s.queue[:0], 0
	}
	s.callbacks()
}

// callbacks calls the callbacks whose work is done.
func (s *simStream) callbacks() {
	for s.head < len(s.queue) && s.queue[s.head].kind == simDone {
		s.queue[s.head].done(s.dev.stuck)
		s.queue[s.head] = simOp{}
		if s.head++; s.head == len(s.queue) {
			s.queue, s.head = s.queue[:0], 0
		}
	}
}

func (o *simOp) do() {
	switch o.kind {
	case simCopy:
		copy(o.dst, o.src)
		for i := range o.more {
			o.more[i].do()
		}
	case simSet:
		for i := range o.dst {
			o.dst[i] = o.value
		}
	case simRun:
		o.fn()
	}
}

// await runs the operations before r, and no others.
func (w *simWorld) await(r *simRecord) {
	for !r.done {
		w.step(r.stream)
	}
}

// finish runs all operations of a stream.
func (w *simWorld) finish(s *simStream) {
	for s.head < len(s.queue) {
		w.step(s)
	}
}

func (w *simWorld) runAll() {
	for _, s := range w.streams {
		w.finish(s)
	}
}

// run does at most n operations of a stream.
func (w *simWorld) run(s *simStream, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ; n > 0 && s.head < len(s.queue); n-- {
		w.step(s)
	}
}

type simEvent struct {
	dev    *sim
	timed  bool
	closed bool
	last   *simRecord
}

func (d *sim) NewEvent(o device.EventOptions) (device.Event, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fails(failEvent) {
		return nil, errSim
	}
	d.events++
	return &simEvent{dev: d, timed: o.Timed}, nil
}

func (e *simEvent) open() error {
	if e.closed {
		return &device.Error{Op: "Event", Device: "sim", Err: device.ErrClosed}
	}
	return e.dev.stuck
}

func (e *simEvent) Query() (bool, error) {
	e.dev.mu.Lock()
	defer e.dev.mu.Unlock()
	if err := e.open(); err != nil {
		return false, err
	}
	return e.last == nil || e.last.done, nil
}

func (e *simEvent) Synchronize(ctx context.Context) error {
	e.dev.mu.Lock()
	defer e.dev.mu.Unlock()
	if err := e.open(); err != nil {
		return err
	}
	if e.last != nil && !e.last.done {
		if err := e.dev.interrupted(ctx); err != nil {
			return err
		}
		e.dev.await(e.last)
	}
	return e.dev.stuck
}

func (e *simEvent) Timed() bool { return e.timed }

func (e *simEvent) Close() error {
	e.dev.mu.Lock()
	defer e.dev.mu.Unlock()
	if !e.closed {
		e.closed = true
		e.dev.events--
	}
	return nil
}
