package host

import (
	"time"
	"unsafe"
)

// work is the stream's goroutine. The functions of this file are go:norace also to keep the
// detector's history of the goroutine short, because the detector forgets accesses that are too
// many events ago.
//
//go:norace
func (s *stream) work() {
	defer s.restart()
	for {
		o := s.queue.next()
		if o == nil {
			s.endKernels()
			s.queue.end()
			return
		}
		s.running = o
		s.run(o)
		s.finish(o)
	}
}

//go:norace
func (s *stream) finish(o *op) {
	s.running = nil
	if p := &o.captured.progress; p.run != nil {
		p.run.finish(p.lane, p.at)
	}
	o.uses.release()
	o.uses.drop()
	o.clear()
	s.queue.finish()
}

// restart starts a new goroutine if a kernel has ended this one with runtime.Goexit.
//
//go:norace
func (s *stream) restart() {
	if o := s.running; o != nil {
		s.finish(o)
		go s.work()
	}
}

//go:norace
func (s *stream) run(o *op) {
	switch o.kind {
	case opRecord:
		o.rec.release()
		o.rec.idle, o.rec.on = s.queue.slept-s.queue.worked, s.id
		o.rec.complete(time.Since(s.dev.start))
		return
	case opDone:
		s.dev.callbacks.push(o.fn)
		return
	case opReplay:
		o.captured.progress.replay(s, o)
		return
	}
	if s.dev.stuck() != nil {
		return
	}
	if o.kind == opWait {
		s.await(o.rec)
		return
	}
	o.perform(s, o)
}

// perform runs w, which is o itself, from the queue, or an operation of the graph's lane o.
//
//go:norace
func (o *op) perform(s *stream, w *op) {
	if w.fault != nil {
		s.dev.stick(w.fault)
		return
	}
	w.uses.acquire()
	switch w.kind {
	case opCopy:
		w.uses.copy()
	case opCopy2D:
		w.rows.copy(&w.uses)
	case opMemset:
		w.uses.set(w.value)
	case opLaunch:
		if o != w { // because other lanes may run w, too
			o.kernel, o.name, o.ended = w.kernel, w.name, false
		}
		s.launch(o)
	}
	// Last, so that the detector remembers these accesses instead of the kernel's.
	if w.rows == nil {
		w.uses.declare()
	}
}

// await waits for a record, usually of another stream. The wait counts as idle time.
//
//go:norace
func (s *stream) await(r *record) {
	if r.query() {
		return
	}
	began := time.Now()
	r.wait(nil)
	s.queue.slept += time.Since(began)
}

// copy copies from each use that is read to the written use after it.
//
//go:norace
func (u *uses) copy() {
	var src []byte
	for ; u != nil; u = u.more {
		for i := 0; i < u.n; i++ {
			switch x := &u.item[i]; {
			case x.bytes == nil: // a further mapping of the previous use
			case x.write:
				copy(x.bytes, src)
			default:
				src = x.bytes
			}
		}
	}
}

// set sets every byte of the use to v, word by word. Copying the part that is set already would be
// a call that the race detector remembers, for each doubling.
//
//go:norace
func (u *uses) set(v byte) {
	b := u.item[0].bytes
	if v == 0 {
		clear(b)
		return
	}
	for len(b) > 0 && uintptr(unsafe.Pointer(&b[0]))%8 != 0 {
		b[0] = v
		b = b[1:]
	}
	words := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)
	pattern := uint64(v) * 0x0101010101010101
	for i := range words {
		words[i] = pattern
	}
	for i := len(words) * 8; i < len(b); i++ {
		b[i] = v
	}
}
