package devicetest

import (
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

var elapsedTests = []test{
	{"grows along a stream", func(f *fixture) {
		s, p := f.stream(), f.alloc(1<<20)
		start, middle, end := f.event(true), f.event(true), f.event(true)
		require.True(f, start.Timed())
		require.False(f, f.event(false).Timed())
		require.NoError(f, s.Record(start))
		f.fill(s, p, 1<<20, 1)
		require.NoError(f, s.Record(middle))
		f.addOne(s, p, 1<<20)
		require.NoError(f, s.Record(end))
		f.synchronize(end)
		first, err := f.dev.Elapsed(start, middle)
		require.NoError(f, err)
		all, err := f.dev.Elapsed(start, end)
		require.NoError(f, err)
		require.GreaterOrEqual(f, first, first*0)
		require.GreaterOrEqual(f, all, first)
		back, err := f.dev.Elapsed(end, start)
		require.NoError(f, err)
		require.Equal(f, -all, back)
		none, err := f.dev.Elapsed(start, start)
		require.NoError(f, err)
		require.Zero(f, none)
	}},
	{"needs timed events with complete records", func(f *fixture) {
		s := f.stream()
		timed, untimed, fresh, late := f.event(true), f.event(false), f.event(true), f.event(true)
		require.NoError(f, s.Record(timed))
		require.NoError(f, s.Record(untimed))
		f.synchronize(s)
		release := f.block(s)
		require.NoError(f, s.Record(late))
		for _, wrong := range []device.Event{untimed, fresh, late, nil, foreign{}} {
			_, err := f.dev.Elapsed(timed, wrong)
			f.refused(err, device.ErrInvalid)
			_, err = f.dev.Elapsed(wrong, timed)
			f.refused(err, device.ErrInvalid)
		}
		release()
		f.synchronize(late)
		_, err := f.dev.Elapsed(timed, late)
		require.NoError(f, err)
	}},
	{"has a part in which the stream works", func(f *fixture) {
		d, ok := f.dev.(device.BusyTimer)
		if !ok {
			return
		}
		s, other, p := f.stream(), f.stream(), f.alloc(1<<20)
		start, end, foreigner := f.event(true), f.event(true), f.event(true)
		require.NoError(f, s.Record(start))
		f.fill(s, p, 1<<20, 1)
		f.addOne(s, p, 1<<20)
		require.NoError(f, s.Record(end))
		require.NoError(f, other.Record(foreigner))
		f.synchronize(end)
		f.synchronize(foreigner)
		busy, err := d.BusyTime(start, end)
		require.NoError(f, err)
		all, err := f.dev.Elapsed(start, end)
		require.NoError(f, err)
		require.Positive(f, busy)
		require.LessOrEqual(f, busy, all)
		for _, wrong := range []device.Event{f.event(true), f.event(false), foreigner, nil, foreign{}} {
			_, err := d.BusyTime(start, wrong)
			f.refused(err, device.ErrInvalid)
		}
		_, err = d.BusyTime(end, start)
		f.refused(err, device.ErrInvalid)
	}},
}
