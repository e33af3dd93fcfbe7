//go:build cuda

package memcache_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/cuda"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// gpu is the fixture of the tests of RecordStream on a GPU: a kernel that waits for the host before
// it reads.
type gpu struct {
	device.Device // not to be given to others in place of the device: streams know their own
	spinCopy      any
	flag          []byte // mapped memory that the kernel watches
	ready         device.Ptr
}

func openGPU(t testing.TB, name string) *gpu {
	dev, err := device.Open(name)
	if errors.Is(err, device.ErrNoDevice) {
		t.Skip(err)
	}
	require.NoError(t, err)
	g := &gpu{Device: dev}
	g.spinCopy = cisterntest.Kernel(t, dev, "spinCopy")
	g.flag, err = dev.AllocPinned(4)
	require.NoError(t, err)
	g.hold()
	g.ready, err = dev.MappedPtr(g.flag)
	require.NoError(t, err)
	t.Cleanup(func() {
		g.letGo()
		require.NoError(t, errors.Join(dev.FreePinned(g.flag), dev.Close()))
	})
	return g
}

func (g *gpu) word() *uint32 { return (*uint32)(unsafe.Pointer(&g.flag[0])) }

func (g *gpu) hold()  { atomic.StoreUint32(g.word(), 0) }
func (g *gpu) letGo() { atomic.StoreUint32(g.word(), 1) }

// copyLate queues a kernel that waits for letGo and then copies n bytes.
func (g *gpu) copyLate(t testing.TB, s device.Stream, to, from device.Range) {
	require.NoError(t, s.Launch(&device.Launch{Name: "spinCopy", Kernel: g.spinCopy,
		Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{256, 1, 1},
		Args:  []uint64{uint64(g.ready), uint64(from.Ptr), uint64(to.Ptr), uint64(from.Bytes)},
		Reads: []device.Range{{Ptr: g.ready, Bytes: 4}, from}, Writes: []device.Range{to}}))
}

// TestRecordStreamMattersOnGPU: a kernel on stream B reads a block that was allocated on A and
// freed, and whose memory A requests again. With RecordStream B always reads the old bytes. Without
// it B reads the bytes that A wrote, which the test requires, because on a GPU nothing else
// separates the two.
func TestRecordStreamMattersOnGPU(t *testing.T) {
	configs := map[string]memcache.Config{
		"default":    {},
		"exact":      {Exact: true},
		"expandable": {ExpandableSegments: true},
	}
	for name, config := range configs {
		for _, recorded := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/recorded=%t", name, recorded), func(t *testing.T) {
				g := openGPU(t, "cuda:0")
				c, err := memcache.New(g.Device, config)
				require.NoError(t, err)
				for range 10 {
					got := g.reuse(t, c, g, c, recorded)
					want := byte(0x11)
					if !recorded {
						want = 0x22
					}
					require.Equal(t, bytes.Repeat([]byte{want}, len(got)), got)
				}
				require.NoError(t, c.Close())
			})
		}
	}
}

// TestRecordStreamMattersOnTwoGPUs is the same with B on another GPU, which reads this one's memory.
func TestRecordStreamMattersOnTwoGPUs(t *testing.T) {
	near, far := openGPU(t, "cuda:0"), openGPU(t, "cuda:1")
	c, err := memcache.New(near.Device, memcache.Config{})
	require.NoError(t, err)
	other, err := memcache.New(far.Device, memcache.Config{})
	require.NoError(t, err)
	for i := range 20 {
		got, want := near.reuse(t, c, far, other, i%2 == 0), byte(0x11)
		if i%2 == 1 {
			want = 0x22
		}
		require.Equal(t, bytes.Repeat([]byte{want}, len(got)), got)
	}
	require.NoError(t, errors.Join(c.Close(), other.Close()))
}

// reuse returns what B, a stream of far, read from a block that held 0x11. After its free A wrote
// 0x22 to a block of the same size.
func (g *gpu) reuse(t *testing.T, c *memcache.Cache, far *gpu, other *memcache.Cache, record bool) []byte {
	const n = 3 << 20
	ctx := context.Background()
	a, err := g.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	b, err := far.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	e, err := g.NewEvent(device.EventOptions{})
	require.NoError(t, err)
	far.hold()

	block, err := c.Alloc(ctx, n, a)
	require.NoError(t, err)
	result, err := other.Alloc(ctx, n, b)
	require.NoError(t, err)
	require.NoError(t, a.Memset(block.Ptr(), 0x11, n))
	require.NoError(t, a.Record(e))
	require.NoError(t, b.Wait(e))
	far.copyLate(t, b, result.Range(0, n), block.Range(0, n))
	if record {
		require.NoError(t, block.RecordStream(b))
	}
	require.NoError(t, block.Free())

	next, err := c.Alloc(ctx, n, a)
	require.NoError(t, err)
	require.Equal(t, !record, next.Ptr() == block.Ptr(), "whether the freed block was handed out again")
	require.NoError(t, a.Memset(next.Ptr(), 0x22, n))
	require.NoError(t, a.Synchronize(ctx))
	far.letGo()

	host, err := far.AllocPinned(n)
	require.NoError(t, err)
	require.NoError(t, b.CopyD2H(host, result.Ptr()))
	require.NoError(t, b.Synchronize(ctx))
	got := bytes.Clone(host)
	again, err := c.Alloc(ctx, n, a)
	require.NoError(t, err)
	if record {
		require.Equal(t, block.Ptr(), again.Ptr(), "B is past the block: it is handed out again")
	}
	require.NoError(t, errors.Join(again.Free(), next.Free(), result.Free(), far.FreePinned(host), e.Close(), a.Close(), b.Close()))
	return got
}

// TestContentsOnGPU is the program of PyTorch's fuzz test of its allocator: every block is filled
// with its own number on its stream, some are read on other streams, and every one is read back
// before it is freed.
func TestContentsOnGPU(t *testing.T) {
	g := openGPU(t, "cuda:0")
	g.letGo()
	for name, config := range map[string]memcache.Config{
		"default": {MemoryLimit: 512 << 20}, "expandable": {MemoryLimit: 512 << 20, ExpandableSegments: true},
		"no caching": {NoCaching: true},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := memcache.New(g.Device, config)
			require.NoError(t, err)
			p := &gpuProgram{gpu: g, t: t, c: c}
			p.run(2000)
			require.Zero(t, c.MemoryAllocated())
			require.NoError(t, c.Close())
		})
	}
}

// gpuProgram allocates, reads across streams and frees at random. The results of the reads are
// checked much later.
type gpuProgram struct {
	*gpu
	t       *testing.T
	c       *memcache.Cache
	r       *rand.Rand
	streams []device.Stream
	events  []device.Event
	live    []filled
	host    []byte
	read    []filled // their contents are on the way to host, one after the other
	used    int64    // of host
}

// filled is a block whose bytes are all byte(number).
type filled struct {
	block  memcache.Block
	bytes  int64
	stream int
	number uint64
}

func (p *gpuProgram) run(steps int) {
	var err error
	p.r = rand.New(rand.NewPCG(1, 2))
	p.host, err = p.AllocPinned(64 << 20)
	require.NoError(p.t, err)
	for range 4 {
		s, err := p.NewStream(device.StreamOptions{})
		require.NoError(p.t, err)
		e, err := p.NewEvent(device.EventOptions{})
		require.NoError(p.t, err)
		p.streams, p.events = append(p.streams, s), append(p.events, e)
	}
	for number := range uint64(steps) {
		if len(p.live) > 60 || len(p.live) > 0 && p.r.IntN(2) == 0 {
			p.free(p.r.IntN(len(p.live)))
			continue
		}
		n, s := 1+p.r.Int64N(1<<uint(9+p.r.IntN(13))), p.r.IntN(len(p.streams))
		b, err := p.c.Alloc(context.Background(), n, p.streams[s])
		require.NoError(p.t, err)
		require.NoError(p.t, p.streams[s].Memset(b.Ptr(), byte(number), n))
		p.live = append(p.live, filled{b, n, s, number})
	}
	for len(p.live) > 0 {
		p.free(len(p.live) - 1)
	}
	p.look()
	for i := range p.streams {
		require.NoError(p.t, errors.Join(p.events[i].Close(), p.streams[i].Close()))
	}
	require.NoError(p.t, p.FreePinned(p.host))
}

// free reads a live block on its own or another stream, and frees it without waiting.
func (p *gpuProgram) free(i int) {
	f, t := p.live[i], p.t
	p.live[i] = p.live[len(p.live)-1]
	p.live = p.live[:len(p.live)-1]
	if p.used+f.bytes > int64(len(p.host)) {
		p.look()
	}
	at := p.r.IntN(len(p.streams))
	s := p.streams[at]
	if at != f.stream {
		require.NoError(t, p.streams[f.stream].Record(p.events[f.stream]))
		require.NoError(t, s.Wait(p.events[f.stream]))
		require.NoError(t, f.block.RecordStream(s))
	}
	out, err := p.c.Alloc(context.Background(), f.bytes, s)
	require.NoError(t, err)
	p.copyLate(t, s, out.Range(0, f.bytes), f.block.Range(0, f.bytes))
	require.NoError(t, f.block.Free())
	require.NoError(t, s.CopyD2H(p.host[p.used:p.used+f.bytes], out.Ptr()))
	require.NoError(t, out.Free())
	p.read, p.used = append(p.read, f), p.used+f.bytes
}

// look checks all results of reads.
func (p *gpuProgram) look() {
	require.NoError(p.t, p.Synchronize(context.Background()))
	at := int64(0)
	for _, f := range p.read {
		got := p.host[at : at+f.bytes]
		if n := bytes.Count(got, []byte{byte(f.number)}); n != len(got) {
			p.t.Fatalf("block %d, %d bytes: %d bytes are not its number", f.number, f.bytes, len(got)-n)
		}
		at += f.bytes
	}
	p.read, p.used = p.read[:0], 0
}

// TestPinnedReuseMattersOnGPU: a copy to the GPU is queued after a kernel that waits. A buffer of
// the pool that is released meanwhile is not reused before the copy has read it. Memory that is
// overwritten without the pool is read too late, which the test requires.
func TestPinnedReuseMattersOnGPU(t *testing.T) {
	const n = 1 << 20
	ctx := context.Background()
	g := openGPU(t, "cuda:0")
	c, err := memcache.New(g.Device, memcache.Config{})
	require.NoError(t, err)
	pool, err := transfer.New(g.Device, transfer.Config{})
	require.NoError(t, err)
	s, err := g.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	to, err := c.Alloc(ctx, n, s)
	require.NoError(t, err)
	small, err := c.Alloc(ctx, 512, s)
	require.NoError(t, err)
	read := func() []byte {
		g.letGo()
		got := make([]byte, n)
		require.NoError(t, pool.Download(ctx, s, got, to, 0))
		return got
	}
	hold := func() {
		g.hold()
		g.copyLate(t, s, small.Range(0, 256), small.Range(256, 256))
	}
	for range 10 {
		hold()
		b, err := pool.Get(ctx, n)
		require.NoError(t, err)
		setAll(b.Bytes(), 0x11)
		_, err = pool.H2D(ctx, s, to, 0, b, 0, n)
		require.NoError(t, err)
		require.NoError(t, b.Release())
		other, err := pool.Get(ctx, n)
		require.NoError(t, err)
		setAll(other.Bytes(), 0x22)
		require.Equal(t, bytes.Repeat([]byte{0x11}, n), read())
		require.NoError(t, other.Release())
	}
	raw, err := g.AllocPinned(n)
	require.NoError(t, err)
	setAll(raw, 0x11)
	hold()
	require.NoError(t, s.CopyH2D(to.Ptr(), raw))
	setAll(raw, 0x22)
	require.Equal(t, bytes.Repeat([]byte{0x22}, n), read())
	require.NoError(t, errors.Join(g.FreePinned(raw), to.Free(), small.Free(), pool.Close(), s.Close(), c.Close()))
}

func setAll(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

// BenchmarkGPU is the allocator on a GPU: with a stream of its own and, for RecordStream, the driver's events.
func BenchmarkGPU(b *testing.B) {
	ctx := context.Background()
	dev, err := device.Open("cuda:0")
	if errors.Is(err, device.ErrNoDevice) {
		b.Skip(err)
	}
	require.NoError(b, err)
	c, err := memcache.New(dev, memcache.Config{})
	require.NoError(b, err)
	s, err := dev.NewStream(device.StreamOptions{})
	require.NoError(b, err)
	other, err := dev.NewStream(device.StreamOptions{})
	require.NoError(b, err)
	for _, bytes := range []int64{512, 1 << 20, 256 << 20} {
		b.Run(fmt.Sprintf("AllocFree/%d", bytes), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				block, err := c.Alloc(ctx, bytes, s)
				if err != nil {
					b.Fatal(err)
				}
				_ = block.Free()
			}
		})
		b.Run(fmt.Sprintf("RecordStream/%d", bytes), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				block, err := c.Alloc(ctx, bytes, s)
				if err != nil {
					b.Fatal(err)
				}
				_ = block.RecordStream(other)
				_ = block.Free()
			}
		})
	}
	require.NoError(b, errors.Join(s.Close(), other.Close(), c.Close(), dev.Close()))
}

// BenchmarkGPUBesidePending allocates and frees while blocks of n other streams wait for kernels on
// n more streams.
func BenchmarkGPUBesidePending(b *testing.B) {
	for _, n := range []int{0, 1, 16} {
		b.Run(fmt.Sprintf("streams=%d", n), func(b *testing.B) {
			g := openGPU(b, "cuda:0")
			c, err := memcache.New(g.Device, memcache.Config{})
			require.NoError(b, err)
			ctx := context.Background()
			list := make([]device.Stream, 2*n+1)
			for i := range list {
				list[i], err = g.NewStream(device.StreamOptions{})
				require.NoError(b, err)
			}
			alloc := func(s device.Stream, bytes int64) memcache.Block {
				block, err := c.Alloc(ctx, bytes, s)
				if err != nil {
					b.Fatal(err)
				}
				return block
			}
			s := list[2*n]
			for i := range n {
				of, user := list[2*i], list[2*i+1]
				from, to := alloc(of, 512), alloc(user, 512)
				g.copyLate(b, user, to.Range(0, 512), from.Range(0, 512))
				require.NoError(b, errors.Join(from.RecordStream(user), from.Free(), to.Free()))
			}
			require.NoError(b, alloc(s, 512).Free())
			b.ReportAllocs()
			for b.Loop() {
				_ = alloc(s, 512).Free()
			}
			g.letGo()
			for _, s := range list {
				require.NoError(b, errors.Join(s.Synchronize(ctx), s.Close()))
			}
			require.NoError(b, c.Close())
		})
	}
}
