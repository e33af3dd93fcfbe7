package transfer_test

import (
	"bytes"
	"errors"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/transfer"
)

// heldBuffer is a buffer and the expected contents of a part of it after its copies.
type heldBuffer struct {
	buffer  transfer.Buffer
	memory  []byte
	mine    bool  // memory is registered
	at      int64 // of the part
	want    []byte
	uses    []*simRecord // that end its copies
	tainted bool         // a copy was queued, and its end is unknown
	copied  bool         // since its copies were last found done
}

var bufferSizes = [...]int64{1, 60, 64, 65, 100, 500, 512, 513, 1000, 3000, 5000}

const window = 96

// used records that a copy on s, which returned err, uses the buffer. It reports whether the copy
// is queued.
func (a *randomCaller) used(b *heldBuffer, s device.Stream, err error) bool {
	if err != nil && a.parts == 0 {
		return false
	}
	b.copied = true
	if err != nil && a.fired[failRecord] {
		b.tainted = true
		return true
	}
	if end := lastOf(s); end != nil {
		b.uses = slices.DeleteFunc(b.uses, func(u *simRecord) bool { return u.stream == end.stream })
		b.uses = append(b.uses, end)
	}
	return true
}

func (a *randomCaller) get(s step) {
	if len(a.buffers) > 24 {
		a.release(a.buffer(s.b))
		a.checked()
	}
	n := bufferSizes[s.a%uint32(len(bufferSizes))]
	a.begin()
	buf, err := a.pool.Get(a.ctx, n)
	a.end()
	if a.books != nil {
		a.agree(err, a.books.get(n, err))
	}
	if !a.ok(err) {
		return
	}
	a.got(n)
	b := &heldBuffer{buffer: buf}
	mem := buf.Bytes()
	if int64(len(mem)) != n {
		a.fail("a buffer of %d bytes has %d", n, len(mem))
	}
	if a.w.sim != nil && a.w.sim.inUse(mem) {
		a.fail("a buffer of %d bytes was handed out under a copy", n)
	}
	b.memory = mem
	b.at = int64(s.c) % max(1, n-window+1)
	mem = mem[b.at:min(n, b.at+window)]
	b.want = a.pattern(s.d, len(mem))
	copy(mem, b.want)
	a.buffers = append(a.buffers, b)
}

// got counts a Get.
func (a *randomCaller) got(n int64) {
	a.gets++
	a.getBytes += n
}

// agree compares the error of a Get with the model's.
func (a *randomCaller) agree(err, want error) {
	if (err == nil) != (want == nil) {
		a.fail("it returned %v, and must return %v", err, want)
	}
	var limit *transfer.LimitError
	if errors.Is(want, transfer.ErrLimit) {
		if !errors.As(err, &limit) || limit.Limit != a.w.cfg.MaxBytes || limit.Requested <= limit.Limit-limit.Allocated ||
			limit.Allocated != a.books.held && !a.books.loose {
			a.fail("it returned %v with %d bytes held, and must return a LimitError", err, a.books.held)
		}
	}
}

func (a *randomCaller) release(b *heldBuffer) {
	a.begin()
	err := b.buffer.Release()
	a.end()
	a.buffers = slices.DeleteFunc(a.buffers, func(x *heldBuffer) bool { return x == b })
	if b.mine {
		a.unregistered(b, err)
		return
	}
	a.require(err)
	if a.books != nil {
		a.books.release(int64(b.buffer.Len()), b.mayWait(), b.tainted)
	}
	if len(a.graves) < 16 {
		a.graves = append(a.graves, b.buffer)
	} else {
		a.graves[a.at%16] = b.buffer
	}
}

// mayWait returns the copies that the buffer's memory waits for until a poll.
func (b *heldBuffer) mayWait() []*simRecord {
	if !b.copied {
		return nil
	}
	return b.uses
}

// touch checks a buffer, and writes it if no copy is in flight.
func (a *randomCaller) touch(s step) {
	b := a.buffer(s.a)
	if b == nil {
		return
	}
	a.look(b)
	mem := b.buffer.Bytes()
	a.w.calls.Add(2)
	if mem == nil {
		return
	}
	at, n := part(s.b, len(b.want))
	data := a.pattern(s.c, n)
	switch s.d % 4 {
	case 0:
		copy(mem[b.at+int64(at):], data)
	case 1:
		_, err := b.buffer.WriteAt(data, b.at+int64(at))
		a.require(err)
	case 2:
		a.require(b.buffer.Zero(b.at+int64(at), int64(n)))
		clear(data)
	case 3:
		n = n / 4 * 4
		data = data[:n]
		words := make([]uint32, n/4)
		for i := range words {
			words[i] = uint32(data[4*i]) | uint32(data[4*i+1])<<8 | uint32(data[4*i+2])<<16 | uint32(data[4*i+3])<<24
		}
		a.require(transfer.PutWords(b.buffer, b.at+int64(at), words))
	}
	copy(b.want[at:], data)
}

// look compares a buffer's state and contents with the model.
func (a *randomCaller) look(b *heldBuffer) {
	busy := b.tainted || inFlight(b.uses)
	err := b.buffer.Check()
	if a.w.dead() {
		return
	}
	if a.books != nil && busy != errors.Is(err, transfer.ErrInFlight) {
		a.fail("Check of a buffer returned %v, in flight: %t", err, busy)
	}
	if err != nil {
		if !errors.Is(err, transfer.ErrInFlight) {
			a.require(err)
		}
		return
	}
	if inFlight(b.uses) {
		a.fail("Check of a buffer in flight returned nil")
	}
	b.copied, b.uses = false, b.uses[:0]
	got := make([]byte, len(b.want))
	if _, err := b.buffer.ReadAt(got, b.at); err != nil || !bytes.Equal(got, b.want) {
		a.fail("a buffer of %d bytes is wrong at %d: %s: %v", b.buffer.Len(), b.at, difference(got, b.want), err)
	}
}

// refused checks the error of a copy of a tainted buffer.
func (a *randomCaller) refused(b *heldBuffer, err error) bool {
	if !b.tainted || a.w.dead() {
		return false
	}
	if err == nil || a.fired == [simFaults]bool{} && !errors.Is(err, transfer.ErrInFlight) {
		a.fail("a copy of a buffer in flight for ever returned %v", err)
	}
	return true
}

func (a *randomCaller) wait(s step) {
	b := a.buffer(s.a)
	if b == nil {
		return
	}
	a.begin()
	err := b.buffer.Wait(a.ctx)
	a.end()
	if b.tainted && !a.w.dead() {
		if !errors.Is(err, transfer.ErrInFlight) && !a.interrupted {
			a.fail("Wait for a buffer in flight for ever returned %v", err)
		}
	} else if a.ok(err) && inFlight(b.uses) {
		a.fail("Wait returned before the copies were done")
	}
	a.look(b)
}

func (a *randomCaller) register(s step) {
	n := 1 + int(s.a%200)
	mine := a.pattern(s.b, n)
	a.begin()
	buf, err := a.pool.Register(background, mine)
	a.end()
	if !a.ok(err) {
		return
	}
	set(&a.statistics().Registered, int64(n))
	n = min(n, window)
	a.buffers = append(a.buffers, &heldBuffer{buffer: buf, memory: mine, mine: true, want: slices.Clone(mine[:n])})
}

// unregistered models the Release of a registered slice.
func (a *randomCaller) unregistered(b *heldBuffer, err error) {
	a.ok(err)
	set(&a.statistics().Registered, -int64(len(b.memory)))
	if a.w.dead() {
		return
	}
	if inFlight(b.uses) {
		a.fail("a slice was unregistered under a copy")
	}
	if !bytes.Equal(b.memory[:len(b.want)], b.want) {
		a.fail("a registered slice: %s", difference(b.memory[:len(b.want)], b.want))
	}
}

func (a *randomCaller) emptyCache(s step) {
	a.begin()
	err := a.pool.EmptyCache(a.ctx)
	a.end()
	if a.books != nil {
		a.books.flushed()
		if a.books.parked {
			if a.books.parked = false; err == nil {
				a.fail("nobody is told that the driver refused to free something")
			}
			return
		}
	}
	a.ok(err)
}

// stale uses the handle of a buffer that was released in every way.
func (a *randomCaller) stale(s step) {
	if len(a.graves) == 0 {
		return
	}
	b, st, v := a.graves[s.a%uint32(len(a.graves))], a.stream(s.b), a.variable(s.c)
	n := int64(min(b.Len(), blockBytes))
	a.order(v, st)
	_, h2d := a.pool.H2D(background, st, v.block, 0, b, 0, n)
	_, d2h := a.pool.D2H(background, st, b, 0, v.block, 0, n)
	_, at := b.Range(0, 1)
	_, read := b.ReadAt(make([]byte, 9), 0)
	_, write := b.WriteAt([]byte{1}, 0)
	a.w.calls.Add(9)
	for i, err := range []error{b.Check(), b.Release(), b.Wait(background), h2d, d2h, at, read, write, b.Zero(0, 1)} {
		if !errors.Is(err, transfer.ErrReleased) && !a.w.dead() {
			a.fail("call %d of a buffer that was released returned %v", i, err)
		}
	}
	if b.Bytes() != nil {
		a.fail("a buffer that was released has bytes")
	}
}
