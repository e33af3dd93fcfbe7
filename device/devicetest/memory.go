package devicetest

import (
	"math"
	"runtime"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

const mib = 1 << 20

var memoryTests = []test{
	{"addresses are aligned, and allocations don't overlap", func(f *fixture) {
		align := f.dev.Properties().Alignment
		require.GreaterOrEqual(f, align, int64(256))
		s := f.stream()
		var ptrs []device.Ptr
		for i, n := range sizes {
			p := f.alloc(n)
			require.NotZero(f, p)
			require.Zero(f, int64(p)%align)
			f.fill(s, p, n, byte(i))
			ptrs = append(ptrs, p)
		}
		for i, n := range sizes {
			f.same(filled(n, byte(i)), f.read(s, ptrs[i], n))
		}
	}},
	{"sizes that are not positive are refused", func(f *fixture) {
		for _, n := range []int64{0, -1, math.MinInt64} {
			_, err := f.dev.Alloc(n)
			f.refused(err, device.ErrInvalid)
		}
	}},
	{"allocated memory is not free", func(f *fixture) {
		free, total, err := f.dev.MemInfo()
		require.NoError(f, err)
		require.Equal(f, f.dev.Properties().TotalMemory, total)
		require.Positive(f, free)
		require.LessOrEqual(f, free, total)
		p, err := f.dev.Alloc(32 * mib)
		require.NoError(f, err)
		if !f.Shared {
			during, _, err := f.dev.MemInfo()
			require.NoError(f, err)
			require.Equal(f, free-32*mib, during)
		}
		require.NoError(f, f.dev.Free(p))
		if !f.Shared {
			after, _, err := f.dev.MemInfo()
			require.NoError(f, err)
			require.Equal(f, free, after)
		}
	}},
	{"too much is out of memory, and changes nothing", func(f *fixture) {
		free, total, err := f.dev.MemInfo()
		require.NoError(f, err)
		for _, n := range []int64{total + 1, math.MaxInt64} {
			_, err := f.dev.Alloc(n)
			e := f.refused(err, device.ErrOutOfMemory)
			require.Equal(f, device.CodeOutOfMemory, e.Code)
			require.Equal(f, n, e.Bytes)
		}
		if !f.Shared {
			after, _, err := f.dev.MemInfo()
			require.NoError(f, err)
			require.Equal(f, free, after)
		}
		s, p := f.stream(), f.alloc(mib)
		f.fill(s, p, mib, 1)
		f.same(filled(mib, 1), f.read(s, p, mib))
	}},
	{"Free waits for queued work that names the memory", func(f *fixture) {
		s, q := f.stream(), f.alloc(64)
		for _, queue := range []func(p device.Ptr) error{
			func(p device.Ptr) error { return s.Launch(f.AddOne(f, f.dev, p+8, 16)) },
			func(p device.Ptr) error { return s.Memset(p, 1, 64) },
			func(p device.Ptr) error { return s.CopyD2D(p, q, 64) },
			func(p device.Ptr) error { return s.CopyD2D(q, p, 64) },
		} {
			p, err := f.dev.Alloc(64)
			require.NoError(f, err)
			release := f.block(s)
			require.NoError(f, queue(p))
			f.waits(release, func() { require.NoError(f, f.dev.Free(p)) })
		}
	}},
	{"Free doesn't wait for other work", func(f *fixture) {
		if f.FreeWaits {
			f.Skip("the driver waits for everything")
		}
		s, p := f.stream(), f.alloc(64)
		q, err := f.dev.Alloc(64)
		require.NoError(f, err)
		f.addOne(s, q, 64)
		f.synchronize(s)
		release := f.block(s)
		f.addOne(s, p, 64)
		require.NoError(f, f.dev.Free(q))
		release()
	}},
	{"only what Alloc returned is freed, once", func(f *fixture) {
		p, err := f.dev.Alloc(1024)
		require.NoError(f, err)
		for _, wrong := range []device.Ptr{0, p + 1, p + 512, p - 1, p + 1024, ^device.Ptr(0)} {
			f.refused(f.dev.Free(wrong), device.ErrInvalid)
		}
		require.NoError(f, f.dev.Free(p))
		f.refused(f.dev.Free(p), device.ErrInvalid)
	}},
	{"of two calls that free the same memory one is refused", func(f *fixture) {
		s, q := f.stream(), f.alloc(64)
		for name, get := range map[string]func() (use, free func() error){
			"Free": func() (use, free func() error) {
				p, err := f.dev.Alloc(64)
				require.NoError(f, err)
				return func() error { return s.CopyD2D(q, p, 64) }, func() error { return f.dev.Free(p) }
			},
			"FreePinned": func() (use, free func() error) {
				b, err := f.dev.AllocPinned(64)
				require.NoError(f, err)
				return func() error { return s.CopyH2D(q, b) }, func() error { return f.dev.FreePinned(b) }
			},
			"Unregister": func() (use, free func() error) {
				b := make([]byte, 64)
				require.NoError(f, f.dev.Register(b))
				return func() error { return s.CopyH2D(q, b) }, func() error { return f.dev.Unregister(b) }
			},
		} {
			use, free := get()
			require.NoError(f, s.Memset(q, 0, 64))
			release := f.block(s)
			require.NoError(f, use())
			results := make(chan error, 2)
			for range 2 {
				go func() { results <- free() }()
			}
			for range 20 { // so that both have time to begin
				runtime.Gosched()
				time.Sleep(time.Millisecond)
			}
			release()
			first, second := <-results, <-results
			if first == nil {
				first, second = second, first
			}
			f.refused(first, device.ErrInvalid)
			require.NoError(f, second, name)
		}
	}},
	{"Bytes is the memory", func(f *fixture) {
		visible, ok := f.dev.(device.HostVisible)
		if !ok {
			f.Skip("the host can't touch the backend's memory")
		}
		s, p := f.stream(), f.alloc(100)
		f.fill(s, p, 100, 4)
		f.synchronize(s)
		b, err := visible.Bytes(p+10, 20)
		require.NoError(f, err)
		require.Equal(f, filled(20, 4), b)
		require.Equal(f, 20, cap(b))
		b[0] = 5
		f.same(append([]byte{4, 5}, filled(18, 4)...), f.read(s, p+9, 20))
		for _, wrong := range []device.Range{{Ptr: p, Bytes: 101}, {Ptr: p, Bytes: -1}, {Ptr: p - 1, Bytes: 2},
			{Ptr: 0, Bytes: 1}} {
			_, err := visible.Bytes(wrong.Ptr, wrong.Bytes)
			f.refused(err, device.ErrInvalid)
		}
	}},
}
