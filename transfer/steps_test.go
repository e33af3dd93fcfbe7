package transfer_test

import (
	"context"
	"errors"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// variable is a block, its expected contents, and the stream that used it last.
type variable struct {
	block memcache.Block
	want  []byte
	last  device.Stream
}

func (a *randomCaller) do(s step) {
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

func (a *randomCaller) stream(n uint32) device.Stream { return a.streams[n%uint32(len(a.streams))] }
func (a *randomCaller) variable(n uint32) *variable   { return a.vars[n%uint32(len(a.vars))] }

func (a *randomCaller) buffer(n uint32) *heldBuffer {
	if len(a.buffers) == 0 {
		return nil
	}
	return a.buffers[n%uint32(len(a.buffers))]
}

// part returns a part of n bytes.
func part(x uint32, n int) (at, bytes int) {
	at = int(x>>16) % n
	return at, 1 + int(x&0xffff)%(n-at)
}

func (a *randomCaller) pattern(seed uint32, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(seed>>8) + byte(i)*byte(seed|1)
	}
	return b
}

// order makes s wait for the variable's last stream.
func (a *randomCaller) order(v *variable, s device.Stream) {
	if v.last != s && !v.last.Closed() {
		a.orderStreams(v.last, s)
	}
	v.last = s
}

func (a *randomCaller) orderStreams(before, after device.Stream) {
	err := before.Record(a.event)
	if err == nil {
		err = after.Wait(a.event)
	}
	a.require(err)
}

func (a *randomCaller) renew(v *variable, s device.Stream) {
	var err error
	v.block, err = a.w.cache.Alloc(background, blockBytes, s)
	a.require(err)
	v.want, v.last = make([]byte, blockBytes), s
	a.require(s.Memset(v.block.Ptr(), 0, blockBytes))
}

// mistake makes invalid calls, which change nothing.
func (a *randomCaller) mistake(s step) {
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

// fault makes a later call fail.
func (a *randomCaller) fault(s step) {
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

// cancelled runs a step whose context ends before it or while it waits.
func (a *randomCaller) cancelled(s step) {
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

// closeStream closes a stream with queued work, and continues with another.
func (a *randomCaller) closeStream(s step) {
	i := s.a % uint32(len(a.streams))
	old := a.streams[i]
	a.require(old.Close())
	a.streams[i] = a.newStream(s.b%2 == 0)
}
