package transfer_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// program is a random program of uploads, kernels and read-backs on a few blocks and two streams, and the
// contents that they must lead to.
type program struct {
	*rig
	t       *testing.T
	rng     *rand.Rand
	pool    *transfer.Pool
	vars    [4]variable
	pending []readback
	batches []pendingBatch
	failed  bool // the device is dead: only errors from now on
}

// variable is a block, what is in it, and an event after its last use.
type variable struct {
	block memcache.Block
	want  []byte
	event device.Event
}

// readback is a copy to a buffer that nobody has looked at yet.
type readback struct {
	copy   *transfer.Copy
	buffer transfer.Buffer
	want   []byte
}

// check sorts out an error: none before the device is dead, and only the fault's own after it.
func (p *program) check(err error) bool {
	if err == nil {
		return true
	}
	require.True(p.t, p.faulted, "unexpected: %v", err)
	require.True(p.t, errors.Is(err, device.ErrSticky) || errors.Is(err, device.ErrOutOfMemory), "not the fault: %v", err)
	p.failed = p.failed || errors.Is(err, device.ErrSticky)
	return false
}

// use picks a variable, a stream, and a part of it, and orders the stream behind the variable's last use.
func (p *program) use() (v *variable, s device.Stream, offset, bytes int64, ok bool) {
	v = &p.vars[p.rng.IntN(len(p.vars))]
	s = [2]device.Stream{p.a, p.b}[p.rng.IntN(2)]
	if !p.check(s.Wait(v.event)) {
		return nil, nil, 0, 0, false
	}
	offset = p.rng.Int64N(int64(len(v.want)))
	return v, s, offset, 1 + p.rng.Int64N(int64(len(v.want))-offset), true
}

func (p *program) step() {
	switch p.rng.IntN(15) {
	case 0, 1: // upload, plain or pinned
		v, s, offset, bytes, ok := p.use()
		if !ok {
			return
		}
		data := fill(make([]byte, bytes), byte(p.rng.IntN(256)))
		if !p.upload(v, s, offset, data) {
			return
		}
		copy(v.want[offset:], data)
		p.check(s.Record(v.event))
	case 2, 3: // kernel
		v, s, offset, bytes, ok := p.use()
		if !ok {
			return
		}
		p.kernel(v, s, offset, bytes)
		p.check(s.Record(v.event))
	case 4: // read back now
		v, s, offset, bytes, ok := p.use()
		if !ok {
			return
		}
		got, before := fill(make([]byte, bytes), 1), fill(make([]byte, bytes), 1)
		if p.check(p.pool.Download(p.t.Context(), s, got, v.block, offset)) {
			require.Equal(p.t, v.want[offset:offset+bytes], got)
		} else {
			require.Equal(p.t, before, got, "a failed read-back touched the output")
		}
		p.check(s.Record(v.event))
	case 5: // read back later
		v, s, offset, bytes, ok := p.use()
		if !ok {
			return
		}
		b, err := p.pool.Get(p.t.Context(), bytes+5)
		if !p.check(err) {
			return
		}
		c, err := p.pool.D2H(p.t.Context(), s, b, 5, v.block, offset, bytes)
		if !p.check(err) {
			require.NoError(p.t, b.Release())
			return
		}
		p.check(s.Record(v.event))
		p.pending = append(p.pending, readback{c, b, append([]byte(nil), v.want[offset:offset+bytes]...)})
	case 6:
		p.collect(p.rng.IntN(2) == 0)
	case 7: // another block for a variable; the old one is freed under its copies
		v, s, _, _, ok := p.use()
		if !ok {
			return
		}
		p.check(v.block.RecordStream(s))
		p.check(v.block.Free())
		p.renew(v, s)
	case 8:
		p.check(p.pool.EmptyCache(p.t.Context()))
	case 9, 10:
		p.batch()
	case 11:
		p.registered()
	case 12:
		p.inPlace()
	case 13:
		p.deviceCopy()
	case 14:
		p.fill()
	}
}

func (p *program) upload(v *variable, s device.Stream, offset int64, data []byte) bool {
	if p.rng.IntN(2) == 0 {
		_, err := p.pool.Upload(p.t.Context(), s, v.block, offset, data)
		return p.check(err)
	}
	b, err := p.pool.Get(p.t.Context(), int64(len(data)))
	if !p.check(err) {
		return false
	}
	copy(b.Bytes(), data)
	_, err = p.pool.H2D(p.t.Context(), s, v.block, offset, b, 0, int64(len(data)))
	require.NoError(p.t, b.Release())
	return p.check(err)
}

func (p *program) kernel(v *variable, s device.Stream, offset, bytes int64) {
	l, ok := p.add(v, offset, bytes)
	if !ok {
		return
	}
	if !p.check(v.block.RecordStream(s)) || !p.check(s.Launch(l)) {
		return
	}
	for i := range bytes {
		v.want[offset+i] += 3
	}
}

// collect looks at the read-backs, by waiting or only at those that are done.
func (p *program) collect(wait bool) {
	kept := p.pending[:0]
	for _, r := range p.pending {
		if wait {
			p.check(r.copy.Wait(p.t.Context()))
		} else if !r.copy.Done() {
			kept = append(kept, r)
			continue
		}
		if got := r.buffer.Bytes(); p.check(r.copy.Err()) && p.check(r.buffer.Check()) && !p.failed && got != nil {
			require.Equal(p.t, r.want, got[5:])
		}
		require.NoError(p.t, r.buffer.Release())
	}
	p.pending = kept
	p.collectBatches(wait)
}

// renew gives v another block, with contents that come from s.
func (p *program) renew(v *variable, s device.Stream) {
	bytes := 1 + p.rng.Int64N(20_000)
	v.want = make([]byte, bytes)
	var err error
	if v.block, err = p.cache.Alloc(p.t.Context(), bytes, s); !p.check(err) {
		v.block = memcache.Block{}
		p.failed = true
		return
	}
	p.check(s.Memset(v.block.Ptr(), 0, bytes))
	p.check(s.Record(v.event))
}

func run(t *testing.T, seed uint64, cfg transfer.Config, fault func(*host.Device)) {
	r := newRig(t, cfg)
	p := &program{rig: r, t: t, rng: rand.New(rand.NewPCG(seed, 1)), pool: r.pool}
	for i := range p.vars {
		var err error
		p.vars[i].event, err = r.dev.NewEvent(device.EventOptions{})
		require.NoError(t, err)
		p.renew(&p.vars[i], r.a)
	}
	if fault != nil {
		r.faulted = true
		fault(r.host(t))
	}
	for i := 0; i < 150 && !p.failed; i++ {
		p.step()
	}
	p.collect(true)
	require.Zero(t, r.pool.Stats().ActiveRequests.Current, "a buffer was lost on the way")
	for _, v := range p.vars {
		got := make([]byte, len(v.want))
		if !p.failed && p.check(r.a.Wait(v.event)) && p.check(r.pool.Download(t.Context(), r.a, got, v.block, 0)) {
			require.Equal(t, v.want, got)
		}
		p.check(v.block.Free())
	}
}

// Whatever is cached and observed, the contents are right; with a fault, right or an error.
func TestMetamorphic(t *testing.T) {
	for seed := range uint64(8) {
		for name, cfg := range map[string]transfer.Config{
			"default": {}, "no cache": {MaxCachedBytes: -1}, "small cache": {MaxCachedBytes: 10_000},
			"observed": {Observer: &recorder{}},
		} {
			t.Run(fmt.Sprint(name, " ", seed), func(t *testing.T) { run(t, seed, cfg, nil) })
		}
		n := int(seed*seed)%37 + 1
		for name, f := range map[string]host.Fault{
			"copy": host.FaultCopy, "launch": host.FaultLaunch, "pinned": host.FaultPinned,
		} {
			t.Run(fmt.Sprint("fault ", name, " ", n), func(t *testing.T) {
				run(t, seed, transfer.Config{}, func(d *host.Device) { d.Fail(f, n) })
			})
		}
	}
}
