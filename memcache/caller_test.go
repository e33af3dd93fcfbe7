package memcache

import (
	"context"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/sizes"
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
var callerSizes = func() (list [256]int64) {
	borders := []int64{1, 512, 513, 12 << 20, sizes.SmallLimit - 1, sizes.SmallLimit, sizes.SmallLimit + 1, sizes.MinLarge - 1, sizes.MinLarge, sizes.MinLarge + 1,
		sizes.SmallSegment, sizes.LargeSegment - sizes.SmallLimit, sizes.LargeSegment, sizes.LargeSegment + 1, 21 << 20, 12<<20 - 1<<19}
	for i := range list {
		list[i] = int64(math.Exp2(float64(i) / 255 * 25))
	}
	copy(list[:], borders)
	return list
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
			if s.ID() == c.Stream || p.o.config.ReuseAcrossStreams != ReuseNever { // the stream may wait for any other
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
		if p.o.changing && op == 249 {
			return p.changeOptions(size, x)
		}
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

func (p *caller) compare() error {
	if p.twin == nil {
		return nil
	}
	return p.twin.compare()
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
	names := [...]string{"pools", "pools", "refused calls", "scopes", "scopes", "empty the cache", "limit", "limit or options",
		"driver failures", "driver failures", "replace a stream", "reset statistics", "snapshot", "reclaimer"}
	return fmt.Sprintf("%s (%d, %d)", names[op-242], size, x)
}
