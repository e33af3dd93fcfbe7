package transfer_test

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/transfer"
)

// finish compares all contents and releases everything, unless the pool is to be closed while
// buffers are out.
func (a *randomCaller) finish() {
	if a.w.abrupt || a.w.dead() {
		return
	}
	for _, h := range append([]*heldBatch(nil), a.batches...) {
		if h.copy != nil {
			a.collectBatch(step{b: 1})
		}
		a.closeBatch(h)
		a.checked()
	}
	for len(a.buffers) > 0 {
		b := a.buffers[0]
		if !b.tainted {
			a.begin()
			err := b.buffer.Wait(background)
			a.end()
			a.ok(err)
		}
		a.look(b)
		a.release(b)
		a.checked()
		if a.w.dead() {
			return
		}
	}
}

func (a *randomCaller) checked() {
	if a.books != nil {
		a.books.check()
	}
}

// contents compares the blocks, directly if the host can access them.
func (a *randomCaller) contents() {
	visible, ok := a.w.dev.(device.HostVisible)
	for i, v := range a.vars {
		got, err := make([]byte, blockBytes), error(nil)
		if ok {
			got, err = visible.Bytes(v.block.Ptr(), blockBytes)
		} else {
			err = a.w.reader.Download(background, a.streams[0], got, v.block, 0)
		}
		a.require(err)
		if !bytes.Equal(got, v.want) {
			a.fail("block %d: %s", i, difference(got, v.want))
		}
	}
}

// difference returns a text with the first difference of got and want.
func difference(got, want []byte) string {
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			n := min(i+16, len(want), len(got))
			return fmt.Sprintf("from byte %d of %d it is %x, and must be %x", i, len(want), got[i:n], want[i:n])
		}
	}
	return fmt.Sprintf("it has %d bytes, and must have %d", len(got), len(want))
}

// atRest compares the pool's statistics with the calls of all goroutines.
func (w *fixture) atRest(actors []*randomCaller) {
	a := actors[0]
	a.require(w.dev.Synchronize(background))
	for _, a := range actors {
		a.contents()
	}
	if w.other != nil {
		if got, _ := w.other.dev.Bytes(w.other.block.Ptr(), blockBytes); !bytes.Equal(got, w.other.want) {
			a.fail("the other device's block: %s", difference(got, w.other.want))
		}
	}
	if w.abrupt {
		return
	}
	if !w.alone {
		w.sums(actors)
	}
	err := w.pool.EmptyCache(background)
	if b := a.books; b != nil && b.parked {
		if err == nil {
			a.fail("nobody is told that the driver refused to free something")
		}
		err = w.pool.EmptyCache(background)
	}
	a.require(err)
	if st := w.pool.Stats(); st.AllocatedBytes.Current != 0 || st.CachedBytes.Current != 0 || st.Pending != 0 {
		a.fail("after EmptyCache the statistics are %+v", st)
	}
}

// sums compares the pool's statistics with the sums of several goroutines.
func (w *fixture) sums(actors []*randomCaller) {
	a, st := actors[0], w.pool.Stats()
	var want transfer.Stats
	for _, a := range actors {
		want.H2DCopies += a.sum.H2DCopies
		want.H2DBytes += a.sum.H2DBytes
		want.D2HCopies += a.sum.D2HCopies
		want.D2HBytes += a.sum.D2HBytes
		want.D2DCopies += a.sum.D2DCopies
		want.D2DBytes += a.sum.D2DBytes
		want.ActiveRequests.Allocated += a.gets
		want.RequestedBytes.Allocated += a.getBytes
	}
	got := transfer.Stats{H2DCopies: st.H2DCopies, H2DBytes: st.H2DBytes, D2HCopies: st.D2HCopies, D2HBytes: st.D2HBytes,
		D2DCopies: st.D2DCopies, D2DBytes: st.D2DBytes}
	got.ActiveRequests.Allocated, got.RequestedBytes.Allocated = st.ActiveRequests.Allocated, st.RequestedBytes.Allocated
	if got != want {
		a.fail("the statistics are wrong: %s", unequal(got, want))
	}
	w.invariants(a, st)
	if st.ActiveRequests.Current != 0 || st.ActiveBytes.Current != 0 || st.RequestedBytes.Current != 0 || st.Pending != 0 {
		a.fail("at rest the statistics are %+v", st)
	}
	if d := w.sim; d != nil && (st.HeldBytes.Current != d.held || st.HostAllocs != d.allocCalls || st.HostFrees != d.freeCalls) {
		a.fail("the driver counts %d calls and %d calls and %d bytes, the pool %+v", d.allocCalls, d.freeCalls, d.held, st)
	}
}

// invariants checks conditions that are true at any time.
func (w *fixture) invariants(a *randomCaller, st transfer.Stats) {
	if st.AllocatedBytes.Current != st.ActiveBytes.Current+st.CachedBytes.Current {
		a.fail("%d bytes are allocated, %d active and %d cached", st.AllocatedBytes.Current, st.ActiveBytes.Current, st.CachedBytes.Current)
	}
	if st.Hits+st.Misses != st.ActiveRequests.Allocated {
		a.fail("%d hits and %d misses of %d buffers", st.Hits, st.Misses, st.ActiveRequests.Allocated)
	}
	if w.cfg.MaxBytes > 0 && st.HeldBytes.Peak > w.cfg.MaxBytes {
		a.fail("%d bytes at a time, of which the limit allows %d", st.HeldBytes.Peak, w.cfg.MaxBytes)
	}
}

// afterClose checks that the pool holds nothing and returns ErrClosed.
func (w *fixture) afterClose(actors []*randomCaller) {
	a := actors[0]
	if st := w.pool.Stats(); st.AllocatedBytes.Current+st.ActiveBytes.Current+st.ActiveRequests.Current+st.CachedBytes.Current+
		st.RequestedBytes.Current+st.Registered.Current+st.Pending+st.Allocations.Current != 0 {
		a.fail("after Close the statistics are %+v", st)
	}
	for i := range w.counts.begun {
		if begun, ended := w.counts.begun[i].Load(), w.counts.ended[i].Load(); begun != ended {
			a.fail("%d operations %v begun, and %d ended", begun, transfer.Op(i), ended)
		}
	}
	_, get := w.pool.Get(background, 1)
	block := a.vars[0].block // empty if the device failed before its allocation
	_, fill := w.pool.Fill(background, a.streams[0], block, 0, min(1, block.Size()), 1)
	errs := []error{get, fill, w.pool.EmptyCache(background)}
	for _, a := range actors {
		for _, b := range a.buffers {
			errs = append(errs, b.buffer.Check(), b.buffer.Release())
		}
		for _, h := range a.batches {
			if err := h.batch.Close(); err != nil || len(h.arenas) > 0 {
				errs = append(errs, err)
			}
		}
	}
	for i, err := range errs {
		if !errors.Is(err, transfer.ErrClosed) {
			a.fail("call %d after Close returned %v", i, err)
		}
	}
}

// nothingLeft checks that the simulated device has nothing left.
func (w *fixture) nothingLeft(a *randomCaller) {
	d := w.sim
	d.mu.Lock()
	held, registered, spans, events := d.held-d.refused, d.registered, len(d.spans)-d.refusals, d.events
	stuck := d.stuck != nil
	d.mu.Unlock()
	if held != 0 || registered != 0 || spans != 0 && !stuck {
		a.fail("%d pinned and %d registered bytes are left, and %d allocations", held, registered, spans)
	}
	if !race.Enabled && events != 0 {
		a.fail("%d events are left", events)
	}
}
