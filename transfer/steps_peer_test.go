package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"io"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// copyPeer copies between a block and the other device's.
func (a *randomCaller) copyPeer(s step) {
	o := a.w.other
	if o == nil || a.w.dead() {
		return
	}
	v, st := a.variable(s.a), a.stream(s.b)
	at, n := part(s.c, blockBytes)
	from := int(s.d>>8) % (blockBytes - n + 1)
	a.order(v, st)
	mine := transfer.Side{Pool: a.pool, Stream: st, Block: v.block, Offset: int64(at)}
	others := transfer.Side{Pool: o.pool, Stream: o.stream, Block: o.block, Offset: int64(from)}
	a.begin()
	if !o.dev.peers {
		a.w.sim.end() // it is unknown which part of a staged copy failed
	}
	in := s.d%2 == 0
	var err error
	if in {
		_, err = transfer.CopyPeer(a.ctx, mine, others, int64(n))
	} else {
		_, err = transfer.CopyPeer(a.ctx, others, mine, int64(n))
	}
	a.end()
	if !o.dev.peers {
		a.stagedPeer(in, int64(n), st, err)
		if !a.ok(err) {
			return
		}
	} else if in && (err == nil || a.parts > 0 && a.fired[failWait]) {
		a.count(transfer.OpD2D, 1, int64(n))
	}
	if !a.ok(err) && a.parts == 0 {
		return
	}
	if in {
		copy(v.want[at:at+n], o.want[from:])
	} else {
		copy(o.want[from:from+n], v.want[at:])
	}
}

func (a *randomCaller) stagedPeer(in bool, n int64, st device.Stream, err error) {
	if want := a.books.get(n, err); want != nil {
		a.agree(err, want)
		return
	}
	a.parts = 1
	b := &heldBuffer{}
	a.used(b, st, nil)
	a.books.release(n, b.uses, false)
	op := transfer.OpD2H
	if in {
		op = transfer.OpH2D
	}
	a.count(op, 1, n)
}

// loader takes some batches of a loader's epochs, the last of which may be cancelled.
func (a *randomCaller) loader(s step) {
	if a.w.sim != nil && !a.w.alone || a.w.cfg.MaxBytes > 0 || a.w.dead() || a.w.sim == nil && a.w.faults {
		return
	}
	compute, up := a.stream(s.a), a.stream(s.b)
	ahead, fields := 1+int(s.c%3), []int64{1 + int64(s.c>>8%200), 1 + int64(s.c>>16%100)}[:1+s.c>>4%2]
	cfg := loader.Config{Cache: a.w.cache, Compute: compute, Copy: up, Fields: fields, Ahead: ahead}
	if a.w.sim != nil {
		a.w.sim.mu.Lock()
		clear(a.w.sim.left[:])
		a.w.sim.mu.Unlock()
	}
	a.w.calls.Add(1)
	l, err := loader.New(background, a.pool, cfg)
	if a.books != nil {
		a.books.look()
		for range ahead + 1 {
			for _, n := range fields {
				if want := a.books.get(n, err); want != nil {
					a.fail("a loader's Get must return %v", want)
				}
			}
		}
	}
	if !a.ok(err) {
		return
	}
	defer l.Close() // of a dead device
	epochs, batches := 1+int(s.d%3), 1+int(s.d>>8%7)
	given := 0
	for e := range epochs {
		wants := batches
		if e == epochs-1 && s.d%2 == 0 && a.books != nil {
			wants /= 2
		}
		a.require(l.Start(background, counted(batches, byte(s.d+uint32(e)))))
		for i := range wants {
			b, err := l.Next(background)
			if !a.ok(err) {
				break
			}
			given++
			v := a.variable(s.b + uint32(i))
			a.order(v, compute)
			n := min(b.Bytes(0), blockBytes)
			_, err = a.pool.D2D(background, compute, v.block, 0, b.Field(0), 0, n)
			if a.ok(err) {
				copy(v.want, bytes.Repeat([]byte{byte(s.d+uint32(e)) + byte(i)}, int(n)))
				a.count(transfer.OpD2D, 1, n)
			}
			a.require(b.Release())
			a.w.calls.Add(3)
		}
		if wants == batches {
			if _, err := l.Next(background); err != io.EOF {
				a.fail("Next after the epoch returned %v", err)
			}
		}
	}
	a.require(l.Close())
	a.require(up.Synchronize(background))
	if st := l.Stats(); st.Batches != int64(given) || st.Epochs != int64(epochs) {
		a.fail("the loader counts %d batches and %d epochs, not %d and %d", st.Batches, st.Epochs, given, epochs)
	}
	if a.books == nil {
		for _, n := range fields {
			for range ahead + 1 {
				a.got(n)
			}
			a.count(transfer.OpH2D, int64(epochs*batches), int64(epochs*batches)*n)
		}
		return
	}
	a.books.look()
	a.books.flushes = true
	done := []*simRecord{{stream: raw(up), done: true}}
	for range ahead + 1 {
		for _, n := range fields {
			a.books.released(n, done, false)
		}
	}
	a.books.poll() // in one poll, because it is unknown which were found together
	a.books.frees()
	// It is unknown how far ahead it was at the end.
	st, was := a.pool.Stats(), a.books.st
	if n := st.H2DCopies - was.H2DCopies; n < int64(given*len(fields)) || n > int64(epochs*batches*len(fields)) {
		a.fail("a loader that gave %d batches of %d fields made %d copies", given, len(fields), n)
	}
	a.count(transfer.OpH2D, st.H2DCopies-was.H2DCopies, st.H2DBytes-was.H2DBytes)
}

// counted is a source of n batches. Each batch has its number, plus the first one, in every byte.
func counted(n int, first byte) loader.Source {
	i := 0
	return func(_ context.Context, fields [][]byte) error {
		if i == n {
			return io.EOF
		}
		for _, f := range fields {
			for k := range f {
				f[k] = first + byte(i)
			}
		}
		i++
		return nil
	}
}

// faultHost makes a call of the host device fail soon.
func (a *randomCaller) faultHost(s step) {
	if d, ok := a.w.dev.(*host.Device); ok && s.c%4 == 0 {
		kinds := []host.Fault{host.FaultPinned, host.FaultPinned, host.FaultPinned, host.FaultCopy, host.FaultLaunch}
		d.Fail(kinds[s.a%uint32(len(kinds))], 1+int(s.b%5))
	}
}

// end checks everything again and closes it, first the pool.
func (w *fixture) end(actors []*randomCaller) error {
	a := actors[0]
	err := guard(func() {
		for _, a := range actors {
			a.ctx, a.interrupted = background, false
			a.finish()
		}
		w.atRest(actors)
	})
	if err != nil {
		return err
	}
	out := 0
	for _, a := range actors {
		out += len(a.buffers)
		for _, h := range a.batches {
			out += len(h.arenas)
		}
	}
	w.closed.Store(true)
	err = w.pool.Close()
	return guard(func() {
		if (err == nil) != (out == 0) && !w.faults {
			a.fail("Close with %d buffers out returned %v", out, err)
		}
		w.afterClose(actors)
		w.closeRest(actors)
		if w.sim != nil {
			w.nothingLeft(a)
		}
	})
}

// closeRest closes everything but the pool.
func (w *fixture) closeRest(actors []*randomCaller) {
	var errs []error
	for _, a := range actors {
		for _, v := range a.vars {
			errs = append(errs, v.block.Free())
		}
	}
	if w.other != nil {
		errs = append(errs, w.other.pool.Close(), w.other.block.Free(), w.other.cache.Close())
	}
	if w.reader != nil {
		errs = append(errs, w.reader.Close())
	}
	errs = append(errs, w.cache.Close())
	for _, a := range actors {
		for _, s := range a.streams {
			errs = append(errs, s.Close())
		}
		errs = append(errs, a.event.Close())
	}
	errs = append(errs, w.dev.Close())
	for _, err := range errs {
		if !w.dead() && !(w.faults && errors.Is(err, device.ErrSticky)) {
			actors[0].require(err)
		}
	}
}
