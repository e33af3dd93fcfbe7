package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/memcache"
)

// life is how many calls are made of one cache.
const life = 4000

// playMemcache gives each option set in turn the life of a cache, until all calls are made.
func playMemcache(w io.Writer, calls int64, seed uint64) error {
	return playSettings(settings(), w, calls, seed)
}

// playMemcacheExactly does so with Exact in all of them.
func playMemcacheExactly(w io.Writer, calls int64, seed uint64) error {
	list := settings()
	for i := range list {
		list[i].config.Exact = true
	}
	return playSettings(list, w, calls, seed)
}

func playSettings(list []setting, w io.Writer, calls int64, seed uint64) error {
	for n := uint64(0); calls > 0; n++ {
		p := &memcachePlayer{setting: list[n%uint64(len(list))], w: w, random: rand.New(rand.NewPCG(seed, n))}
		if err := p.play(min(calls, life)); err != nil {
			return fmt.Errorf("%s, life %d: %w", p.setting.name, n, err)
		}
		calls -= life
	}
	return nil
}

// memcachePlayer makes the calls of one cache's life. What it does depends on random and on which calls failed.
type memcachePlayer struct {
	setting setting
	w       io.Writer
	random  *rand.Rand
	log     log

	dev     *null.Device
	cache   *memcache.Cache
	streams []*heldStream
	made    uint64 // streams
	live    []memcache.Block
	stale   memcache.Block // freed
	pools   []*memcache.Pool
	scopes  []*memcache.Scope
	ctx     []context.Context // of the scopes, the outermost first; before them one of no scope

	failures int // allocations and mappings of the driver still to fail
	frees    int // frees of a reclaimer still to do
	remove   func()
}

// heldStream is a stream whose events are pending while it is held.
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

func (p *memcachePlayer) play(calls int64) error {
	dev, err := null.New(null.Config{Capacity: p.setting.capacity, Base: 1 << 40})
	if err != nil {
		return err
	}
	p.dev = dev
	dev.SetScript(null.Script{Before: p.before, After: p.log.driver})
	config := p.setting.config
	if p.random.IntN(4) > 0 {
		config.Observer = &p.log
	}
	if p.cache, err = memcache.New(dev, config); err != nil {
		return err
	}
	if p.random.IntN(3) == 0 {
		if err := p.cache.RecordHistory(memcache.HistoryOptions{Entries: 1000}); err != nil {
			return err
		}
	}
	p.ctx = []context.Context{context.Background()}
	for range 4 {
		if err := p.newStream(); err != nil {
			return err
		}
	}
	fmt.Fprintf(p.w, "life of %q\n", p.setting.name)
	for n := range calls {
		if err := p.call(n); err != nil {
			return err
		}
	}
	return p.end()
}

func (p *memcachePlayer) newStream() error {
	p.made++
	s, err := p.dev.NewStreamWithID(p.made * 0x9E3779B97F4A7C15 >> 16) // not ascending: streams' order is not that of their making
	if err == nil {
		p.streams = append(p.streams, &heldStream{Stream: s})
	}
	return err
}

// before lets driver calls fail, and held streams go on that are waited for.
func (p *memcachePlayer) before(c *null.Call) {
	switch c.Op {
	case null.OpAlloc, null.OpMap, null.OpReserve:
		if p.failures > 0 {
			p.failures--
			c.Err = &device.Error{Op: c.Op.String(), Device: "null", Bytes: c.Bytes, Code: device.CodeOutOfMemory, Err: device.ErrOutOfMemory}
			p.log.add("%s of %d refused", c.Op, c.Bytes)
		}
	case null.OpSynchronize:
		for _, s := range p.streams {
			if s.ID() == c.Stream {
				s.finish()
			}
		}
	}
}

// call makes one call, and prints it with what it did.
func (p *memcachePlayer) call(n int64) error {
	var did string
	var err error
	switch x := p.random.Float64(); {
	case x < 0.40:
		did, err = p.alloc()
	case x < 0.76:
		did, err = p.free()
	case x < 0.84:
		did, err = p.record()
	case x < 0.87:
		did, err = p.hold()
	case x < 0.90:
		s := p.stream()
		did = fmt.Sprintf("finish %d", s.ID())
		s.finish()
	case x < 0.91:
		did, err = p.again()
	case x < 0.98:
		did, err = p.ask()
	default:
		did, err = p.seldom()
	}
	p.print(did, err)
	if n%50 == 0 {
		p.printStats()
	}
	return p.log.wrong()
}

func (p *memcachePlayer) print(did string, err error) {
	fmt.Fprintf(p.w, "%s: %s; %d %d\n", did, told(err), p.cache.MemoryAllocated(), p.cache.MemoryReserved())
	p.log.print(p.w)
}

// told is an error, with what it wraps.
func told(err error) string {
	if err == nil {
		return "done"
	}
	var oom *memcache.OutOfMemoryError
	if errors.As(err, &oom) {
		return fmt.Sprintf("%v %+v", err, oom.Holders)
	}
	return err.Error()
}

func (p *memcachePlayer) stream() *heldStream { return p.streams[p.random.IntN(len(p.streams))] }

// context is one that requests are made with: of a scope, of a pool, with labels.
func (p *memcachePlayer) context() context.Context {
	ctx := p.ctx[len(p.ctx)-1]
	if p.random.IntN(8) == 0 {
		ctx = p.ctx[p.random.IntN(len(p.ctx))]
	}
	if n := len(p.pools); n > 0 && p.random.IntN(3) == 0 {
		if ctx = p.pools[p.random.IntN(n)].Context(ctx); p.random.IntN(9) == 0 {
			ctx = p.cache.WithoutPool(ctx)
		}
	}
	if p.random.IntN(3) == 0 {
		ctx = memcache.WithModule(ctx, fmt.Sprint("layer", p.random.IntN(4)))
		ctx = memcache.WithCategory(ctx, memcache.Category(p.random.IntN(7)))
		ctx = memcache.WithStep(ctx, int64(p.random.IntN(3)))
	}
	return ctx
}

// borders are sizes at which PyTorch's rules change.
var borders = []int64{1, 512, 513, 1<<20 - 1, 1 << 20, 1<<20 + 1, 2 << 20, 10<<20 - 1, 10 << 20, 12 << 20, 12<<20 - 1<<19, 19 << 20, 20 << 20, 20<<20 + 1, 21 << 20}

func (p *memcachePlayer) alloc() (string, error) {
	s := p.stream()
	size := int64(math.Exp2(p.random.Float64() * 25))
	switch p.random.IntN(20) {
	case 0, 1:
		size = borders[p.random.IntN(len(borders))]
	case 2:
		size = int64(p.random.IntN(600) - 2) // 0 and less are the user's mistakes
	}
	b, err := p.cache.Alloc(p.context(), size, s.Stream)
	if err == nil {
		p.live = append(p.live, b)
	}
	return fmt.Sprintf("alloc %d on %d: %#x %d %v %d %v", size, s.ID(), b.Ptr(), b.Size(), b, b.Serial(), b.Label()), err
}

func (p *memcachePlayer) take() (b memcache.Block) {
	i := p.random.IntN(len(p.live))
	b = p.live[i]
	p.live = slices.Delete(p.live, i, i+1)
	return b
}

func (p *memcachePlayer) free() (string, error) {
	if len(p.live) == 0 {
		return "nothing to free", nil
	}
	b := p.take()
	p.stale = b
	if p.random.IntN(10) == 0 {
		return fmt.Sprintf("free with a context %v", b), b.FreeContext(p.context())
	}
	return fmt.Sprintf("free %v", b), b.Free()
}

func (p *memcachePlayer) record() (string, error) {
	if len(p.live) == 0 {
		return "nothing to record", nil
	}
	b, s := p.live[p.random.IntN(len(p.live))], p.stream()
	return fmt.Sprintf("record %v on %d", b, s.ID()), b.RecordStream(s.Stream)
}

func (p *memcachePlayer) hold() (did string, err error) {
	s := p.stream()
	if s.release == nil {
		s.release, err = s.Hold()
	}
	return fmt.Sprintf("hold %d", s.ID()), err
}

// again uses a block that was freed.
func (p *memcachePlayer) again() (string, error) {
	if p.random.IntN(2) == 0 {
		return fmt.Sprintf("free again %v", p.stale), p.stale.Free()
	}
	return fmt.Sprintf("record again %v", p.stale), p.stale.RecordStream(p.streams[0].Stream)
}
