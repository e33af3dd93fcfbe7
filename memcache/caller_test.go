package memcache

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache/internal/model"
)

// caller is one goroutine that uses a cache on a null device according to a program, and checks
// after every call all guarantees that callers may rely on. A program is a list of words. The
// effect of a word depends on earlier words, never on the placement of blocks, so that one program
// can run under many options.
type caller struct {
	o       setting
	dev     *peerDevice
	far     *peerDevice
	cache   *Cache
	streams [callerStreams + 1]*heldStream // the last one is the far device's
	made    uint64                         // streams
	slots   [callerSlots]slot
	pools   []*Pool
	given   []*Pool // the last ones that were released
	leaves  []func()
	scopes  []*Scope
	root    context.Context
	cancel  context.CancelFunc
	ctx     context.Context   // root in the innermost scope
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
	note     func(null.Call) // the twin's
	twin     *twin           // compared at every call, if there is one
	placed   *places         // where segments are placed, if not where the device wants

	without feature
	farUses []farUse
	fault   int  // the driver call that is to fail: 1 the next one; 0 none
	fired   bool // in this call
	faulted bool // in any call
	failed  bool // it is the driver call, and not the context, that fails
	mapping bool // the last mapping has not succeeded: what is unmapped now undoes it, and must succeed
}

const (
	callerStreams = 4
	callerSlots   = 96
)

// opFault is the word of a failure.
const opFault = 239

// slot is one variable of the program.
type slot struct {
	b     Block
	asked int64
	stale Block
	far   bool         // the far stream uses it
	m     *model.Block // the twin's
}

// peerDevice is a null device whose memory other devices of its kind can access.
type peerDevice struct{ *null.Device }

func (d *peerDevice) Properties() device.Properties {
	p := d.Device.Properties()
	p.Peers = true
	return p
}

// heldStream is a stream that can be held up.
type heldStream struct {
	*null.Stream
	dev   *peerDevice
	gates []*gate // the gates before the work that was queued last
}

// gate holds up a stream.
type gate struct {
	of      *heldStream
	release func()
	open    bool
}

func (s *heldStream) Device() device.Device { return s.dev }

func (s *heldStream) held() bool { return slices.ContainsFunc(s.gates, (*gate).holds) }

func (g *gate) holds() bool { return !g.open }

// finish completes the queued work of the stream, and of those that it waits for.
func (s *heldStream) finish() {
	for _, g := range s.gates {
		g.open = true
		g.release()
	}
	s.gates = nil
}

// farUse is memory that the far stream uses until the gates are open.
type farUse struct {
	from, to device.Ptr
	gates    []*gate
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
	p := &caller{o: o, dev: &peerDevice{dev}, every: 1000}
	p.renew()
	dev.SetScript(null.Script{Before: p.before, After: p.after})
	if p.cache, err = New(p.dev, o.config); err != nil {
		return p, err
	}
	if o.far {
		far, err := null.New(null.Config{Capacity: 1 << 20})
		if err != nil {
			return p, err
		}
		p.far = &peerDevice{far}
		s, err := far.NewStreamWithID(0x4000_0000_0000)
		if err != nil {
			return p, err
		}
		p.streams[callerStreams] = &heldStream{Stream: s, dev: p.far}
		far.SetScript(null.Script{Before: p.before})
	}
	for i := range callerStreams {
		if err := p.newStream(i); err != nil {
			return p, err
		}
	}
	p.contexts()
	return p, nil
}

// renew creates a context that has not ended.
func (p *caller) renew() {
	if p.cancel != nil {
		p.cancel()
	}
	p.root, p.cancel = context.WithCancel(context.Background())
	p.rescope()
}

// rescope creates the contexts of the innermost scope again.
func (p *caller) rescope() {
	p.ctx = p.root
	if n := len(p.scopes); n > 0 {
		p.ctx = carry(p.ctx, func(c *carrier) { c.state.scope = p.scopes[n-1] })
	}
	p.contexts()
}

func (p *caller) newStream(i int) error {
	p.made++
	// IDs that don't ascend: the order of streams is not that of their making.
	s, err := p.dev.NewStreamWithID(p.made * 0x9E3779B97F4A7C15 >> 16)
	if err != nil {
		return err
	}
	p.streams[i] = &heldStream{Stream: s, dev: p.dev}
	if i == 0 && p.far == nil {
		p.streams[callerStreams] = p.streams[0]
	}
	if p.twin != nil {
		p.twin.model.Open(s.ID())
	}
	return nil
}

// contexts creates the contexts of the pools again.
func (p *caller) contexts() {
	p.in = append(p.in[:0], p.ctx)
	for _, pool := range p.pools {
		p.in = append(p.in, pool.Context(p.ctx))
	}
}

// before fails driver calls, and releases held streams that are waited for.
func (p *caller) before(c *null.Call) {
	if c.Op == null.OpMap {
		p.mapping = true
	}
	if c.Op != null.OpSynchronize && c.Op != null.OpUnreserve && !(c.Op == null.OpUnmap && p.mapping) {
		if p.fault--; p.fault == 0 {
			p.fired, p.faulted, p.twin = true, true, nil // it knows no failures
			if p.cancel(); p.failed {
				c.Err = errFault
				return
			}
		}
	}
	switch c.Op {
	case null.OpAlloc, null.OpMap:
		if p.failures > 0 {
			p.failures--
			c.Err = &device.Error{Op: c.Op.String(), Device: "null", Bytes: c.Bytes, Code: device.CodeOutOfMemory, Err: device.ErrOutOfMemory}
			return
		}
	case null.OpSynchronize:
		for _, s := range p.streams {
			// the stream may wait for any other
			if s != nil && (s.ID() == c.Stream || p.o.config.ReuseAcrossStreams != ReuseNever) {
				s.finish()
			}
		}
	}
	if p.placed != nil {
		p.placed.choose(c)
	}
}

func (p *caller) after(c null.Call) {
	p.mapping = p.mapping && c.Op != null.OpMap
	if p.note != nil {
		p.note(c)
	}
}

// judge checks the error of a call during which the failure came. The call must have received the
// failure, and nothing may have changed except what the call had completed before.
func (p *caller) judge(err error) error {
	cause := context.Canceled
	if p.failed {
		cause = errFault
	}
	if !errors.Is(err, cause) && (err != nil || p.failed) {
		return fmt.Errorf("after %w the call's error is: %w", cause, err)
	}
	p.fired = false
	p.renew()
	return p.check()
}

// run runs the calls of a program, and ends it.
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
	if p.without&featureOf(w) != 0 {
		return nil
	}
	slots := callerSlots
	if p.without&manySlots != 0 {
		slots = 6
	}
	var err error
	switch {
	case op < 205:
		if v := &p.slots[at%slots]; v.b.IsZero() {
			err = p.alloc(v, callerSizes[size]+int64(op)*int64(min(size/16, 1))<<(size/32), int(x%callerStreams), p.pool(x))
		} else {
			err = p.free(v)
		}
	case op < 221:
		err = p.record(&p.slots[at%slots], userOf(x))
	case op < 225:
		err = p.erase(&p.slots[at%slots], userOf(x))
	case op < 231:
		err = p.hold(userOf(x))
	case op < 237:
		p.finish(userOf(x))
	case op < 239:
		err = p.waitStream(int(x%callerStreams), int(size%callerStreams))
	case op == opFault:
		p.fault, p.failed = 1+int(size%4), x%3 > 0
	case op < 242:
		err = p.freeAgain(&p.slots[at%slots])
	default:
		if at%16 == 0 || p.without&seldom != 0 {
			err = p.seldom(op, size, x)
		}
	}
	if p.fired {
		err = p.judge(err)
	}
	if err == nil && p.calls%p.every == 0 {
		err = p.check()
	}
	return err
}

// seldom makes the rarer calls.
func (p *caller) seldom(op, size, x byte) error {
	switch op {
	case 242, 243:
		return p.changePools(size, x)
	case 244:
		if size%2 == 0 {
			return p.enter(x)
		}
		return p.refused(x)
	case 245, 246:
		return p.changeScopes(size)
	case 247:
		switch size % 4 {
		case 0:
			return p.trim(x)
		case 1:
			return p.emptyGiven(x)
		}
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
		if size%2 == 0 {
			return p.poll()
		}
		return p.snapshot()
	case 255:
		p.reclaim(x)
	}
	return nil
}

// userOf returns the number of a stream that uses memory: in half of the cases the last one.
func userOf(x byte) int { return int(min(x%(2*callerStreams), callerStreams)) }

// pool returns the number of the request's pool; 0: the default one.
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

// describe describes the effect of a word.
func describe(w uint32) string {
	op, at, size, x := byte(w), int(byte(w>>8))%callerSlots, byte(w>>16), byte(w>>24)
	switch {
	case op < 205:
		return fmt.Sprintf("alloc or free slot %d (size %d+%d, stream %d, pool %d)", at, callerSizes[size], op, x%callerStreams, x>>5)
	case op < 221:
		return fmt.Sprintf("record stream %d on slot %d", userOf(x), at)
	case op < 225:
		return fmt.Sprintf("erase stream %d from slot %d", userOf(x), at)
	case op < 231:
		return fmt.Sprintf("hold stream %d", userOf(x))
	case op < 237:
		return fmt.Sprintf("finish stream %d", userOf(x))
	case op < 239:
		return fmt.Sprintf("stream %d waits for stream %d", x%callerStreams, size%callerStreams)
	case op == opFault:
		return fmt.Sprintf("driver call %d from now fails, or its context ends (%d)", size%4, x%3)
	case op < 242:
		return fmt.Sprintf("free slot %d again", at)
	}
	names := [...]string{"pools", "pools", "enter a pool, or refused calls", "scopes", "scopes", "empty or trim", "limit", "limit or options",
		"driver failures", "driver failures", "replace a stream", "reset statistics", "poll or snapshot", "reclaimer"}
	return fmt.Sprintf("%s (%d, %d)", names[op-242], size, x)
}
