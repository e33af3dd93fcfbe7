package devicetest

import (
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// launchesAreSeen: the hook runs before and after a launch, and its events enclose only the kernel.
func launchesAreSeen(f *fixture) {
	const n = 64
	var told []string
	before, after := f.event(true), f.event(true)
	s, err := f.dev.NewStream(device.StreamOptions{Launching: func(s device.Stream, name string) func(error) {
		switch name {
		case "seen", "":
			told = append(told, "launching "+name)
		case "unseen":
			told = append(told, "launching "+name)
			return nil
		default: // of the fixture
			return nil
		}
		require.NoError(f, s.Record(before))
		return func(err error) {
			told = append(told, fmt.Sprint("launched ", err != nil))
			require.NoError(f, s.Record(after))
		}
	}})
	require.NoError(f, err)
	p := f.alloc(n)
	l := f.Fill(f, f.dev, p, n, 7)
	l.Name = "seen"
	release := f.block(s)
	require.NoError(f, s.Launch(l))
	done, err := before.Query()
	require.NoError(f, err)
	require.False(f, done, "the event is on the stream, behind what was there")
	release()
	f.synchronize(after)
	f.same(filled(n, 7), f.read(s, p, n))
	took, err := f.dev.Elapsed(before, after)
	require.NoError(f, err)
	require.GreaterOrEqual(f, took, 0*took)

	l.Name = "unseen"
	require.NoError(f, s.Launch(l))
	require.Error(f, s.Launch(nil))
	require.Equal(f, []string{"launching seen", "launched false", "launching unseen", "launching ", "launched true"}, told)
	require.NoError(f, s.Close())
}
