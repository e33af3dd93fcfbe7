package main

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// playTransfer gives pools with limits and without their lives in turn, until all calls are made.
func playTransfer(w io.Writer, calls int64, seed uint64) error {
	configs := []transfer.Config{{}, {MaxCachedBytes: 1 << 20}, {MaxCachedBytes: -1}, {MaxCachedBuffers: 2}, {MaxBytes: 3 << 20},
		{MaxBytes: 2<<20 + 12345, MaxCachedBytes: 1 << 20}, {MaxBytes: 1 << 20, MaxCachedBuffers: -1}}
	for n := uint64(0); calls > 0; n++ {
		p := &transferPlayer{config: configs[n%uint64(len(configs))], w: w, random: rand.New(rand.NewPCG(seed, n))}
		if err := p.play(min(calls, life)); err != nil {
			return fmt.Errorf("%+v, life %d: %w", p.config, n, err)
		}
		calls -= life
	}
	return nil
}

// transferPlayer makes the calls of one pool's life, on a host device, whose copies are real. A stream is held now and then, so that its
// buffers are in flight, and no other is used meanwhile: whether a copy is over is never a matter of time.
type transferPlayer struct {
	config transfer.Config
	w      io.Writer
	random *rand.Rand

	dev     *watchedDevice
	cache   *memcache.Cache
	pool    *transfer.Pool
	streams []*watchedStream
	held    *watchedStream // nil: none
	release chan struct{}  // of held
	blocks  []memcache.Block
	buffers []transfer.Buffer
	stale   transfer.Buffer
	waiting []*transfer.Copy
	chunked bool // the present call makes its copies on several goroutines: they have no order
}

var anywhere = context.Background()

func (p *transferPlayer) play(calls int64) (err error) {
	d, err := host.New(host.Config{Capacity: 64 * mib})
	if err != nil {
		return err
	}
	p.dev = &watchedDevice{Device: d, player: p}
	if p.cache, err = memcache.New(p.dev, memcache.Config{}); err != nil {
		return err
	}
	if p.pool, err = transfer.New(p.dev, p.config); err != nil {
		return err
	}
	for range 3 {
		s, err := d.NewStream(device.StreamOptions{})
		if err != nil {
			return err
		}
		p.streams = append(p.streams, &watchedStream{s.(copyingStream), p, len(p.streams)})
	}
	for _, bytes := range []int64{100, 4096, 70_000, 1 << 20, 3 << 20} {
		b, err := p.cache.Alloc(anywhere, bytes, p.streams[0])
		if err != nil {
			return err
		}
		p.blocks = append(p.blocks, b)
		if err := p.streams[0].Stream().Memset(b.Ptr(), 0, b.Size()); err != nil {
			return err
		}
	}
	if err := d.Synchronize(anywhere); err != nil {
		return err
	}
	fmt.Fprintf(p.w, "life of %+v\n", p.config)
	for range calls {
		did, err := p.call()
		p.print(did, err)
		if p.held == nil {
			p.finish()
			s := p.pool.Stats()
			if p.chunked {
				p.pool.ResetPeakStats() // how many chunks were under way at once is a matter of time
				s = p.pool.Stats()
			}
			p.printStats(s)
		}
		p.chunked = false
		if p.dev.bad != nil {
			return p.dev.bad
		}
	}
	return p.end()
}

// print prints a call and the copies that it queued.
func (p *transferPlayer) print(did string, err error) {
	fmt.Fprintf(p.w, "%s: %s\n", did, refused(err))
	if p.chunked {
		slices.Sort(p.dev.queued)
	}
	for _, q := range p.dev.queued {
		fmt.Fprintln(p.w, q)
	}
	p.dev.queued = p.dev.queued[:0]
}

// refused is an error. What the driver held when a limit was reached is the pool's own matter.
func refused(err error) string {
	var limit *transfer.LimitError
	if errors.As(err, &limit) {
		return fmt.Sprintf("over the limit: %d of %d", limit.Requested, limit.Limit)
	}
	return told(err)
}

// stream is one to queue on.
func (p *transferPlayer) stream() *watchedStream {
	if p.held != nil {
		return p.held
	}
	return p.streams[p.random.IntN(len(p.streams))]
}

func (p *transferPlayer) block() (i int, b memcache.Block) {
	i = p.random.IntN(len(p.blocks))
	return i, p.blocks[i]
}

// part is a random part of something so long, and seldom one that is outside of it.
func (p *transferPlayer) part(size int64) (offset, bytes int64) {
	if p.random.IntN(30) == 0 {
		return int64(p.random.IntN(10)) - 3, size + int64(p.random.IntN(5)) - 2
	}
	offset = p.random.Int64N(size + 1)
	return offset, p.random.Int64N(size - offset + 1)
}

// finish lets the held stream go on, and waits until nothing is under way: other streams are used then.
func (p *transferPlayer) finish() {
	if p.held != nil {
		close(p.release)
		p.held = nil
	}
	for _, c := range p.waiting {
		if err := c.Wait(anywhere); err != nil {
			p.dev.bad = errors.Join(p.dev.bad, fmt.Errorf("a copy: %w", err))
		}
	}
	p.waiting = p.waiting[:0]
	if err := p.dev.Synchronize(anywhere); err != nil {
		p.dev.bad = errors.Join(p.dev.bad, err)
	}
}

func (p *transferPlayer) queued(c *transfer.Copy, err error) error {
	if c != nil {
		p.waiting = append(p.waiting, c)
	}
	return err
}

func (p *transferPlayer) call() (string, error) {
	switch x := p.random.IntN(100); {
	case x < 20:
		return p.get()
	case x < 33:
		return p.giveBack()
	case x < 70:
		return p.copy()
	case x < 76:
		return p.touch()
	case x < 86:
		return p.whole()
	case x < 92:
		return p.batch()
	case x < 95:
		if p.held == nil {
			return p.hold()
		}
		p.finish()
		return "finish", nil
	}
	return p.seldom()
}

func (p *transferPlayer) hold() (string, error) {
	p.held = p.stream()
	p.release = make(chan struct{})
	release := p.release
	return fmt.Sprintf("hold stream %d", p.held.n), p.held.Stream().Launch(&device.Launch{Func: func() { <-release }})
}

func (p *transferPlayer) get() (string, error) {
	p.finish() // a limit may wait for what is in flight
	if len(p.buffers) >= 24 {
		return p.giveBack()
	}
	bytes := int64(math.Exp2(p.random.Float64()*22)) - 1
	if p.random.IntN(40) == 0 {
		bytes = []int64{-1, 0, 1 << 21, 1 << 22, 1 << 40}[p.random.IntN(5)]
	}
	if p.random.IntN(30) == 0 {
		mem := make([]byte, max(0, min(bytes, 1<<22)))
		b, err := p.pool.Register(anywhere, mem)
		p.keep(b, err)
		return fmt.Sprintf("register %d", len(mem)), err
	}
	b, err := p.pool.Get(anywhere, bytes)
	p.keep(b, err)
	return fmt.Sprintf("get %d: %d", bytes, b.Len()), err
}

// keep keeps a buffer, with contents that depend on nothing before.
func (p *transferPlayer) keep(b transfer.Buffer, err error) {
	if err != nil {
		return
	}
	p.fill(b.Bytes())
	p.buffers = append(p.buffers, b)
}

func (p *transferPlayer) fill(mem []byte) {
	x := p.random.Uint64()
	for i := range mem {
		mem[i] = byte(x >> (i % 8 * 8))
	}
}

func (p *transferPlayer) giveBack() (string, error) {
	if len(p.buffers) == 0 {
		return "nothing to release", nil
	}
	if p.random.IntN(12) == 0 {
		return "release again", p.stale.Release()
	}
	i := p.random.IntN(len(p.buffers))
	if p.held != nil { // a registered one waits for its copies
		p.finish()
	}
	b := p.buffers[i]
	p.buffers = slices.Delete(p.buffers, i, i+1)
	p.stale = b
	return fmt.Sprintf("release %d", b.Len()), b.Release()
}

// copy queues one copy.
func (p *transferPlayer) copy() (string, error) {
	s := p.stream()
	i, block := p.block()
	if p.random.IntN(4) == 0 || len(p.buffers) == 0 {
		at, bytes := p.part(block.Size())
		if p.random.IntN(2) == 0 {
			value := byte(p.random.IntN(256))
			return fmt.Sprintf("fill b%d+%d %d", i, at, bytes), p.queued(p.pool.Fill(anywhere, s, block, at, bytes, value))
		}
		k, other := p.block()
		if k == i {
			return "none", nil
		}
		at, bytes = p.part(min(block.Size(), other.Size()))
		return fmt.Sprintf("d2d b%d b%d+%d %d", k, i, at, bytes), p.queued(p.pool.D2D(anywhere, s, other, at, block, at, bytes))
	}
	b := p.buffers[p.random.IntN(len(p.buffers))]
	from, bytes := p.part(int64(b.Len()))
	at := p.random.Int64N(max(1, block.Size()-bytes+1))
	if rows := p.rows(bytes); p.random.IntN(4) == 0 {
		if p.random.IntN(2) == 0 {
			return fmt.Sprintf("h2d strided b%d+%d %v", i, at, rows), p.queued(p.pool.H2DStrided(anywhere, s, block, at, b, from, rows))
		}
		return fmt.Sprintf("d2h strided b%d+%d %v", i, at, rows), p.queued(p.pool.D2HStrided(anywhere, s, b, from, block, at, rows))
	}
	if p.random.IntN(2) == 0 {
		return fmt.Sprintf("h2d b%d+%d %d", i, at, bytes), p.queued(p.pool.H2D(anywhere, s, block, at, b, from, bytes))
	}
	return fmt.Sprintf("d2h b%d+%d %d", i, at, bytes), p.queued(p.pool.D2H(anywhere, s, b, from, block, at, bytes))
}

func (p *transferPlayer) rows(bytes int64) transfer.Rows {
	height := 1 + p.random.Int64N(8)
	width := max(0, bytes) / height / 2
	return transfer.Rows{Width: width, Height: height, DstPitch: width + p.random.Int64N(width+1), SrcPitch: width + p.random.Int64N(width+1)}
}

// touch uses a buffer's memory, which may be in flight.
func (p *transferPlayer) touch() (string, error) {
	if len(p.buffers) == 0 {
		return "no buffer", nil
	}
	b := p.buffers[p.random.IntN(len(p.buffers))]
	switch p.random.IntN(5) {
	case 0:
		mem := make([]byte, p.random.IntN(b.Len()+2))
		p.fill(mem)
		n, err := b.WriteAt(mem, 0)
		return fmt.Sprintf("write %d", n), err
	case 1:
		mem := make([]byte, b.Len())
		n, err := b.ReadAt(mem, 0)
		return fmt.Sprintf("read %d %08x", n, crc32.ChecksumIEEE(mem)), err
	case 2:
		at, bytes := p.part(int64(b.Len()))
		return fmt.Sprintf("zero %d %d", at, bytes), b.Zero(at, bytes)
	case 3:
		return "check", b.Check()
	}
	return "check one that was released", p.stale.Check()
}
