package transfer_test

import (
	"bytes"
	"errors"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/transfer"
)

// heldBatch is a submitted batch and its expected outputs.
type heldBatch struct {
	batch   *transfer.Batch
	copy    *transfer.Copy
	arenas  []heldArena
	want    [][]byte
	copies  transfer.Stats
	end     *simRecord
	tainted bool // the end of its copies is unknown
}

// heldArena models how much of a batch's buffer is used. Outputs and uploads have different ones.
type heldArena struct {
	bytes, used int64
	writes      bool
}

// place takes n bytes of an arena, and models a Get if none has enough.
func (h *heldBatch) place(a *randomCaller, n int64, writes bool, got error) error {
	next := max(64<<10, n)
	for i := range h.arenas {
		switch x := &h.arenas[i]; {
		case x.writes != writes:
		case n <= x.bytes-x.used:
			x.used = min(x.bytes, (x.used+n+63)/64*64)
			return nil
		default:
			next = max(next, min(2*x.bytes, 4<<20))
		}
	}
	if a.books != nil {
		if err := a.books.get(next, got); err != nil {
			return err
		}
	}
	a.got(next)
	h.arenas = append(h.arenas, heldArena{next, (n + 63) / 64 * 64, writes})
	return nil
}

// batch builds a batch of some steps, and submits it.
func (a *randomCaller) batch(s step) {
	if len(a.batches) > 3 {
		a.closeBatch(a.batches[0])
		a.checked()
	}
	st := a.stream(s.a)
	h := &heldBatch{batch: a.pool.NewBatch()}
	var effects []func() // of each part
	next := s.b
	for range 1 + s.c%6 {
		next = next*1664525 + 1013904223
		x := next
		v := a.variable(x >> 4)
		at, n := part(x<<3, blockBytes)
		n = min(n, 120)
		a.order(v, st)
		var err error
		a.begin()
		switch x >> 28 % 5 {
		case 0, 1: // an upload, with zeros behind
			data := a.pattern(x, n-n/3)
			err = h.batch.UploadPadded(background, v.block, int64(at), data, int64(n))
			a.end()
			if a.placed(h, int64(n), false, err) {
				effects = append(effects, func() { clear(v.want[at+copy(v.want[at:at+n], data) : at+n]) })
			}
		case 2:
			err = transfer.UploadWords(background, h.batch, v.block, int64(at), []uint16{uint16(x)}, 0)
			a.end()
			if at+2 > blockBytes {
				if !errors.Is(err, transfer.ErrRange) {
					a.fail("words outside of a block: %v", err)
				}
			} else if a.placed(h, 2, false, err) {
				effects = append(effects, func() { v.want[at], v.want[at+1] = byte(x), byte(x>>8) })
			}
		case 3:
			var index int
			index, err = h.batch.OutputPadded(background, v.block, int64(at), int64(n/2), int64(n))
			a.end()
			if a.placed(h, int64(n), true, err) {
				if index != len(h.want) {
					a.fail("output %d has index %d", len(h.want), index)
				}
				h.want = append(h.want, nil)
				effects = append(effects, func() { h.want[index] = slices.Clone(v.want[at : at+n/2]) })
			}
		case 4:
			l := &device.Launch{Name: "add", Reads: []device.Range{v.block.Range(int64(at), int64(n))}}
			visible, ok := a.w.dev.(device.HostVisible)
			if !ok {
				a.end()
				continue
			}
			mem, err := visible.Bytes(v.block.Ptr()+device.Ptr(at), int64(n))
			a.require(err)
			l.Writes = l.Reads
			l.Func = func() {
				for i := range mem {
					mem[i] += 7
				}
			}
			a.require(h.batch.Launch(l, v.block))
			a.end()
			effects = append(effects, func() {
				for i := range n {
					v.want[at+i] += 7
				}
			})
		}
	}
	a.submit(h, st, effects)
	if s.d%3 == 0 {
		a.closeBatch(h)
	}
}

// placed records the memory of a batch's entry, and reports whether the entry is in the batch.
func (a *randomCaller) placed(h *heldBatch, n int64, writes bool, err error) bool {
	if a.books != nil {
		a.agree(err, h.place(a, n, writes, err))
	} else if err == nil {
		_ = h.place(a, n, writes, err)
	}
	if !a.ok(err) {
		return false
	}
	if writes {
		h.copies.D2HCopies, h.copies.D2HBytes = h.copies.D2HCopies+1, h.copies.D2HBytes+n
	} else {
		h.copies.H2DCopies, h.copies.H2DBytes = h.copies.H2DCopies+1, h.copies.H2DBytes+n
	}
	return true
}

func (a *randomCaller) submit(h *heldBatch, st device.Stream, effects []func()) {
	a.begin()
	c, err := h.batch.Submit(a.ctx, st)
	a.end()
	h.copy = c
	a.batches = append(a.batches, h)
	done := len(effects)
	if err != nil {
		done = a.parts
	}
	if !a.ok(err) && a.w.sim == nil {
		return // the device is dead
	}
	for _, f := range effects[:min(done, len(effects))] {
		f()
	}
	b := &heldBuffer{}
	if len(effects) > 0 && a.used(b, st, err) {
		h.end = lastOf(st)
	}
	if b.tainted {
		h.end, h.tainted = nil, true
	}
	if err != nil {
		return
	}
	a.count(transfer.OpH2D, h.copies.H2DCopies, h.copies.H2DBytes)
	a.count(transfer.OpD2H, h.copies.D2HCopies, h.copies.D2HBytes)
	if len(effects) == 0 {
		return
	}
	a.handle(c, st, h.copies.H2DBytes+h.copies.D2HBytes)
}

// collectBatch checks a batch's outputs.
func (a *randomCaller) collectBatch(s step) {
	if len(a.batches) == 0 {
		return
	}
	h := a.batches[s.a%uint32(len(a.batches))]
	if h.copy == nil {
		a.closeBatch(h)
		return
	}
	var err error
	got := make([][]byte, len(h.want))
	for i := range got {
		got[i] = a.pattern(s.c, len(h.want[i])*int(s.d%2))
	}
	before := make([][]byte, len(got))
	for i := range got {
		before[i] = slices.Clone(got[i])
	}
	want := h.want
	a.begin()
	switch {
	case s.b%3 == 0 || len(got) == 0:
		err = h.batch.Collect(a.ctx, &got)
	case s.b%3 == 1 && s.d%2 == 1: // each is as long as its output
		err = h.batch.CollectInto(a.ctx, got)
	default:
		i := int(s.c % uint32(len(got)))
		err = h.batch.CollectOne(a.ctx, i, &got[i])
		want = slices.Clone(before)
		want[i] = h.want[i]
	}
	a.end()
	if !a.ok(err) {
		want = before
	}
	if !slices.EqualFunc(got, want, bytes.Equal) {
		a.fail("a batch gave %x, and must give %x: %v", got, want, err)
	}
	if s.b%5 == 0 {
		a.closeBatch(h)
	}
}

func (a *randomCaller) closeBatch(h *heldBatch) {
	a.batches = slices.DeleteFunc(a.batches, func(x *heldBatch) bool { return x == h })
	a.begin()
	err := h.batch.Close()
	a.end()
	a.require(err)
	if a.books == nil {
		return
	}
	for _, x := range h.arenas {
		var uses []*simRecord
		if h.end != nil {
			uses = []*simRecord{h.end}
		}
		a.books.release(x.bytes, uses, h.tainted)
	}
}
