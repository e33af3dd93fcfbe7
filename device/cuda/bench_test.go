//go:build cuda

package cuda_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/cuda"
)

// bench opens the GPU and a stream.
func bench(b *testing.B) (device.Device, device.Stream) {
	d := open(b)
	s, err := d.NewStream(device.StreamOptions{})
	require.NoError(b, err)
	b.Cleanup(func() {
		require.NoError(b, s.Close())
		require.NoError(b, d.Close())
	})
	return d, s
}

// BenchmarkLaunch launches an empty kernel and waits for the GPU after every 500 launches.
func BenchmarkLaunch(b *testing.B) {
	const batch = 500
	d, s := bench(b)
	p, err := d.Alloc(1 << 20)
	require.NoError(b, err)
	defer func() { require.NoError(b, d.Free(p)) }()
	l := &device.Launch{Name: "nothing", Kernel: kernel(b, d, "nothing"), Grid: one, Block: one}
	named := *l
	named.Args = nil
	named.Reads, named.Writes = []device.Range{{Ptr: p, Bytes: 1 << 19}}, []device.Range{{Ptr: p + 1<<19, Bytes: 1 << 19}}
	for _, x := range []struct {
		name string
		run  func() error
	}{
		{"go", func() error { return repeat(batch, func() error { return s.Launch(l) }) }},
		{"go with ranges", func() error { return repeat(batch, func() error { return s.Launch(&named) }) }},
	} {
		b.Run(x.name, func(b *testing.B) {
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				if err := x.run(); err != nil {
					b.Fatal(err)
				}
				n += batch
				b.StopTimer()
				require.NoError(b, s.Synchronize(context.Background()))
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/launch")
		})
	}
}

func repeat(n int, f func() error) error {
	for range n {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func BenchmarkEvent(b *testing.B) {
	d, s := bench(b)
	e, err := d.NewEvent(device.EventOptions{})
	require.NoError(b, err)
	defer e.Close()
	require.NoError(b, s.Record(e))
	require.NoError(b, s.Synchronize(context.Background()))
	b.Run("query", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if done, err := e.Query(); !done || err != nil {
				b.Fatal(done, err)
			}
		}
	})
	b.Run("record", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := s.Record(e); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("make and close", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			e, err := d.NewEvent(device.EventOptions{})
			if err = errors.Join(err, e.Close()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("wait", func(b *testing.B) {
		for b.Loop() {
			if err := s.Wait(e); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkCopy measures consecutive copies by events, as PyTorch's benchmark does.
func BenchmarkCopy(b *testing.B) {
	d, s := bench(b)
	var events [2]device.Event
	for i := range events {
		var err error
		events[i], err = d.NewEvent(device.EventOptions{Timed: true})
		require.NoError(b, err)
		defer events[i].Close()
	}
	for _, bytes := range []int64{64 << 10, 1 << 20, 16 << 20, 1 << 30} {
		p, err := d.Alloc(bytes)
		require.NoError(b, err)
		host, err := d.AllocPinned(bytes)
		require.NoError(b, err)
		batch := int(max(3, min(500, 2<<30/bytes)))
		for name, queue := range map[string]func() error{
			"h2d": func() error { return s.CopyH2D(p, host) },
			"d2h": func() error { return s.CopyD2H(host, p) },
		} {
			b.Run(fmt.Sprintf("%s/%d", name, bytes), func(b *testing.B) {
				var took time.Duration
				n := 0
				for b.Loop() {
					require.NoError(b, s.Record(events[0]))
					require.NoError(b, repeat(batch, queue))
					require.NoError(b, s.Record(events[1]))
					require.NoError(b, s.Synchronize(context.Background()))
					t, err := d.Elapsed(events[0], events[1])
					require.NoError(b, err)
					took += t
					n += batch
				}
				b.ReportMetric(float64(bytes)*float64(n)/float64(took.Nanoseconds()), "GB/s")
			})
		}
		require.NoError(b, d.Free(p))
		require.NoError(b, d.FreePinned(host))
	}
}

// BenchmarkBatch copies 1,000 ranges of 4 KiB and waits for them: as a batch, by the driver's
// batch, and one by one.
func BenchmarkBatch(b *testing.B) {
	const n, each = 1000, 4 << 10
	d, s := bench(b)
	p, err := d.Alloc(2 * n * each)
	require.NoError(b, err)
	defer func() { require.NoError(b, d.Free(p)) }()
	memory, err := d.AllocPinned(n * each)
	require.NoError(b, err)
	defer func() { require.NoError(b, d.FreePinned(memory)) }()
	var host [][]byte
	var dev []device.Ptr
	for i := range n {
		host = append(host, memory[i*each:(i+1)*each])
		dev = append(dev, p+device.Ptr(2*i*each)) // every second 4 KiB
	}
	wait := func() error { return s.Synchronize(context.Background()) }
	oneByOne := func(copy func(i int) error, after func() error) func() error {
		return func() error {
			for i := range n {
				if err := errors.Join(copy(i), after()); err != nil {
					return err
				}
			}
			return nil
		}
	}
	d2h := func(i int) error { return s.CopyD2H(host[i], dev[i]) }
	for _, x := range []struct {
		name  string
		queue func() error
	}{
		{"d2h batch", func() error { return s.(device.BatchCopier).CopyD2HBatch(host, dev) }},
		{"h2d batch", func() error { return s.(device.BatchCopier).CopyH2DBatch(dev, host) }},
		{"d2h batch of the driver", func() error { return cuda.DriverBatch(s, host, dev) }},
		{"d2h single", oneByOne(d2h, func() error { return nil })},
		{"d2h single, each waited for", oneByOne(d2h, wait)},
	} {
		b.Run(x.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := errors.Join(x.queue(), wait()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n*each)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GB/s")
		})
	}
}
