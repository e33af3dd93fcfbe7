package host_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
)

// A program is a sequence of operations on buffers. It runs in order on slices, and on several
// streams of a device, where each operation waits only for the events of those that it depends on.
// The bytes must be the same. Under -race a false report fails the test, too.
type program struct {
	t       testing.TB
	dev     device.Device
	streams []device.Stream
	ptrs    []device.Ptr // device buffers
	pinned  [][]byte     // the buffers after them
	model   [][]byte     // expected contents of each buffer
	written []device.Event
	readers [][]device.Event // since the last write
}

const bufferBytes = 100

func FuzzStreamsAgreeWithSequence(f *testing.F) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 0))
		code := make([]byte, 4*r.IntN(300))
		for i := range code {
			code[i] = byte(r.Uint32())
		}
		f.Add(code)
	}
	f.Fuzz(func(t *testing.T, code []byte) {
		p := newProgram(t)
		for ; len(code) >= 4; code = code[4:] {
			p.step(code[0], p.streams[int(code[1])%len(p.streams)], int(code[2]), int(code[3]))
		}
		p.check()
	})
}

func newProgram(t testing.TB) *program {
	d, err := host.New(host.Config{Capacity: 1 << 20})
	require.NoError(t, err)
	p := &program{t: t, dev: d}
	for range 3 {
		s, err := d.NewStream(device.StreamOptions{})
		require.NoError(t, err)
		p.streams = append(p.streams, s)
	}
	for range 4 {
		ptr, err := d.Alloc(bufferBytes)
		require.NoError(t, err)
		require.NoError(t, p.streams[0].Memset(ptr, 0, bufferBytes))
		p.ptrs = append(p.ptrs, ptr)
		b, err := d.AllocPinned(bufferBytes)
		require.NoError(t, err)
		p.pinned = append(p.pinned, b)
	}
	require.NoError(t, p.streams[0].Synchronize(context.Background()))
	n := len(p.ptrs) + len(p.pinned)
	p.written, p.readers = make([]device.Event, n), make([][]device.Event, n)
	for range n {
		p.model = append(p.model, make([]byte, bufferBytes))
	}
	return p
}

// step runs one operation on both sides. x and y select buffers and values.
func (p *program) step(op byte, s device.Stream, x, y int) {
	nd := len(p.ptrs)
	dst, src := x%nd, y%nd
	host := nd + y%len(p.pinned)
	switch op % 8 {
	case 0:
		p.order(s, nil, []int{dst}, func() error { return s.Memset(p.ptrs[dst], byte(y), bufferBytes) })
		copy(p.model[dst], filled(byte(y)))
	case 1:
		if dst == src {
			return
		}
		p.order(s, []int{src}, []int{dst}, func() error { return s.CopyD2D(p.ptrs[dst], p.ptrs[src], bufferBytes) })
		copy(p.model[dst], p.model[src])
	case 2:
		p.order(s, []int{host}, []int{dst}, func() error { return s.CopyH2D(p.ptrs[dst]+7, p.pinned[host-nd][3:50]) })
		copy(p.model[dst][7:], p.model[host][3:50])
	case 3:
		p.order(s, []int{dst}, []int{host}, func() error { return s.CopyD2H(p.pinned[host-nd][10:90], p.ptrs[dst]+1) })
		copy(p.model[host][10:90], p.model[dst][1:])
	case 4, 5:
		a, b := bytesOf(p.t, p.dev, p.ptrs[dst]), bytesOf(p.t, p.dev, p.ptrs[src])
		l := &device.Launch{Func: func() { add(a, b) }, Writes: []device.Range{{Ptr: p.ptrs[dst], Bytes: bufferBytes}},
			Reads: []device.Range{{Ptr: p.ptrs[src], Bytes: bufferBytes}, {Ptr: p.ptrs[dst], Bytes: bufferBytes}}}
		p.order(s, []int{src}, []int{dst}, func() error { return s.Launch(l) })
		add(p.model[dst], p.model[src])
	case 6: // the host writes pinned memory after everything
		require.NoError(p.t, p.dev.Synchronize(context.Background()))
		copy(p.pinned[host-nd], filled(byte(x)))
		copy(p.model[host], filled(byte(x)))
	case 7: // the host waits for a buffer's last write, and reads the buffer
		if e := p.written[host]; e != nil {
			require.NoError(p.t, e.Synchronize(context.Background()))
		}
		require.Equal(p.t, p.model[host], p.pinned[host-nd])
	}
}

// order queues an operation after waits for those that it depends on, and records its event.
func (p *program) order(s device.Stream, reads, writes []int, queue func() error) {
	wait := func(e device.Event) {
		if e != nil {
			require.NoError(p.t, s.Wait(e))
		}
	}
	for _, b := range reads {
		wait(p.written[b])
	}
	for _, b := range writes {
		wait(p.written[b])
		for _, e := range p.readers[b] {
			wait(e)
		}
	}
	require.NoError(p.t, queue())
	e, err := p.dev.NewEvent(device.EventOptions{})
	require.NoError(p.t, err)
	require.NoError(p.t, s.Record(e))
	for _, b := range reads {
		p.readers[b] = append(p.readers[b], e)
	}
	for _, b := range writes {
		p.written[b], p.readers[b] = e, nil
	}
}

func (p *program) check() {
	require.NoError(p.t, p.dev.Synchronize(context.Background()))
	for i, ptr := range p.ptrs {
		require.Equal(p.t, p.model[i], bytesOf(p.t, p.dev, ptr), "device buffer %d", i)
		require.NoError(p.t, p.dev.Free(ptr))
	}
	for i, b := range p.pinned {
		require.Equal(p.t, p.model[len(p.ptrs)+i], b, "pinned buffer %d", i)
		require.NoError(p.t, p.dev.FreePinned(b))
	}
	require.NoError(p.t, p.dev.Close())
}

func bytesOf(t testing.TB, d device.Device, p device.Ptr) []byte {
	b, err := d.(device.HostVisible).Bytes(p, bufferBytes)
	require.NoError(t, err)
	return b
}

func add(dst, src []byte) {
	for i := range dst {
		dst[i] += src[i] + 1
	}
}

func filled(v byte) []byte {
	b := make([]byte, bufferBytes)
	for i := range b {
		b[i] = v
	}
	return b
}
