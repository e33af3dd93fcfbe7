package host_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

func BenchmarkEnqueue(b *testing.B) {
	d, s := newDevice(b, 1<<20)
	p, err := d.Alloc(4096)
	require.NoError(b, err)
	host, err := d.AllocPinned(4096)
	require.NoError(b, err)
	ranges := []device.Range{{Ptr: p, Bytes: 4096}}
	for name, queue := range map[string]func() error{
		"Launch":      func() error { return s.Launch(&device.Launch{Func: func() {}}) },
		"LaunchNamed": func() error { return s.Launch(&device.Launch{Func: func() {}, Reads: ranges, Writes: ranges}) },
		"Memset4KiB":  func() error { return s.Memset(p, 1, 4096) },
		"CopyH2D4KiB": func() error { return s.CopyH2D(p, host) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := queue(); err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, s.Synchronize(background))
		})
	}
	_ = d.Close()
}

func BenchmarkRoundTrip(b *testing.B) {
	d, s := newDevice(b, 1<<20)
	defer d.Close()
	launch := &device.Launch{Func: func() {}}
	b.Run("Launch", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = s.Launch(launch)
			_ = s.Synchronize(background)
		}
	})
	b.Run("OnDone", func(b *testing.B) {
		b.ReportAllocs()
		done := make(chan struct{}, 1)
		for b.Loop() {
			_ = s.OnDone(func(error) { done <- struct{}{} })
			<-done
		}
	})
}

func BenchmarkEvent(b *testing.B) {
	d, s := newDevice(b, 1<<20)
	defer d.Close()
	e, err := d.NewEvent(device.EventOptions{})
	require.NoError(b, err)
	b.Run("RecordQuery", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = s.Record(e)
			_, _ = e.Query()
		}
	})
	_ = s.Synchronize(background)
	b.Run("QueryDone", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = e.Query()
		}
	})
	b.Run("StreamQueryIdle", func(b *testing.B) {
		for b.Loop() {
			_, _ = s.Query()
		}
	})
}

func BenchmarkAllocFree(b *testing.B) {
	d, _ := newDevice(b, 1<<30)
	defer d.Close()
	for b.Loop() {
		p, err := d.Alloc(2 << 20)
		if err != nil {
			b.Fatal(err)
		}
		_ = d.Free(p)
	}
}
