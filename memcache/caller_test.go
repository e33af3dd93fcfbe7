package memcache

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/memcache/internal/model"
)

// caller is one goroutine that uses a cache on a null device as a program says, and requires of every call what any
// caller may rely on. A program is a list of words; what a word does depends on the words before it, never on where the
// cache puts blocks, so that one program can run under many options.
type caller struct {
	o       setting
	dev     *null.Device
	cache   *Cache
	streams [callerStreams]*heldStream
	made    uint64 // streams
	slots   [callerSlots]slot
	pools   []*Pool
	scopes  []*Scope
	ctx     context.Context   // of the innermost scope
	in      []context.Context // ctx, and ctx in each pool
	live    int
	bytes   int64 // of the live blocks, rounded
	asked   int64 // of the live blocks, as requested

	calls    int64
	every    int64  // calls between checks of the structure
	digest   uint64 // what no option may change
	ooms     int64
	failures int // allocations and mappings of the driver still to fail
	asks     int // reclaimers' frees still to do
	remove   func()
	twin     *twin // compared at every call, if there is one
}

const (
	callerStreams = 4
	callerSlots   = 96
)

// slot is what one variable of the program holds.
type slot struct {
	b     Block
	asked int64
	stale Block
	m     *model.Block // the twin's
}

// heldStream is a stream that can be held up.
type heldStream struct {
	*null.Stream
	release func() // nil: it is idle
}

func (s *heldStream) finish() {
	if s.release != nil {
		s.release()
		s.release = nil
	}
}

// callerSizes are the sizes of requests: the borders of PyTorch's rules, then from 1 byte to 32 MiB.
var callerSizes = func() (sizes [256]int64) {
	borders := []int64{1, 512, 513, 12 << 20, smallLimit - 1, smallLimit, smallLimit + 1, minLarge - 1, minLarge, minLarge + 1,
		smallSegment, largeSegment - smallLimit, largeSegment, largeSegment + 1, 21 << 20, 12<<20 - 1<<19}
	for i := range sizes {
		sizes[i] = int64(math.Exp2(float64(i) / 255 * 25))
	}
	copy(sizes[:], borders)
	return sizes
}()

func newCaller(o setting) (*caller, error) {
	dev, err := null.New(null.Config{Capacity: o.capacity})
	if err != nil {
		return nil, err
	}
	p := &caller{o: o, dev: dev, ctx: context.Background(), every: 1000}
	dev.SetScript(null.Script{Before: p.before})
	if p.cache, err = New(dev, o.config); err != nil {
		return nil, err
	}
	for i := range p.streams {
		if err := p.newStream(i); err != nil {
			return nil, err
		}
	}
	p.contexts()
	return p, nil
}

func (p *caller) newStream(i int) error {
	p.made++
	// IDs that don't ascend: the order of streams is not that of their making.
	s, err := p.dev.NewStreamWithID(p.made * 0x9E3779B97F4A7C15 >> 16)
	if err != nil {
		return err
	}
	p.streams[i] = &heldStream{Stream: s}
	if p.twin != nil {
		p.twin.model.Open(s.ID())
	}
	return nil
}

// contexts makes the contexts of the pools anew.
func (p *caller) contexts() {
	p.in = append(p.in[:0], p.ctx)
	for _, pool := range p.pools {
		p.in = append(p.in, pool.Context(p.ctx))
	}
}

// before lets driver calls fail, and held streams go on that are waited for.
func (p *caller) before(c *null.Call) {
	switch c.Op {
	case null.OpAlloc, null.OpMap:
		if p.failures > 0 {
			p.failures--
			c.Err = &device.Error{Op: c.Op.String(), Device: "null", Bytes: c.Bytes, Code: device.CodeOutOfMemory, Err: device.ErrOutOfMemory}
			return
		}
	case null.OpSynchronize:
		for _, s := range p.streams {
			if s.ID() == c.Stream {
				s.finish()
			}
		}
	}
	if p.twin != nil {
		p.twin.choose(c)
	}
}

// run makes the calls of a program, and ends it.
func (p *caller) run(words []uint32) (err error) {
	for i, w := range words {
		if err := p.step(w); err != nil {
			return fmt.Errorf("call %d, %s: %w", i, describe(w), err)
		}
	}
	if err := p.end(len(words)%2 == 1); err != nil {
		return fmt.Errorf("at the end: %w", err)
	}
	return nil
}

// word is a call and its arguments.
func word(op, at, size, x byte) uint32 {
	return uint32(op) | uint32(at)<<8 | uint32(size)<<16 | uint32(x)<<24
}

// step makes one call.
func (p *caller) step(w uint32) error {
	op, at, size, x := byte(w), int(byte(w>>8)), byte(w>>16), byte(w>>24)
	p.calls++
	var err error
	switch {
	case op < 205:
		if v := &p.slots[at%callerSlots]; v.b.IsZero() {
			err = p.alloc(v, callerSizes[size]+int64(op)*int64(min(size/16, 1))<<(size/32), int(x%callerStreams), p.pool(x))
		} else {
			err = p.free(v)
		}
	case op < 225:
		err = p.record(&p.slots[at%callerSlots], int(x%callerStreams))
	case op < 232:
		err = p.hold(int(x % callerStreams))
	case op < 239:
		p.finish(int(x % callerStreams))
	case op < 242:
		err = p.freeAgain(&p.slots[at%callerSlots])
	default:
		if at%16 == 0 || at%4 == 0 && p.twin != nil {
			err = p.seldom(op, size, x)
		}
	}
	if err == nil && p.calls%p.every == 0 {
		err = p.check()
	}
	return err
}

// seldom makes the calls that programs make less often.
func (p *caller) seldom(op, size, x byte) error {
	switch op {
	case 242, 243:
		return p.changePools(size, x)
	case 244:
		return p.refused(x)
	case 245, 246:
		return p.changeScopes(size)
	case 247:
		return p.empty()
	case 248, 249:
		p.limit(size)
	case 250, 251:
		if p.o.tight {
			p.failures = int(x % 4)
			if p.twin != nil {
				p.twin.driver.failures = p.failures
			}
		}
	case 252:
		return p.replaceStream(int(x % callerStreams))
	case 253:
		p.reset(x)
	case 254:
		return p.snapshot()
	case 255:
		p.reclaim(x)
	}
	return nil
}

// pool is the number of the pool that a request is for; 0: the default one.
func (p *caller) pool(x byte) int {
	if n := int(x >> 5); n < len(p.in) {
		return n
	}
	return 0
}

func (p *caller) alloc(v *slot, bytes int64, stream, pool int) error {
	s := p.streams[stream]
	b, err := p.cache.Alloc(p.in[pool], bytes, s.Stream)
	if p.twin != nil {
		if err := p.twin.alloc(v, b, err, bytes, stream, pool); err != nil {
			return err
		}
	}
	if err != nil {
		if p.o.tight && errors.Is(err, ErrOutOfMemory) {
			p.ooms++
			return nil
		}
		return fmt.Errorf("an allocation of %d bytes: %w", bytes, err)
	}
	if b.Size() < bytes || b.StreamID() != s.ID() || b.Ptr()%512 != 0 && !p.o.config.NoCaching || b.Serial() == 0 {
		return fmt.Errorf("a request of %d bytes on stream %d got %v at %d", bytes, s.ID(), b, b.Ptr())
	}
	from, to := b.ptr, b.ptr+device.Ptr(b.size)
	for i := range p.slots {
		if o := &p.slots[i].b; from < o.ptr+device.Ptr(o.size) && o.ptr < to {
			return fmt.Errorf("%v overlaps %v", b, *o)
		}
	}
	v.b, v.asked = b, bytes
	p.live++
	p.bytes += b.Size()
	p.asked += bytes
	return nil
}

func (p *caller) free(v *slot) error {
	b := v.b
	err := b.Free()
	if p.twin != nil {
		if err := p.twin.free(v); err != nil {
			return err
		}
	}
	p.live--
	p.bytes -= b.Size()
	p.asked -= v.asked
	v.b, v.stale, v.asked = Block{}, b, 0
	if err != nil {
		return fmt.Errorf("a free: %w", err)
	}
	return nil
}

func (p *caller) freeAgain(v *slot) error {
	if v.stale.IsZero() {
		return nil
	}
	if err := v.stale.Free(); !errors.Is(err, ErrFreed) {
		return fmt.Errorf("a second free: %w", err)
	}
	if err := v.stale.RecordStream(p.streams[0].Stream); !errors.Is(err, ErrFreed) {
		return fmt.Errorf("a record after the free: %w", err)
	}
	return p.compare()
}

func (p *caller) record(v *slot, stream int) error {
	err := v.b.RecordStream(p.streams[stream].Stream)
	if p.twin != nil {
		p.twin.record(v, stream)
	}
	return errors.Join(err, p.compare())
}

func (p *caller) hold(stream int) error {
	s := p.streams[stream]
	if s.release != nil {
		return nil
	}
	release, err := s.Hold()
	s.release = release
	if p.twin != nil {
		p.twin.model.Hold(s.ID())
	}
	return err
}

func (p *caller) finish(stream int) {
	s := p.streams[stream]
	s.finish()
	if p.twin != nil {
		p.twin.model.Finish(s.ID())
	}
}

func (p *caller) changePools(size, x byte) error {
	if len(p.pools) < 3 {
		o := PoolOptions{UseOnOOM: size&1 != 0, NoSplit: size&2 != 0}
		pool, err := p.cache.NewPool(o)
		if err != nil {
			return err
		}
		if p.twin != nil {
			p.twin.newPool(o)
		}
		p.pools = append(p.pools, pool)
		p.contexts()
		return nil
	}
	i := int(x) % 3
	pool := p.pools[i]
	ctx := p.in[1+i]
	err := pool.Release()
	p.pools = append(p.pools[:i:i], p.pools[i+1:]...)
	p.contexts()
	if _, refused := p.cache.Alloc(ctx, 1, p.streams[0].Stream); !errors.Is(refused, ErrReleased) {
		return fmt.Errorf("a released pool: %w", refused)
	}
	if p.twin != nil {
		p.twin.releasePool(i)
	}
	if size&1 != 0 {
		err = errors.Join(err, pool.EmptyCache(p.ctx))
		if p.twin != nil {
			p.twin.model.EmptyPool(p.twin.last)
		}
	}
	return errors.Join(err, p.compare())
}

// refused makes calls that are errors, and change nothing.
func (p *caller) refused(x byte) error {
	ended, cancel := context.WithCancel(p.ctx)
	cancel()
	s := p.streams[x%callerStreams].Stream
	for _, r := range []struct {
		ctx   context.Context
		bytes int64
		s     device.Stream
		want  error
	}{
		{ended, 100, s, context.Canceled}, {p.ctx, -1, s, ErrInvalid}, {p.ctx, 1, nil, ErrInvalid}, {p.ctx, maxRequest, s, ErrOutOfMemory},
	} {
		if _, err := p.cache.Alloc(r.ctx, r.bytes, r.s); !errors.Is(err, r.want) {
			return fmt.Errorf("an allocation of %d bytes: got %w, want %w", r.bytes, err, r.want)
		}
	}
	if b, err := p.cache.Alloc(p.ctx, 0, s); err != nil || !b.IsZero() {
		return fmt.Errorf("no bytes gave %v, %w", b, err)
	}
	if err := p.cache.EmptyCache(ended); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("a cancelled EmptyCache: %w", err)
	}
	return p.compare()
}

func (p *caller) changeScopes(size byte) error {
	if n := len(p.scopes); n < 3 {
		var s *Scope
		p.ctx, s = p.cache.Scope(p.ctx, "scope")
		p.scopes = append(p.scopes, s)
		if p.twin != nil {
			p.twin.openScope()
		}
	} else {
		p.scopes[n-1].End() // the outer ones last
		own, w := p.scopes[n-1].Own(), p.scopes[n-1].Window()
		if own.Live > own.Peak || w.Allocated.Current > w.Allocated.Peak || w.Requested.Current > w.Requested.Peak || w.Allocated.Current != p.bytes {
			return fmt.Errorf("a scope's own is %+v, its window %+v; %d bytes are live", own, w, p.bytes)
		}
		if err := p.endScopes(n - 1); err != nil {
			return err
		}
		if size&1 != 0 {
			if err := p.endScopes(0); err != nil {
				return err
			}
		}
	}
	p.contexts()
	return p.compare()
}

// endScopes ends the scopes from number n on, the outer ones first.
func (p *caller) endScopes(n int) (err error) {
	for _, s := range p.scopes[n:] {
		s.End()
	}
	if p.twin != nil {
		err = p.twin.endScopes(n)
	}
	p.scopes = p.scopes[:n]
	p.ctx = context.Background()
	if n > 0 {
		p.ctx = (&carried{scope: p.scopes[n-1]}).in(p.ctx)
	}
	return err
}

func (p *caller) empty() error {
	err := p.cache.EmptyCache(p.ctx)
	if p.twin != nil {
		p.twin.model.EmptyCache()
	}
	return errors.Join(err, p.compare())
}

// limit changes the limit around what the configuration has.
func (p *caller) limit(size byte) {
	if !p.o.tight {
		return
	}
	limit := int64(math.MaxInt64)
	if size%8 != 0 {
		limit = p.o.config.MemoryLimit/2 + int64(size)*p.o.config.MemoryLimit/256
	}
	p.cache.setLimit(limit)
	if p.twin != nil {
		p.twin.model.SetLimit(modelLimit(limit))
	}
}

// replaceStream closes a stream and makes another.
func (p *caller) replaceStream(i int) error {
	s := p.streams[i]
	p.finish(i)
	if err := s.Close(); err != nil {
		return err
	}
	if p.twin != nil {
		p.twin.model.Close(s.ID())
	}
	if _, err := p.cache.Alloc(p.ctx, 1, s.Stream); !errors.Is(err, device.ErrClosed) {
		return fmt.Errorf("a closed stream: %w", err)
	}
	return errors.Join(p.newStream(i), p.compare())
}

func (p *caller) reset(x byte) {
	if x&1 != 0 {
		p.cache.ResetPeakStats()
	} else {
		p.cache.ResetAccumulatedStats()
	}
	if p.twin != nil {
		p.twin.model.Reset(x&1 != 0)
	}
}

// snapshot requires a snapshot to show the live blocks.
func (p *caller) snapshot() error {
	shot := p.cache.Snapshot()
	if p.twin != nil {
		p.twin.snapshot()
	}
	shown := map[uint64]int64{}
	for _, g := range shot.Segments {
		at := g.Address
		for _, b := range g.Blocks {
			if b.Address != at {
				return fmt.Errorf("the blocks of a segment leave a hole at %d", at)
			}
			at += device.Ptr(b.Size)
			if b.State == BlockAllocated {
				shown[b.Serial] = b.Size
			}
		}
		if at != g.Address+device.Ptr(g.TotalSize) {
			return fmt.Errorf("the blocks of a segment of %d bytes end at %d", g.TotalSize, at-g.Address)
		}
	}
	for i := range p.slots {
		if b := p.slots[i].b; !b.IsZero() && shown[b.serial] != b.size {
			return fmt.Errorf("%v is not in the snapshot", b)
		}
	}
	if len(shown) != p.live {
		return fmt.Errorf("%d blocks are live, the snapshot has %d", p.live, len(shown))
	}
	return nil
}

// reclaim registers a reclaimer that frees a few blocks, one at a time; or removes it.
func (p *caller) reclaim(x byte) {
	if p.remove != nil {
		p.remove()
		p.remove = nil
		return
	}
	p.asks = int(x % 8)
	if p.twin != nil {
		p.twin.asks = p.asks
	}
	p.remove = p.cache.OnPressure(func(context.Context, int64) int64 {
		for i := range p.slots {
			if v := &p.slots[i]; p.asks > 0 && !v.b.IsZero() {
				p.asks--
				n := v.b.Size()
				twin := p.twin
				p.twin = nil // it asks by itself
				if err := p.free(v); err != nil {
					panic(err)
				}
				p.twin = twin
				return n
			}
		}
		return 0
	})
}

// check looks at the structure, and compares what the program knows.
func (p *caller) check() error {
	if err := p.cache.check(); err != nil {
		return err
	}
	st := p.cache.Stats()
	if st.Allocation.All.Current != int64(p.live) || st.AllocatedBytes.All.Current != p.bytes {
		return fmt.Errorf("%d blocks of %d bytes are live, the statistics say %+v and %+v", p.live, p.bytes, st.Allocation.All, st.AllocatedBytes.All)
	}
	free, total, err := p.dev.MemInfo()
	if err != nil || st.ReservedBytes.All.Current != total-free {
		return fmt.Errorf("%d bytes are reserved, the device gave %d, %w", st.ReservedBytes.All.Current, total-free, err)
	}
	if !p.o.tight {
		if st.NumOOMs != 0 {
			return fmt.Errorf("%d requests failed", st.NumOOMs)
		}
		if st.Active.All.Current == st.Allocation.All.Current && st.RequestedBytes.All.Current != p.asked {
			return fmt.Errorf("%d bytes were asked for, the statistics say %+v", p.asked, st.RequestedBytes.All)
		}
		p.fold(&st)
	}
	return nil
}

// fold adds to the digest what every allocator has in common: how many blocks and requested bytes are live, in which
// pool, and what that was at the peak.
func (p *caller) fold(st *Stats) {
	for _, a := range [...]*StatArray{&st.Allocation, &st.Active, &st.RequestedBytes} {
		for _, s := range [...]Stat{a.All, a.SmallPool, a.LargePool} {
			for _, v := range [...]int64{s.Current, s.Peak, s.Allocated, s.Freed} {
				p.digest = (p.digest ^ uint64(v)) * 0x100000001B3
			}
		}
	}
}

func (p *caller) compare() error {
	if p.twin == nil {
		return nil
	}
	return p.twin.compare()
}

// end frees everything; then every byte must return to the device. With leak the cache is closed while blocks are
// live.
func (p *caller) end(leak bool) error {
	p.failures = 0
	if p.remove != nil {
		p.remove()
		p.remove = nil
	}
	if p.twin != nil {
		p.twin.driver.failures = 0
	}
	if err := p.endScopes(0); err != nil {
		return err
	}
	if leak && p.live > 0 {
		if err := p.cache.Close(); err == nil {
			return fmt.Errorf("Close with %d live blocks says nothing", p.live)
		}
		for i := range p.slots {
			if b := p.slots[i].b; !b.IsZero() && !errors.Is(b.Free(), ErrClosed) {
				return fmt.Errorf("a free after Close: %w", b.Free())
			}
		}
		if _, err := p.cache.Alloc(context.Background(), 1, p.streams[0].Stream); !errors.Is(err, ErrClosed) {
			return fmt.Errorf("an allocation after Close: %w", err)
		}
		return p.endDevice()
	}
	for i := range p.slots {
		if v := &p.slots[i]; !v.b.IsZero() {
			if err := p.free(v); err != nil {
				return err
			}
		}
	}
	for i := range p.streams {
		p.finish(i)
	}
	for range p.pools {
		if err := p.pools[0].Release(); err != nil {
			return err
		}
		p.pools = p.pools[1:]
		if p.twin != nil {
			p.twin.release(0)
		}
	}
	if err := errors.Join(p.empty(), p.check()); err != nil {
		return err
	}
	st := p.cache.Stats()
	if st.ReservedBytes.All.Current != 0 || st.Active.All.Current != 0 || st.Segment.All.Current != 0 {
		return fmt.Errorf("%+v is reserved, %+v active, in %+v segments", st.ReservedBytes.All, st.Active.All, st.Segment.All)
	}
	return errors.Join(p.cache.Close(), p.endDevice())
}

// endDevice requires that the device has everything back.
func (p *caller) endDevice() error {
	for _, s := range p.streams {
		s.finish()
	}
	return p.dev.Close()
}

// describe says what a word does.
func describe(w uint32) string {
	op, at, size, x := byte(w), int(byte(w>>8))%callerSlots, byte(w>>16), byte(w>>24)
	switch {
	case op < 205:
		return fmt.Sprintf("alloc or free slot %d (size %d+%d, stream %d, pool %d)", at, callerSizes[size], op, x%callerStreams, x>>5)
	case op < 225:
		return fmt.Sprintf("record stream %d on slot %d", x%callerStreams, at)
	case op < 232:
		return fmt.Sprintf("hold stream %d", x%callerStreams)
	case op < 239:
		return fmt.Sprintf("finish stream %d", x%callerStreams)
	case op < 242:
		return fmt.Sprintf("free slot %d again", at)
	case byte(w>>8)%4 != 0:
		return "nothing"
	}
	names := [...]string{"pools", "pools", "refused calls", "scopes", "scopes", "empty the cache", "limit", "limit",
		"driver failures", "driver failures", "replace a stream", "reset statistics", "snapshot", "reclaimer"}
	return fmt.Sprintf("%s (%d, %d)", names[op-242], size, x)
}
