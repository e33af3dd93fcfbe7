package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// variable is a block, what must be in it, and the stream that used it last.
type variable struct {
	block memcache.Block
	want  []byte
	last  device.Stream
}

// heldBuffer is a buffer, and what must be in a part of it when its copies are done.
type heldBuffer struct {
	buffer  transfer.Buffer
	memory  []byte
	mine    bool  // memory is registered
	at      int64 // of the part
	want    []byte
	uses    []*simRecord // that end its copies
	tainted bool         // a copy was queued, and nothing says when it is done
	copied  bool         // since somebody saw that all its copies are done
}

var bufferSizes = [...]int64{1, 60, 64, 65, 100, 500, 512, 513, 1000, 3000, 5000}

const window = 96

func (a *actor) do(s step) {
	switch s.op {
	case "get":
		a.get(s)
	case "release":
		if b := a.buffer(s.a); b != nil {
			a.release(b)
		}
	case "touch":
		a.touch(s)
	case "h2d", "d2h":
		a.copy(s)
	case "h2d-rows", "d2h-rows":
		a.copyRows(s)
	case "d2d", "d2d-rows":
		a.deviceCopy(s)
	case "fill":
		a.fill(s)
	case "add", "mix":
		a.launch(s)
	case "upload":
		a.upload(s)
	case "download":
		a.download(s)
	case "run":
		if st := a.stream(s.a); a.w.sim != nil {
			a.w.sim.run(raw(st), int(s.b%8))
		}
	case "wait":
		a.wait(s)
	case "batch":
		a.batch(s)
	case "collect":
		a.collectBatch(s)
	case "register":
		a.register(s)
	case "empty":
		a.emptyCache(s)
	case "peaks":
		if a.books != nil {
			a.pool.ResetPeakStats()
			a.books.resetPeaks()
		}
	case "shard":
		a.pool.UseShard(int(s.a % 64))
	case "stale":
		a.stale(s)
	case "mistake":
		a.mistake(s)
	case "fault":
		a.fault(s)
	case "cancel":
		a.cancelled(s)
	case "renew":
		v := a.variable(s.a)
		a.require(v.block.Free())
		a.renew(v, a.stream(s.b))
	case "stream":
		a.closeStream(s)
	case "peer":
		a.copyPeer(s)
	case "loader":
		a.loader(s)
	default:
		a.fail("there is no step %q", s.op)
	}
}

func raw(s device.Stream) *simStream {
	if b, ok := s.(simBatchStream); ok {
		return b.simStream
	}
	return s.(*simStream)
}

func (a *actor) stream(n uint32) device.Stream { return a.streams[n%uint32(len(a.streams))] }
func (a *actor) variable(n uint32) *variable   { return a.vars[n%uint32(len(a.vars))] }

func (a *actor) buffer(n uint32) *heldBuffer {
	if len(a.buffers) == 0 {
		return nil
	}
	return a.buffers[n%uint32(len(a.buffers))]
}

// part is a part of n bytes.
func part(x uint32, n int) (at, bytes int) {
	at = int(x>>16) % n
	return at, 1 + int(x&0xffff)%(n-at)
}

func (a *actor) pattern(seed uint32, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(seed>>8) + byte(i)*byte(seed|1)
	}
	return b
}

// order lets s go on where the variable's last stream is.
func (a *actor) order(v *variable, s device.Stream) {
	if v.last != s && !v.last.Closed() {
		a.orderStreams(v.last, s)
	}
	v.last = s
}

func (a *actor) orderStreams(before, after device.Stream) {
	err := before.Record(a.event)
	if err == nil {
		err = after.Wait(a.event)
	}
	a.require(err)
}

func (a *actor) renew(v *variable, s device.Stream) {
	var err error
	v.block, err = a.w.cache.Alloc(background, blockBytes, s)
	a.require(err)
	v.want, v.last = make([]byte, blockBytes), s
	a.require(s.Memset(v.block.Ptr(), 0, blockBytes))
}

// used notes that a copy on s, which ended with err, uses the buffer. It reports whether the copy is queued.
func (a *actor) used(b *heldBuffer, s device.Stream, err error) bool {
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

func (a *actor) get(s step) {
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
func (a *actor) got(n int64) {
	a.gets++
	a.getBytes += n
}

// agree compares the error of a Get with the books'.
func (a *actor) agree(err, want error) {
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

func (a *actor) release(b *heldBuffer) {
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

// mayWait are the copies that the buffer's memory waits for until somebody has looked at them.
func (b *heldBuffer) mayWait() []*simRecord {
	if !b.copied {
		return nil
	}
	return b.uses
}

// touch looks at a buffer, and writes it if no copy is in flight.
func (a *actor) touch(s step) {
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

// look compares a buffer's state and contents.
func (a *actor) look(b *heldBuffer) {
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

// count counts a copy that was queued.
func (a *actor) count(op transfer.Op, copies, bytes int64) {
	for _, st := range []*transfer.Stats{&a.sum, a.statistics()} {
		switch op {
		case transfer.OpH2D:
			st.H2DCopies, st.H2DBytes = st.H2DCopies+copies, st.H2DBytes+bytes
		case transfer.OpD2H:
			st.D2HCopies, st.D2HBytes = st.D2HCopies+copies, st.D2HBytes+bytes
		case transfer.OpD2D:
			st.D2DCopies, st.D2DBytes = st.D2DCopies+copies, st.D2DBytes+bytes
		}
	}
}

func (a *actor) statistics() *transfer.Stats {
	if a.books != nil {
		return &a.books.st
	}
	return new(transfer.Stats)
}

// refused checks the error of a copy of a buffer that is in flight for ever.
func (a *actor) refused(b *heldBuffer, err error) bool {
	if !b.tainted || a.w.dead() {
		return false
	}
	if err == nil || a.fired == [simFaults]bool{} && !errors.Is(err, transfer.ErrInFlight) {
		a.fail("a copy of a buffer in flight for ever returned %v", err)
	}
	return true
}

func (a *actor) copy(s step) {
	b, v, st := a.buffer(s.a), a.variable(s.b), a.stream(s.c)
	if b == nil {
		return
	}
	at, n := part(s.d, len(b.want))
	to := int(s.a>>8) % (blockBytes - n + 1)
	a.order(v, st)
	var c *transfer.Copy
	var err error
	a.begin()
	op := transfer.OpH2D
	if s.op == "h2d" {
		c, err = a.pool.H2D(a.ctx, st, v.block, int64(to), b.buffer, b.at+int64(at), int64(n))
	} else {
		op = transfer.OpD2H
		c, err = a.pool.D2H(a.ctx, st, b.buffer, b.at+int64(at), v.block, int64(to), int64(n))
	}
	a.end()
	if a.refused(b, err) {
		return
	}
	if a.ok(err) {
		a.count(op, 1, int64(n))
		a.handle(c, st, int64(n))
	}
	if !a.used(b, st, err) {
		return
	}
	if s.op == "h2d" {
		copy(v.want[to:], b.want[at:at+n])
	} else {
		copy(b.want[at:], v.want[to:to+n])
	}
}

// handle checks what a copy on s says.
func (a *actor) handle(c *transfer.Copy, s device.Stream, n int64) {
	if c.Bytes() != n {
		a.fail("a copy of %d bytes says %d", n, c.Bytes())
	}
	if end := lastOf(s); end != nil && a.books != nil && !a.w.dead() && c.Done() == inFlight([]*simRecord{end}) {
		a.fail("Done is %t", c.Done())
	}
}

func (a *actor) copyRows(s step) {
	b, v, st := a.buffer(s.a), a.variable(s.b), a.stream(s.c)
	if b == nil {
		return
	}
	rows, inBuffer, inBlock := someRows(s.d, len(b.want), blockBytes)
	var err error
	a.order(v, st)
	a.begin()
	op := transfer.OpH2D
	if s.op == "h2d-rows" {
		rows.SrcPitch, rows.DstPitch = inBuffer, inBlock
		_, err = a.pool.H2DStrided(a.ctx, st, v.block, 3, b.buffer, b.at, rows)
	} else {
		op = transfer.OpD2H
		rows.DstPitch, rows.SrcPitch = inBuffer, inBlock
		_, err = a.pool.D2HStrided(a.ctx, st, b.buffer, b.at, v.block, 3, rows)
	}
	a.end()
	if a.refused(b, err) {
		return
	}
	if a.ok(err) {
		a.count(op, 1, rows.Width*rows.Height)
	}
	if !a.used(b, st, err) {
		return
	}
	if s.op == "h2d-rows" {
		move(v.want, 3, b.want, 0, rows)
	} else {
		move(b.want, 0, v.want, 3, rows)
	}
}

// someRows are rows that just fit n bytes and, at 3, m bytes.
func someRows(x uint32, n, m int) (rows transfer.Rows, inN, inM int64) {
	rows.Width = 1 + int64(x%uint32(min(n, 12)))
	rows.Height = 1 + int64(x>>8)%(int64(n)/rows.Width)
	inN, inM = rows.Width, rows.Width
	if rows.Height > 1 {
		inN = (int64(n) - rows.Width) / (rows.Height - 1)
		inM = (int64(m) - 3 - rows.Width) / (rows.Height - 1)
		if x>>20%2 == 0 {
			inM = rows.Width + int64(x>>24)%(inM-rows.Width+1)
		}
	}
	return rows, inN, inM
}

func (a *actor) deviceCopy(s step) {
	from, to, st := a.variable(s.a), a.variable(s.b), a.stream(s.c)
	if from == to {
		return
	}
	at, n := part(s.d, blockBytes)
	n = min(n, 100)
	target := int(s.a>>8) % (blockBytes - n + 1)
	rows := transfer.Rows{Width: int64(n%9 + 1), Height: int64(1 + s.d%12), SrcPitch: int64(n%9 + 1 + int(s.d>>8)%20), DstPitch: int64(n%9 + 1 + int(s.d>>16)%20)}
	a.order(from, st)
	a.order(to, st)
	var err error
	a.begin()
	if s.op == "d2d" {
		_, err = a.pool.D2D(a.ctx, st, to.block, int64(target), from.block, int64(at), int64(n))
	} else {
		n = int(rows.Width * rows.Height)
		_, err = a.pool.D2DStrided(a.ctx, st, to.block, 5, from.block, 9, rows)
	}
	a.end()
	if a.ok(err) {
		a.count(transfer.OpD2D, 1, int64(n))
	} else if a.parts == 0 {
		return
	}
	if s.op == "d2d" {
		copy(to.want[target:], from.want[at:at+n])
	} else {
		move(to.want, 5, from.want, 9, rows)
	}
}

func (a *actor) fill(s step) {
	v, st := a.variable(s.a), a.stream(s.b)
	at, n := part(s.c, blockBytes)
	a.order(v, st)
	a.begin()
	_, err := a.pool.Fill(a.ctx, st, v.block, int64(at), int64(n), byte(s.d))
	a.end()
	if a.ok(err) || a.parts > 0 {
		copy(v.want[at:], bytes.Repeat([]byte{byte(s.d)}, n))
	}
}

// launch adds 3 to a part of a buffer where it is, or adds that part to a block.
func (a *actor) launch(s step) {
	b, v, st := a.buffer(s.a), a.variable(s.b), a.stream(s.c)
	if b == nil {
		return
	}
	at, n := part(s.d, len(b.want))
	a.begin()
	r, err := b.buffer.Range(b.at+int64(at), int64(n))
	a.end()
	a.require(err)
	visible, ok := a.w.dev.(device.HostVisible)
	if !ok {
		return
	}
	mem := b.memory[b.at+int64(at):][:n]
	l := &device.Launch{Name: "add", Reads: []device.Range{r}, Writes: []device.Range{r}, Func: func() {
		for i := range mem {
			mem[i] += 3
		}
	}}
	use := transfer.BufferUse{Buffer: b.buffer, Writes: true}
	if s.op == "mix" {
		a.order(v, st)
		a.require(v.block.RecordStream(st))
		to, err := visible.Bytes(v.block.Ptr(), int64(n))
		a.require(err)
		l.Writes = []device.Range{v.block.Range(0, int64(n))}
		l.Func = func() {
			for i := range to {
				to[i] += mem[i]
			}
		}
		use.Writes = false
	}
	a.begin()
	_, err = a.pool.Launch(a.ctx, st, l, use)
	a.end()
	if a.refused(b, err) {
		return
	}
	a.ok(err)
	if !a.used(b, st, err) {
		return
	}
	for i := range n {
		if s.op == "mix" {
			v.want[i] += b.want[at+i]
		} else {
			b.want[at+i] += 3
		}
	}
}

func (a *actor) upload(s step) {
	v, st := a.variable(s.a), a.stream(s.b)
	at, n := part(s.c, blockBytes)
	data := a.pattern(s.d, n)
	a.order(v, st)
	a.begin()
	_, err := a.pool.Upload(a.ctx, st, v.block, int64(at), data)
	a.end()
	if a.staged(int64(n), st, err) && a.ok(err) {
		a.count(transfer.OpH2D, 1, int64(n))
	}
	if err == nil || a.parts > 0 {
		copy(v.want[at:], data)
	}
	clear(data)
}

// staged notes that a call took a buffer of n bytes, and released it with a copy on s or without one. It reports whether it
// got the buffer.
func (a *actor) staged(n int64, s device.Stream, err error) bool {
	if err == nil {
		a.got(n)
	}
	if a.books == nil {
		return err == nil
	}
	if want := a.books.get(n, err); want != nil {
		a.agree(err, want)
		return a.ok(err)
	}
	b := &heldBuffer{}
	a.used(b, s, err)
	a.books.release(n, b.uses, b.tainted)
	return true
}

func (a *actor) download(s step) {
	v, st := a.variable(s.a), a.stream(s.b)
	at, n := part(s.c, blockBytes)
	got := a.pattern(s.d, n)
	before := slices.Clone(got)
	a.order(v, st)
	a.begin()
	err := a.pool.Download(a.ctx, st, got, v.block, int64(at))
	a.end()
	if a.staged(int64(n), st, err) && (a.ok(err) || a.parts > 0 && !a.fired[failRecord]) {
		a.count(transfer.OpD2H, 1, int64(n))
	}
	want := v.want[at : at+n]
	if err != nil {
		want = before
	}
	if !bytes.Equal(got, want) {
		a.fail("Download with the error %v: %s", err, difference(got, want))
	}
}

func (a *actor) wait(s step) {
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

func (a *actor) register(s step) {
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

// unregistered follows the Release of a registered slice.
func (a *actor) unregistered(b *heldBuffer, err error) {
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

func (a *actor) emptyCache(s step) {
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
func (a *actor) stale(s step) {
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

// mistake makes calls that are wrong, and change nothing.
func (a *actor) mistake(s step) {
	v, st, b := a.variable(s.a), a.stream(s.b), a.buffer(s.c)
	if b == nil || a.w.dead() {
		return
	}
	n := int64(b.buffer.Len())
	var errs [8]error
	_, errs[0] = a.pool.H2D(background, st, v.block, blockBytes, b.buffer, 0, 1)
	_, errs[1] = a.pool.D2H(background, st, b.buffer, n, v.block, 0, 1)
	_, errs[2] = a.pool.D2D(background, st, v.block, 0, v.block, -1, 1)
	_, errs[3] = a.pool.H2DStrided(background, st, v.block, 0, b.buffer, 0, transfer.Rows{Width: 1, Height: n + 1, SrcPitch: 1, DstPitch: 1})
	_, errs[4] = a.pool.Get(background, -1)
	_, errs[5] = a.pool.Fill(background, st, v.block, 1, blockBytes, 0)
	_, errs[6] = a.pool.Upload(background, st, v.block, 1, v.want)
	errs[7] = a.pool.Download(background, st, make([]byte, blockBytes), v.block, 1)
	a.w.calls.Add(8)
	for i, err := range errs {
		if !errors.Is(err, transfer.ErrRange) {
			a.fail("mistake %d returned %v", i, err)
		}
	}
}

// fault lets a call that comes soon fail.
func (a *actor) fault(s step) {
	if !a.w.faults {
		return
	}
	if a.w.sim == nil {
		a.faultHost(s)
		return
	}
	kinds := []simFault{failPinned, shortPinned, nilPinned, failFree, failRegister, failUnregister, failWait, refuseCopy, refuseCopy}
	if a.w.cfg.Observer == nil { // or it may be the observer's own event that fails
		kinds = append(kinds, failEvent, failRecord)
	}
	if s.c%16 == 0 {
		kinds = append(kinds, breakCopy)
	}
	if !a.w.alone {
		kinds = []simFault{failPinned, shortPinned, nilPinned}
	}
	a.w.sim.mu.Lock()
	a.w.sim.left[kinds[s.a%uint32(len(kinds))]] = 1 + int(s.b%4)
	a.w.sim.mu.Unlock()
}

// cancelled does a step whose context ends before it, or while it waits.
func (a *actor) cancelled(s step) {
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	next := step{[...]string{"download", "wait", "empty"}[s.a%3], s.b, s.c, s.d, s.a}
	a.ctx, a.interrupted = ctx, true
	if sim := a.w.sim; sim != nil && a.w.alone && s.a&8 == 0 {
		sim.mu.Lock()
		sim.cancel = cancel
		sim.mu.Unlock()
		a.do(next)
		sim.mu.Lock()
		sim.cancel = nil
		sim.mu.Unlock()
		return
	}
	cancel()
	_, get := a.pool.Get(ctx, 1)
	_, h2d := a.pool.H2D(ctx, a.stream(s.b), a.variable(s.c).block, 0, transfer.Buffer{}, 0, 0)
	for _, err := range []error{get, h2d, a.pool.EmptyCache(ctx)} {
		if !errors.Is(err, context.Canceled) {
			a.fail("a call whose context has ended returned %v", err)
		}
	}
}

// closeStream closes a stream under what is queued on it, and goes on with another.
func (a *actor) closeStream(s step) {
	i := s.a % uint32(len(a.streams))
	old := a.streams[i]
	a.require(old.Close())
	a.streams[i] = a.newStream(s.b%2 == 0)
}
